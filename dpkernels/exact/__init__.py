"""Exact release: integer tables, their certificates, and samplers that use integer arithmetic only.

Each of the files ``windows``, ``rows``, ``noise`` and ``noise_vectors`` serves one kind of mechanism: the integer table
and its kernel, the verification in integers and Fractions, the sampler, and the construction. ``combined`` has mixtures
and vectors. ``registry`` finds the exact sampler of any mechanism.
"""
