"""Exact release: integer tables, their certificates, and samplers that use integer arithmetic only.

Each of the files ``windows``, ``rows`` and ``noise`` serves one kind of mechanism. It has the integer table, its
verification in integers and Fractions, and the exact sampler. ``window_build``, ``row_build`` and ``noise_build``
construct the tables from mechanisms. ``registry`` finds the exact sampler of any mechanism.
``combined`` has mixtures and vectors.
"""
