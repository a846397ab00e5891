"""ChaCha20 in JAX: the RFC's vectors, OpenSSL's words, and a typed key whose streams never meet."""

import struct

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from dpkernels.random import chacha, host
from dpkernels.release import engines

SECRET = bytes(range(7, 39))
ZERO = bytes(32)

# RFC 8439: section 2.3.2, then appendix A.1, vectors 1 to 5. Key, block counter, nonce, key stream block.
VECTORS = {
    "2.3.2": (
        bytes(range(32)),
        1,
        bytes.fromhex("000000090000004a00000000"),
        "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
        "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e",
    ),
    "A.1 #1": (
        ZERO,
        0,
        bytes(12),
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586",
    ),
    "A.1 #2": (
        ZERO,
        1,
        bytes(12),
        "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
        "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f",
    ),
    "A.1 #3": (
        bytes(31) + b"\x01",
        1,
        bytes(12),
        "3aeb5224ecf849929b9d828db1ced4dd832025e8018b8160b82284f3c949aa5a"
        "8eca00bbb4a73bdad192b5c42f73f2fd4e273644c8b36125a64addeb006c13a0",
    ),
    "A.1 #4": (
        b"\x00\xff" + bytes(30),
        2,
        bytes(12),
        "72d54dfbf12ec44b362692df94137f328fea8da73990265ec1bbbea1ae9af0ca"
        "13b25aa26cb4a648cb9b9d1be65b2c0924a66c54d545ec1b7374f4872e99f096",
    ),
    "A.1 #5": (
        ZERO,
        0,
        bytes(11) + b"\x02",
        "c2c64d378cd536374ae204b9ef933fcd1a8b2288b3dfa49672ab765b54ee27c7"
        "8a970e0e955c14f3a88e741b97c286f75f8fc299e8148362fa198a39531bed6d",
    ),
}


def openssl(key, counter, nonce, count):
    """``count`` bytes of the key stream, straight from OpenSSL."""
    cipher = Cipher(algorithms.ChaCha20(key, struct.pack("<I", counter) + nonce), mode=None)
    return cipher.encryptor().update(bytes(count))


stream_words = jax.jit(chacha.stream_words, static_argnums=(1, 3, 4))


def words_of(key):
    return jnp.asarray(np.frombuffer(key, "<u4"))


@pytest.fixture
def key():
    return chacha.wrap(np.frombuffer(SECRET, "<u4"))


@pytest.mark.parametrize("vector", VECTORS.values(), ids=VECTORS)
def test_rfc_block_vectors(vector):
    key, counter, nonce, expected = vector
    block = chacha.blocks(words_of(key + struct.pack("<I", counter) + nonce), 1)
    assert np.asarray(block).astype("<u4").tobytes().hex() == expected
    assert openssl(key, counter, nonce, 64).hex() == expected


STREAMS = [(0, 1), (5, 127), (2**32 - 100, 300), (2**40 - 2, 128)]
WHOLE, PARTS = 1 << 26, 64
ORDINARY = [(5, 127, WHOLE), (2**32 - 100, 300, PARTS), (2**40 - 2, 128, PARTS)]


@pytest.mark.quick("1099511627774-128-64")
@pytest.mark.parametrize(
    ("first", "count", "most"),
    [
        pytest.param(*stream, most, marks=() if (*stream, most) in ORDINARY else pytest.mark.slow)
        for stream in STREAMS
        for most in (WHOLE, PARTS)
    ],
)
def test_the_gpus_kernel_makes_openssls_blocks(monkeypatch, first, count, most):
    """Run by JAX's own operations: whole programs and parts of one, counters that carry, streams of several kernels."""
    monkeypatch.setattr(chacha, "_MAX_BLOCKS", most)
    expected = np.empty(16 * count, "<u4")
    host.fill(expected, SECRET, 17, first)
    blocks = chacha.gpu_blocks(jnp.asarray(host.head(SECRET, 17, first)), count, interpret=True)
    np.testing.assert_array_equal(np.asarray(blocks).reshape(-1), expected)


@pytest.mark.parametrize("count", [24, 25, 100])
def test_tiles_make_openssls_blocks(monkeypatch, count):
    """Whole tiles and a part of one, and a counter that carries within the second tile."""
    monkeypatch.setattr(chacha, "_TILE", 24)
    expected, first = np.empty(16 * count, "<u4"), 2**32 - 40
    host.fill(expected, SECRET, 17, first)
    blocks = jax.jit(chacha.blocks, static_argnums=1)(jnp.asarray(host.head(SECRET, 17, first)), count)
    np.testing.assert_array_equal(np.asarray(blocks).reshape(-1), expected)


@pytest.mark.filterwarnings("error")
def test_a_users_settings_do_not_reach_the_programs():
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        words = jax.jit(lambda head: chacha.words_from(head, 77, 32))(jnp.asarray(host.head(SECRET, 17, 3)))
    expected = np.empty(77, "<u4")
    host.fill(expected, SECRET, 17, 3)
    np.testing.assert_array_equal(words, expected)


def test_a_device_with_other_words_is_refused(monkeypatch):
    engines.check_words.__wrapped__(jax.devices()[0])
    wrong = chacha.words_from
    monkeypatch.setattr(chacha, "words_from", lambda head, count, bits: wrong(head.at[8].add(1), count, bits))
    with pytest.raises(RuntimeError, match="other ChaCha20 words than OpenSSL"):
        engines.check_words.__wrapped__(jax.devices()[0])


@pytest.mark.quick("63-16", "1000-64")
@pytest.mark.parametrize("bits", [8, 16, 32, 64])
@pytest.mark.parametrize("count", [1, 63, 1000])
def test_words_are_the_host_stream_read_little_endian(bits, count):
    expected = np.empty(count, f"<u{bits // 8}")
    host.fill(expected, SECRET, 16, 5)
    with jax.enable_x64(True):
        words = stream_words(words_of(SECRET), 16, (5, 0), count, bits)
        assert words.dtype == expected.dtype
        np.testing.assert_array_equal(words, expected)


def test_host_stream_is_openssls():
    out = np.empty(1000, np.uint8)
    host.fill(out, SECRET, 17, 3)
    assert out.tobytes() == openssl(SECRET, 3, struct.pack("<III", 0, 17, 0), 1000)


def test_host_stream_spans_its_pieces():
    """Words past the first MiB, the size of one call to OpenSSL, go on where it ended."""
    whole, tail = np.empty((1 << 20) + 640, np.uint8), np.empty(640, np.uint8)
    host.fill(whole, SECRET, 17, 0)
    host.fill(tail, SECRET, 17, (1 << 20) // 64)
    np.testing.assert_array_equal(whole[1 << 20 :], tail)


@pytest.mark.parametrize("first", [2**32 - 2, 2**40 - 1])
@pytest.mark.parametrize("source", ["jax", "host"])
def test_block_counter_carries_past_32_bits(source, first):
    """Words 12 and 13 are one 64-bit counter: each block is OpenSSL's for its own pair of words."""
    blocks = [(number & 0xFFFFFFFF, number >> 32) for number in range(first, first + 4)]
    expected = b"".join(openssl(SECRET, low, struct.pack("<III", high, 16, 0), 64) for low, high in blocks)
    words = np.empty(64, "<u4")
    if source == "jax":
        words[:] = stream_words(words_of(SECRET), 16, (np.uint32(blocks[0][0]), np.uint32(blocks[0][1])), 64, 32)
    else:
        host.fill(words, SECRET, 16, first)
    assert words.tobytes() == expected


@pytest.mark.lengthy
@pytest.mark.quick("uint8", "uint64")
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64"])
def test_random_bits_of_a_typed_key(key, dtype):
    expected = np.empty(30, np.dtype(dtype))
    host.fill(expected, SECRET, chacha.BITS_STREAM, 0)
    with jax.enable_x64(True):
        bits = jax.random.bits(key, (5, 6), dtype)
    assert bits.dtype == dtype
    np.testing.assert_array_equal(bits, expected.reshape(5, 6))


@pytest.mark.thorough
def test_typed_key_under_jit(key):
    def draw(key):
        left, right = jax.random.split(key)
        return jax.random.bits(left, (3,)), jax.random.normal(jax.random.fold_in(right, 2), (3,))

    for inside, outside in zip(jax.jit(draw)(key), draw(key), strict=True):
        np.testing.assert_array_equal(inside, outside)


@pytest.mark.thorough
def test_typed_key_under_vmap(key):
    keys = jax.random.split(key, 4)
    together = jax.jit(jax.vmap(lambda one: jax.random.bits(one, (5,))))(keys)
    np.testing.assert_array_equal(together, np.stack([jax.random.bits(one, (5,)) for one in keys]))
    folded = jax.jit(jax.vmap(jax.random.fold_in, (None, 0)))(key, jnp.arange(4))
    alone = [jax.random.key_data(jax.random.fold_in(key, i)) for i in range(4)]
    np.testing.assert_array_equal(jax.random.key_data(folded), np.stack(alone))


@pytest.mark.lengthy
def test_split_has_the_shape_asked_for(key):
    flat, square = jax.random.split(key, 6), jax.random.split(key, (2, 3))
    assert square.shape == (2, 3)
    np.testing.assert_array_equal(jax.random.key_data(flat), jax.random.key_data(square).reshape(6, 8))


@pytest.mark.lengthy
def test_uses_of_a_key_share_no_words(key):
    """Random bits, children of split, of fold_in, a release's streams: no 64 bits occur twice in 2 MB."""
    folds = jax.jit(jax.vmap(jax.random.fold_in, (None, 0)))(key, jnp.arange(2000))
    uses = [
        np.asarray(jax.random.bits(key, (20_000,))),
        np.asarray(jax.random.key_data(jax.random.split(key, 2000))).ravel(),
        np.asarray(jax.random.key_data(folds)).ravel(),
        np.frombuffer(SECRET, "<u4"),
    ]
    for stream in (16, 17, 18, 19):
        uses.append(np.empty(100_000, "<u4"))
        host.fill(uses[-1], SECRET, stream, 0)
    pairs = np.concatenate(uses).view(np.uint64)
    assert len(np.unique(pairs)) == len(pairs)


@pytest.mark.parametrize("data", [0, 1, 77, 2**31, 2**32 - 1])
def test_host_fold_in_is_jaxs(key, data):
    child = jax.random.key_data(jax.random.fold_in(key, np.uint32(data)))
    assert host.fold_in(SECRET, data) == np.asarray(child).astype("<u4").tobytes()


def test_integer_seeds_are_refused():
    with pytest.raises(ValueError, match="256 bits"):
        jax.random.key(0, impl=chacha.implementation())
