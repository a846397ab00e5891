"""Shuffled reports: what many local reports reveal together once nobody knows who sent which.

``blanket`` has the theorem, and the worst pair of inputs of every mechanism; ``integral`` its value for any number of
reports, ``counts`` that of few reports of few outcomes; ``bracket`` rigorous bounds; ``published`` others' bounds.
"""

from accountants.shuffle.shuffled import Shuffled, shuffled

__all__ = ["Shuffled", "shuffled"]
