"""A finished release: its output and sidecar, what these guarantee, and how anyone verifies them."""
