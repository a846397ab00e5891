"""Keys: 256 bits from the operating system for a release, an integer seed for a simulation."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Hashable
from functools import reduce

import numpy as np

from dpkernels import checks
from dpkernels.jax_on_use import Array, Tracer, jax, jnp
from dpkernels.random import chacha, host


def os_key() -> Array:
    """Return a fresh typed ChaCha20 key: 256 bits from the operating system.

    A forked process never repeats its parent's keys. Never print or log a key: its repr in JAX contains its words.
    """
    return key_from_bytes(os.urandom(32))


def key_from_bytes(secret: bytes) -> Array:
    """Return the typed ChaCha20 key with these 32 bytes, to repeat a release after a crash.

    The bytes make it possible to remove the noise. Keep them as secret as the data, and destroy them with the data.
    Anything but bytes is a TypeError, and another number of them a ValueError.
    """
    if not isinstance(secret, bytes | bytearray | memoryview):  # The value is a secret: the error does not show it.
        raise TypeError(f"secret: is a {type(secret).__name__}; a key is made of 32 bytes, such as os.urandom(32)")
    if len(secret_bytes := bytes(secret)) != 32:
        raise ValueError(f"secret: has {len(secret_bytes)} bytes; a ChaCha20 key has 32")
    return chacha.wrap(np.frombuffer(secret_bytes, "<u4"))


def simulation_key(seed: int | Array) -> Array:
    """Return a typed Threefry key from an integer in 0..2^32 - 1: reproducible, guessable, for simulation only.

    A seed that is no integer is a TypeError, and one out of range a ValueError, since JAX would drop the higher bits.
    The range of a seed that JAX traces is unknown: of it only the type and the shape () are checked.
    """
    if isinstance(seed, Tracer):
        if seed.shape != () or not jnp.issubdtype(seed.dtype, jnp.integer):
            raise TypeError(f"seed: is traced, {seed.dtype} of shape {seed.shape}; one integer is needed")
    else:
        checks.integer_in("seed", seed, 0, (1 << 32) - 1)
    return jax.random.key(seed, impl="threefry2x32")


def check_key(key: Array) -> None:
    """Refuse what is not one typed key, with a TypeError."""
    if not (isinstance(key, Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)):
        raise TypeError(f"key: {type(key).__name__} is not a typed JAX key; make one with jax.random.key or os_key()")
    if key.shape != ():
        raise TypeError(f"key: has shape {key.shape}; one key is needed, of shape ()")


def typed_simulation_key(key: Array) -> Array:
    """Return one typed key for a simulation: a typed key itself, or the words of a legacy ``jax.random.PRNGKey``."""
    if isinstance(key, Array) and key.dtype == np.uint32 and key.shape == (2,):
        return jax.random.wrap_key_data(key, impl="threefry2x32")
    check_key(key)
    return key


def check_release_key(key: Array) -> None:
    """Refuse a key that is not fit for a release, with a TypeError; it may be traced."""
    check_key(key)
    # ``jax.random.key(seed)`` has 2^32 seeds, all of which can be tried in minutes.
    if generator_name(key) != "chacha20":
        raise TypeError(
            f"key: a release needs a 256-bit ChaCha20 key, not {generator_name(key)}; "
            "use dpkernels.random.os_key(), or exact=False to simulate"
        )


def release_key_bytes(key: Array) -> bytes:
    """Return the 32 bytes of a key, after ``check_release_key``."""
    check_release_key(key)
    return np.asarray(jax.random.key_data(key)).astype("<u4").tobytes()


def generator_name(key: Array) -> str:
    """Return the name of the key's generator, such as "threefry2x32" or "chacha20"."""
    impl = jax.random.key_impl(key)
    return impl if isinstance(impl, str) else getattr(impl, "name", str(impl))


def column_words(name: Hashable) -> tuple[int, ...]:
    """Return the eight 32-bit words that are folded into a table's key to make the key of a column.

    They are the SHA-256 hash of a label and the encoded name, so two columns have the same words only if they have the
    same name. ``docs/exact.md`` gives the argument.
    """
    digest = hashlib.sha256(b"dpkernels column name\0" + _encoded(name)).digest()
    return tuple(int(word) for word in np.frombuffer(digest, "<u4"))


def _encoded(name: Hashable) -> bytes:
    """Return an injective encoding: a letter for the type, and in tuples the length of every part."""
    # Names that are equal must have one encoding, and 1.0 and True equal 1: other types are a TypeError.
    if isinstance(name, str):
        return b"s" + name.encode("utf-8", errors="surrogatepass")
    if isinstance(name, int | np.integer) and not isinstance(name, bool):
        return b"i%d" % int(name)
    if isinstance(name, tuple):
        codes = [_encoded(code) for code in name]
        return b"t" + b"".join(b"%d:%s" % (len(code), code) for code in codes)
    raise TypeError(
        f"column name {name!r}: is a {type(name).__name__}; noise is drawn with a key that is derived from the name, "
        "which must be a string, an integer or a tuple of these: rename the column"
    )


def column_secret(secret: bytes, name: Hashable) -> bytes:
    """Return the 32-byte key of a table's column, derived from the table's key and the name (``column_words``)."""
    return reduce(host.fold_in, column_words(name), secret)


def column_key(key: Array, name: Hashable) -> Array:
    """Return the same as ``column_secret`` for a typed key of any generator."""
    return reduce(jax.random.fold_in, map(np.uint32, column_words(name)), key)
