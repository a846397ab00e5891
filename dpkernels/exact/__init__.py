"""Exact release: integer tables, their certificates, and samplers made of integer arithmetic only.

``tables`` holds a mechanism's output distribution as integers, ``lattice`` makes a table of a mechanism,
``certificate`` verifies one in integers and Fractions, ``kernels`` samples one, ``forms`` puts these together.
"""
