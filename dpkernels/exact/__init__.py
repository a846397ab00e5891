"""Exact release: integer tables, their certificates, and samplers made of integer arithmetic only.

``tables`` holds a mechanism's output distribution as integers, ``lattice`` makes a table of a mechanism,
``window_certificate`` verifies one in integers and Fractions, ``kernels`` samples one, ``forms`` puts these together;
mechanisms given row by row and additive noise have the same in files of their own. ``certificate`` has what all
certificates are, ``combined`` reads any of them.
"""
