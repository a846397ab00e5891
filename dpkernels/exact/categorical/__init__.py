"""Certificates and samplers of mechanisms for categories."""
