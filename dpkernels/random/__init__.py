"""Keys and counter-based random words.

Word ``i`` of a stream depends on the key, the stream and ``i`` alone, so noise does not depend on chunking,
sharding or retries. ``keys`` makes and checks keys, ``chacha`` is the strong generator inside JAX, ``host`` the
same stream from OpenSSL, ``uniforms`` what float samplers draw from, with the fast generator for simulation.
"""

from dpkernels.random.keys import key_from_bytes, os_key, simulation_key

__all__ = ["key_from_bytes", "os_key", "simulation_key"]
