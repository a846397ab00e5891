"""Mechanisms from options: which there are, what they take, and what their certificates say."""
