"""Exact samplers travel to other processes by pickle, and make the same reports there."""

import pickle

import numpy as np
import pytest
from exact_registry import EVERY, exact

import dpkernels as dpk

KEY = dpk.key_from_bytes(bytes(range(32)))
SPAN = {"epsilon": 1.0, "lower": 0.1, "upper": 2.0}
OTHERS = {
    "optimal": lambda: dpk.optimal(**SPAN),
    "central": lambda: dpk.central_piecewise(**SPAN, sensitivity=0.5),
    "square-wave": lambda: dpk.square_wave(**SPAN),
    "laplace": lambda: dpk.laplace(epsilon=1.0, sensitivity=0.7),
    "discrete-gaussian": lambda: dpk.discrete_gaussian(sigma=5.0, sensitivity=1.0, epsilon=1.0, delta=1e-6),
    "multivariate": lambda: dpk.multivariate(**SPAN, dimensions=3, sampled=1),
    "vectors": lambda: dpk.on_vectors(dpk.laplace(epsilon=1.0, sensitivity=0.7), dimensions=3, norm="l1"),
}


def made(name):
    return exact(name, 1.0) if name in EVERY else dpk.exact_sampler(OTHERS[name]())


def values(sampler, shape):
    low, high = (np.clip(np.asarray(end, float), -2000.0, 2000.0) for end in sampler.mechanism.input_interval)
    return np.random.default_rng(3).uniform(low, high, shape)


@pytest.mark.parametrize("name", [*EVERY, *OTHERS])
def test_a_sampler_that_was_pickled_makes_the_same_reports(name):
    form = made(name)
    x = values(form, (40, 3))
    expected = dpk.perturb(x, form, key=KEY)  # fills what is cached and what is compiled
    again = pickle.loads(pickle.dumps(form))
    np.testing.assert_array_equal(dpk.perturb(x, again, key=KEY), expected)
    assert again.certificate.to_dict() == form.certificate.to_dict()
    assert len(pickle.dumps(again)) == len(pickle.dumps(form))
