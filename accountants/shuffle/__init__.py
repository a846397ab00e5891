"""Privacy of shuffled reports: many local reports whose senders are hidden by a trusted shuffler."""

from accountants.shuffle.shuffled import Shuffled, shuffled

__all__ = ["Shuffled", "shuffled"]
