"""Keys: fresh from the operating system, refused where they are guessable, never repeated by a fork."""

import hashlib
import os
import struct
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

import dpkernels as dpk
from dpkernels.random.keys import column_key, column_secret, column_words, release_key_bytes

pytestmark = pytest.mark.usefixtures("system_bytes")

FORKING = """
import os
from dpkernels.release import perturb as perturbation
from dpkernels.random.keys import os_key, release_key_bytes

inherited = perturbation._secret(None, True)  # Whatever state there is, the children inherit it.

def tell():
    os.write(1, (perturbation._secret(None, True).hex() + chr(10)).encode())
    os.write(1, (release_key_bytes(os_key()).hex() + chr(10)).encode())

children = []
for _ in range(3):
    child = os.fork()
    if child == 0:
        tell()
        os._exit(0)
    children.append(child)
for child in children:
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
tell()
print(inherited.hex())
"""


def test_operating_system_keys_differ():
    secrets = {release_key_bytes(dpk.os_key()) for _ in range(100)}
    assert len(secrets) == 100
    assert all(len(secret) == 32 for secret in secrets)


def test_every_byte_of_an_operating_system_key_varies():
    """Over 100 keys, a byte that is constant has probability 256^-99."""
    keys = np.array([list(release_key_bytes(dpk.os_key())) for _ in range(100)])
    assert (keys.std(axis=0) > 0).all()


def test_bytes_make_the_key_they_name():
    secret = bytes(range(32))
    assert release_key_bytes(dpk.key_from_bytes(secret)) == secret


@pytest.mark.parametrize("length", [0, 16, 31, 33, 64])
def test_keys_of_another_length_are_refused(length):
    with pytest.raises(ValueError, match=f"{length} bytes"):
        dpk.key_from_bytes(bytes(length))


def test_simulation_keys_are_reproducible():
    first, again, other = (jax.random.key_data(dpk.simulation_key(seed)) for seed in (7, 7, 8))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize(
    "key",
    [
        jax.random.key(0),
        jax.random.PRNGKey(0),
        jnp.arange(8, dtype=jnp.uint32),
        np.arange(8, dtype=np.uint32),
        jax.random.split(dpk.key_from_bytes(bytes(32)), 2),
        bytes(32),
        0,
    ],
    ids=["threefry", "raw threefry", "raw words", "numpy words", "two keys", "bytes", "seed"],
)
def test_a_release_refuses_other_keys(key):
    x = np.ones(3)
    with pytest.raises(TypeError, match="key"):
        dpk.perturb(x, dpk.duchi(epsilon=1.0, lower=0.0, upper=2.0), key=key)


@pytest.mark.parametrize("key", [jax.random.split(jax.random.key(0)), jnp.arange(8, dtype=jnp.uint32), 0])
def test_a_simulation_refuses_what_is_not_one_typed_key(key):
    with pytest.raises(TypeError, match="key"):
        dpk.perturb(np.ones(3), dpk.duchi(epsilon=1.0, lower=0.0, upper=2.0), key=key, exact=False)


@pytest.mark.lengthy
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_processes_share_no_randomness():
    done = subprocess.run([sys.executable, "-c", FORKING], capture_output=True, text=True, check=True)
    secrets = done.stdout.split()
    assert len(secrets) == 9
    assert len(set(secrets)) == 9


def test_a_simulation_takes_a_legacy_key_for_the_typed_one_with_its_words():
    x, m = np.ones(3), dpk.duchi(epsilon=1.0, lower=0.0, upper=2.0)
    typed, legacy = jax.random.key(3, impl="threefry2x32"), jax.random.PRNGKey(3)
    expected = dpk.perturb(x, m, key=typed, exact=False)
    np.testing.assert_array_equal(dpk.perturb(x, m, key=legacy, exact=False), expected)


def test_a_seed_may_be_traced():
    words = jax.vmap(lambda seed: jax.random.key_data(dpk.simulation_key(seed)))(jnp.arange(3))
    expected = [jax.random.key_data(dpk.simulation_key(seed)) for seed in range(3)]
    np.testing.assert_array_equal(words, expected)
    with pytest.raises(TypeError, match="seed: is traced, float32"):
        jax.jit(lambda seed: jax.random.key_data(dpk.simulation_key(seed)))(1.0)


@pytest.mark.parametrize("seed", [-1, 1 << 32, 1 << 40])
def test_a_seed_that_jax_would_cut_is_refused(seed):
    with pytest.raises(ValueError, match="seed"):
        dpk.simulation_key(seed)


@pytest.mark.parametrize("thing", [None, "a" * 32, [0] * 32, 32])
def test_a_key_of_what_is_not_bytes_is_refused_without_being_shown(thing):
    with pytest.raises(TypeError, match="32 bytes") as refused:
        dpk.key_from_bytes(thing)
    assert "aaaa" not in str(refused.value)


# Keys of columns, derived from their names.

SECRET = bytes(range(9, 41))


def written_apart(secret, encoded):
    """Return the key that docs/exact.md describes, by functions of other libraries alone: eight blocks of ChaCha20."""
    for word in struct.unpack("<8I", hashlib.sha256(b"dpkernels column name\0" + encoded).digest()):
        nonce = struct.pack("<QII", word, 2, 0)  # The block's number is the word; stream 2 is that of fold_in.
        secret = Cipher(ChaCha20(secret, nonce), mode=None).encryptor().update(bytes(32))
    return secret


@pytest.mark.lengthy
@pytest.mark.parametrize(
    ("name", "encoded"),
    [
        ("age", b"sage"),
        ("", b"s"),
        ("Größe", b"sGr\xc3\xb6\xc3\x9fe"),
        ("\ud800", b"s\xed\xa0\x80"),  # half of a pair, which pandas allows in a name
        (7, b"i7"),
        (-(10**30), b"i-1" + b"0" * 30),
        (np.int8(7), b"i7"),
        (("a", 1), b"t2:sa2:i1"),
        (("a", ("b", -2)), b"t2:sa10:t2:sb3:i-2"),
        ((), b"t"),
    ],
)
def test_a_column_key_is_the_documented_function_of_key_and_name(name, encoded):
    secret = column_secret(SECRET, name)
    assert secret == written_apart(SECRET, encoded)
    assert secret == release_key_bytes(column_key(dpk.key_from_bytes(SECRET), name))


def test_names_that_differ_have_keys_that_differ():
    """Names that a careless encoding would confuse."""
    names = ["1", 1, -1, "i1", "s1", ("1",), (1,), ("1", ""), ("", "1"), ("1:s", ""), (("1",),), ("a", "b"), ("ab",)]
    names += ["ab", ("a", ("b",)), (("a", "b"),), ("2:sa",), "é", "e\N{COMBINING ACUTE ACCENT}", "t2:sa", "", ()]
    assert len({column_words(name) for name in names}) == len(names)
    assert len({column_secret(SECRET, name) for name in names}) == len(names)


@pytest.mark.parametrize("name", [1.0, True, None, b"age", ("a", 1.0), ("a", None), np.bool_(True), np.float64(2)])
def test_names_without_one_encoding_are_refused(name):
    with pytest.raises(TypeError, match="string, an integer or a tuple"):
        column_words(name)


def test_simulations_derive_their_keys_likewise():
    one, other = (column_key(dpk.simulation_key(3), name) for name in ("a", "b"))
    folded = dpk.simulation_key(3)
    for word in column_words("a"):
        folded = jax.random.fold_in(folded, np.uint32(word))
    assert jnp.array_equal(jax.random.key_data(one), jax.random.key_data(folded))
    assert not jnp.array_equal(jax.random.key_data(one), jax.random.key_data(other))
