"""Privacy of shuffled reports: many local reports whose senders are hidden by a trusted shuffler.

``blanket`` has the theorem, and the worst pair of inputs of every mechanism. ``estimate`` computes values by
enumeration or by an integral, and ``bracket`` rigorous bounds. ``shuffled`` is the interface.
"""

from accountants.shuffle.shuffled import Shuffled, shuffled

__all__ = ["Shuffled", "shuffled"]
