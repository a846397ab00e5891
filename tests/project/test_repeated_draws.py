"""Tests draw from the operating system what depends on their name alone; only the packages' own draws are repeated."""

import hashlib
import os

import numpy as np

import dpkernels as dpk
from dpkernels.random.keys import release_key_bytes


def test_what_a_test_draws_is_drawn_again_in_its_next_run(request):
    first, second = (release_key_bytes(dpk.os_key()) for _ in range(2))
    assert first == hashlib.shake_256(f"{request.node.nodeid} 0".encode()).digest(32)
    assert second == hashlib.shake_256(f"{request.node.nodeid} 1".encode()).digest(32)


def test_others_draw_from_the_system(system_bytes):
    keys = [release_key_bytes(dpk.os_key()) for _ in range(2)]
    assert len({*keys, os.urandom(32), os.urandom(32)}) == 4


def test_the_draws_of_a_release_differ():
    noise = [dpk.perturb(np.zeros(5), dpk.laplace(epsilon=1.0)).tolist() for _ in range(2)]
    assert noise[0] != noise[1]
