"""Rigorous lower and upper ends of a composed guarantee's delta and epsilon, one method a file.

``dispatch`` chooses the method. The estimates between these ends are in the files of the folder above.
"""
