"""The words of ``chacha.py`` on the CPU, from OpenSSL: the generator of a release on the CPU."""

from __future__ import annotations

import struct

import numpy as np

from dpkernels.random.chacha import FOLD_STREAM

_ZEROS = bytes(1 << 20)


def fill(out: np.ndarray, key: bytes, stream: int, first_block: int) -> None:
    """Fill ``out`` with the key stream of ``stream`` from a block on.

    Args:
        out: contiguous array of unsigned integers, filled in place.
        key: 32 bytes.
        stream: the stream's number, below 2^32.
        first_block: the 64-bit number of the first 64-byte block.
    """
    view = out.data.cast("B")
    while view:
        # OpenSSL counts blocks in 32 bits; the rest of our counter is fixed for a run of 2^32 blocks.
        run = 64 * ((1 << 32) - first_block % (1 << 32))
        _fill_run(view[:run], key, struct.pack("<QII", first_block, stream, 0))
        view, first_block = view[run:], first_block + run // 64


def _fill_run(view: memoryview, key: bytes, nonce: bytes) -> None:
    # Imported here: OpenSSL costs 30 ms at start-up and only a release on the CPU needs it.
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

    encryptor = Cipher(algorithms.ChaCha20(key, nonce), mode=None).encryptor()
    for at in range(0, len(view), len(_ZEROS)):
        piece = view[at : at + len(_ZEROS)]
        encryptor.update_into(memoryview(_ZEROS)[: len(piece)], piece)


def fold_in(key: bytes, data: int) -> bytes:
    """The 32 bytes of ``jax.random.fold_in(key, data)``, without compiling anything."""
    child = np.empty(8, "<u4")
    fill(child, key, FOLD_STREAM, data)
    return child.tobytes()
