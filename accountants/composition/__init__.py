"""Composition: guarantees of many reports, by characteristic function, by loss distribution, with rigorous brackets."""
