"""Keys: 256 bits from the operating system for a release, an integer seed for a simulation."""

from __future__ import annotations

import os

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from dpkernels import checks
from dpkernels.random import chacha


def os_key() -> Array:
    """A fresh typed ChaCha20 key: 256 bits from the operating system.

    Nothing is cached, so a forked process never repeats its parent's keys. JAX prints a key's words in its repr: never
    print or log one.
    """
    return key_from_bytes(os.urandom(32))


def key_from_bytes(secret: bytes) -> Array:
    """The typed ChaCha20 key with these 32 bytes, to repeat a release after a crash.

    Whoever has the bytes can remove the noise: keep them as secret as the data, and destroy them with it.

    Raises:
        ValueError: not 32 bytes.
    """
    if len(secret) != 32:
        raise ValueError(f"secret: has {len(secret)} bytes; a ChaCha20 key has 32")
    return chacha.wrap(np.frombuffer(secret, "<u4"))


def simulation_key(seed: int) -> Array:
    """A typed Threefry key from an integer in 0..2^32 - 1: reproducible, guessable, for simulation only.

    Raises:
        TypeError: not an integer.
        ValueError: seed not in 0..2^32 - 1; JAX would drop the higher bits.
    """
    checks.whole("seed", seed, 0, (1 << 32) - 1)
    return jax.random.key(seed, impl="threefry2x32")


def check_key(key: Array) -> None:
    """Refuse what is not one typed key.

    Raises:
        TypeError: not a typed JAX key, or an array of several.
    """
    if not (isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)):
        raise TypeError(f"key: {type(key).__name__} is not a typed JAX key; make one with jax.random.key or os_key()")
    if key.shape != ():
        raise TypeError(f"key: has shape {key.shape}; one key is needed, of shape ()")


def check_release_key(key: Array) -> None:
    """Refuse a key that is not fit for a release; it may be traced.

    Raises:
        TypeError: not a typed ChaCha20 key. ``jax.random.key(seed)`` has 2^32 seeds, all of which can be tried in
            minutes; a release refuses it.
    """
    check_key(key)
    if family(key) != "chacha20":
        raise TypeError(
            f"key: a release needs a 256-bit ChaCha20 key, not {family(key)}; "
            "use dpkernels.random.os_key(), or exact=False to simulate"
        )


def release_key_bytes(key: Array) -> bytes:
    """The 32 bytes of a key fit for a release.

    Raises:
        TypeError: not a typed ChaCha20 key.
    """
    check_release_key(key)
    return np.asarray(jax.random.key_data(key)).astype("<u4").tobytes()


def family(key: Array) -> str:
    """The name of the key's generator, such as "threefry2x32" or "chacha20"."""
    impl = jax.random.key_impl(key)
    return impl if isinstance(impl, str) else getattr(impl, "name", str(impl))
