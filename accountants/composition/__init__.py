"""Composition of many releases: estimates, chosen by ``dispatch``, and in ``brackets`` the rigorous bounds."""
