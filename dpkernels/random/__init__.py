"""Keys and counter-based random words.

Word ``i`` of a stream depends only on the key, the stream and ``i``, so noise does not depend on chunks, shards or
retries.
"""

from dpkernels.random.keys import key_from_bytes, os_key, simulation_key

__all__ = ["key_from_bytes", "os_key", "simulation_key"]
