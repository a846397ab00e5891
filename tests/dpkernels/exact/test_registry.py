"""Which objects have an exact sampler, and what is said of the others."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import pytest

import dpkernels as dpk
from dpkernels.exact import registry
from dpkernels.pytrees import pytree


class Unregistered(dpk.Additive):
    """A subclass without fields of its own, which JAX takes for a leaf."""


@dataclasses.dataclass(frozen=True)
class WithField(dpk.Additive):
    label: str = ""


class UnregisteredNoise(dpk.Laplace):
    """A distribution that JAX takes for a leaf."""


@pytree
@dataclasses.dataclass(frozen=True)
class Registered(dpk.Additive):
    """A subclass that is a pytree."""


NOISE = dpk.laplace(epsilon=1.0, sensitivity=1.0)


def with_noise(cls: Any) -> Any:
    return cls(NOISE.noise, 1.0, NOISE.epsilon, NOISE.delta)


@pytest.mark.parametrize(
    ("mechanism", "name"),
    [
        (with_noise(Unregistered), "Unregistered"),
        (with_noise(WithField), "WithField"),
        (dataclasses.replace(NOISE, noise=UnregisteredNoise(1.0)), "UnregisteredNoise"),
        (dataclasses.replace(NOISE, noise=UnregisteredNoise(1.0), sensitivity=jnp.ones(())), "UnregisteredNoise"),
    ],
)
def test_a_class_that_is_not_a_pytree_is_named(mechanism, name):
    for release in (dpk.exact_sampler, lambda mechanism: dpk.perturb(1.0, mechanism)):
        with pytest.raises(TypeError, match=f"mechanism: {name} is not a pytree; decorate its class"):
            release(mechanism)


@pytest.mark.lengthy
def test_a_subclass_that_is_a_pytree_has_its_sampler():
    sampler = dpk.exact_sampler(with_noise(Registered))
    assert sampler.certificate.to_dict() == dpk.exact_sampler(NOISE).certificate.to_dict()


@pytest.mark.parametrize("item", [[1.0], {"epsilon": 1.0}, 1.0, None])
def test_what_is_no_mechanism_is_named(item):
    with pytest.raises(TypeError, match=f"mechanism: {type(item).__name__} has no exact sampler"):
        dpk.exact_sampler(item)


def test_an_internal_error_is_not_taken_for_a_missing_hash(monkeypatch):
    """It is raised once, as it is: a second attempt would hide it."""
    calls = []

    def broken(mechanism):
        calls.append(mechanism)
        raise TypeError("an internal error")

    monkeypatch.setattr(registry, "_sampler", broken)
    with pytest.raises(TypeError, match="an internal error") as raised:
        dpk.exact_sampler(dataclasses.replace(NOISE, sensitivity=0.123))
    assert len(calls) == 1
    assert raised.value.__context__ is None
