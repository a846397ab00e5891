"""Exact release: integer tables, their certificates, and samplers made of integer arithmetic only.

Each of the folders ``windows``, ``rows`` and ``noise`` has, for one kind of mechanism, ``table``: the distribution of
its reports as integers; ``lattice``, which makes a table of a mechanism; ``certificate``, which verifies one in
integers and Fractions; and ``form``, which puts these together. ``kernels`` samples tables, ``certify`` makes the form
of any mechanism, and ``combined`` reads any certificate.
"""
