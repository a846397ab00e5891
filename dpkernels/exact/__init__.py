"""Exact release: integer tables, their certificates, and samplers that use integer arithmetic only.

Each of the folders ``windows``, ``rows`` and ``noise`` serves one kind of mechanism. It has the integer table
(``table``), its construction from a mechanism (``build``), its verification in integers and Fractions
(``certificate``), and the exact sampler (``sampler``). ``registry`` finds the exact sampler of any mechanism.
``combined`` has mixtures and vectors.
"""
