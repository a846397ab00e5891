"""The random words of a release on the CPU: ChaCha20 of OpenSSL, with the same words as ``chacha.py``."""

from __future__ import annotations

import struct

import numpy as np

from dpkernels.random.chacha import FOLD_STREAM

_COUNTER = struct.Struct("<QII")

# Never written, so that an operating system keeps one page for all of it, which stays in a core's cache. A stream of a
# chunk is then one call of OpenSSL: threads wait for the interpreter's lock after each.
_ZEROS = np.zeros(1 << 21, np.uint8).data.toreadonly()


class Keystream:
    """The key streams of one key of 32 bytes; for one thread at a time."""

    def __init__(self, key: bytes) -> None:
        # Imported here: OpenSSL costs 30 ms at start-up and only a release on the CPU needs it.
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

        self._encryptor = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()

    def fill(self, out: np.ndarray, stream: int, first_block: int, turn: int = 0) -> None:
        """Fill contiguous unsigned integers with a stream's words from the 64-byte block number, below 2^64, on.

        Every turn, below 2^32, has a stream of its own.
        """
        view, size, filled = out.data.cast("B"), out.nbytes, 0
        while filled < size:
            block = first_block + filled // 64
            # OpenSSL counts blocks in 32 bits; the rest of our counter is fixed for a run of 2^32 blocks.
            length = min(size - filled, _ZEROS.nbytes, 64 * ((1 << 32) - block % (1 << 32)))
            self._encryptor.reset_nonce(_COUNTER.pack(block, stream, turn))
            self._encryptor.update_into(_ZEROS[:length], view[filled : filled + length])
            filled += length


def fill(out: np.ndarray, key: bytes, stream: int, first_block: int) -> None:
    """Fill ``out`` with the words of one stream of a key (``Keystream``)."""
    Keystream(key).fill(out, stream, first_block)


def head(key: bytes, stream: int, block: int) -> np.ndarray:
    """Return words 4 to 15 of a block's state, which ``chacha.words_from`` takes."""
    return np.frombuffer(key + _COUNTER.pack(block, stream, 0), "<u4").astype(np.uint32)


def fold_in(key: bytes, data: int) -> bytes:
    """Return the 32 bytes of ``jax.random.fold_in(key, data)``, without compiling anything."""
    child = np.empty(8, "<u4")
    fill(child, key, FOLD_STREAM, data)
    return child.tobytes()
