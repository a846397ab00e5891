"""Exact release: integer tables, their certificates, and samplers that use integer arithmetic only."""
