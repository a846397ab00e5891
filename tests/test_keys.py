"""Keys: fresh from the operating system, refused where they are guessable, never repeated by a fork."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpkernels as dpk
from dpkernels.random.keys import release_key_bytes

FORKING = """
import os
from dpkernels.release import perturb as perturbation
from dpkernels.random.keys import os_key, release_key_bytes

inherited = perturbation._release_secret(None)  # Whatever state there is, the children inherit it.

def tell():
    os.write(1, (perturbation._release_secret(None).hex() + chr(10)).encode())
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


@pytest.mark.parametrize("key", [jax.random.PRNGKey(0), jax.random.split(jax.random.key(0)), 0])
def test_a_simulation_refuses_what_is_not_one_typed_key(key):
    with pytest.raises(TypeError, match="key"):
        dpk.perturb(np.ones(3), dpk.duchi(epsilon=1.0, lower=0.0, upper=2.0), key=key, exact=False)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_processes_share_no_randomness():
    done = subprocess.run([sys.executable, "-c", FORKING], capture_output=True, text=True, check=True)
    secrets = done.stdout.split()
    assert len(secrets) == 9
    assert len(set(secrets)) == 9


@pytest.mark.parametrize("seed", [-1, 1 << 32, 1 << 40])
def test_a_seed_that_jax_would_cut_is_refused(seed):
    with pytest.raises(ValueError, match="seed"):
        dpk.simulation_key(seed)
