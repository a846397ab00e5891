"""``perturb`` for use inside ``jit``, ``vmap``, ``shard_map`` and ``lax.scan``: a pure function of arrays."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import partial

import jax
import jax.custom_batching
import jax.numpy as jnp
import numpy as np
from jax import Array

from dpkernels.exact.sampler import ExactSampler
from dpkernels.mechanisms.additive import AdditiveVector, check_dimensions
from dpkernels.numerics import Real, RealArray
from dpkernels.random import chacha
from dpkernels.random.keys import check_release_key
from dpkernels.release.engines import check_words
from dpkernels.release.inputs import Bounds, report_type
from dpkernels.release.process import kernel_settings


def perturb_traced(key: Array, sampler: ExactSampler, x: Array) -> Array:
    """Perturb ``x`` exactly inside a JAX program, with the same bits as ``perturb`` for this key and input.

    The guarantee is that of ``perturb`` with clipped inputs. A compiled program cannot raise errors, so inputs outside
    the interval are moved to its nearest end, and NaN to its lower end. Use a key for one release only, and keep it as
    secret as the data. In a loop, fold the step number into the key. Under ``vmap``, map over keys too; one key for
    several rows is refused, since the rows would have the same noise.

    In ``shard_map``, every device with values of its own releases them with noise of its own, under a key that is
    derived from ``key`` and the device's index. Devices that hold the same values make the same reports. JAX keeps
    track of which devices hold the same values, except in ``pmap`` and in ``shard_map`` with ``check_vma=False``: these
    are refused on more than one device.

    Args:
        key: a ChaCha20 key, such as one that ``os_key()`` made outside of the program.
        sampler: an exact sampler that ``exact_sampler`` made outside of the program.
        x: values of any shape; for mechanisms on vectors the last axis holds the coordinates.

    Returns:
        Reports of the shape of x: float32 for float32 and narrower floats, else float64, or float32 where JAX's 64-bit
        types are off.

    Raises:
        TypeError: not an exact sampler, or not a ChaCha20 key.
        ValueError: x is empty, or holds, where it is not traced, a value that ``perturb`` refuses. The type is too
            coarse for the mechanism, or vectors have another length, or ``vmap`` maps over x with one key. Values on a
            lattice are not of int32 or a narrower integer type, all of whose values must be on the lattice. The program
            runs on several devices, and JAX does not know which of them hold the same values.
        RuntimeError: the device's ChaCha20 words are wrong.

    Example:
        >>> import jax, jax.numpy as jnp, dpkernels as dpk
        >>> sampler = dpk.exact_sampler(dpk.piecewise(epsilon=1.0, lower=-1.0, upper=1.0))
        >>> step = jax.jit(lambda key, x: dpk.perturb_traced(key, sampler, jnp.tanh(x)).mean())
        >>> step(dpk.os_key(), jnp.zeros(1000)).shape
        ()
    """
    if not isinstance(sampler, ExactSampler):
        raise TypeError(
            f"sampler: {type(sampler).__name__} is not an exact sampler of single values, as exact_sampler(m) returns"
        )
    check_release_key(key)
    values = jnp.asarray(x)
    return release_replicated(_device_key(key, values), sampler, values)


def release_replicated(key: Array, sampler: ExactSampler, values: Array) -> Array:
    """Return ``perturb_traced`` of values that are the same on all devices, which make the same reports of them."""
    if (device := jax.local_devices()[0]).platform != "cpu":
        check_words(device)
    if values.size == 0:
        raise ValueError("x: is empty; at least one value is needed")
    if isinstance(sampler.mechanism, AdditiveVector):
        check_dimensions(sampler.mechanism.dimensions, values.shape)
        _check_lattice(sampler.mechanism.lattice, values)
    if not isinstance(values, jax.core.Tracer):
        Bounds.of(sampler, clip=False).check_on_device(values)
    source, dtype = np.dtype(values.dtype), np.dtype(jax.dtypes.canonicalize_dtype(report_type(values.dtype)))
    low, high, _ = Bounds.of(sampler, clip=True).valid_range(source, dtype)
    with kernel_settings(x64=True):
        typed = values.astype(dtype)
        clipped = jnp.where(jnp.isnan(typed), low, jnp.clip(typed, low, high))
        reports = with_mapped_keys(partial(_reports, sampler))
        return reports(jax.random.key_data(key), clipped.reshape(-1)).reshape(values.shape)


def device_axes() -> tuple[str, ...]:
    """Return the axes of ``shard_map`` or ``pmap`` along which several devices run the program that is traced."""
    mesh = jax.sharding.get_abstract_mesh()
    return tuple(name for name in mesh.manual_axes if mesh.shape[name] > 1)


def varying_axes(value: Array, axes: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return those of the axes along which the value differs between devices; None if JAX does not keep track."""
    if not jax.typeof(jax.lax.axis_index(axes)).manual_axis_type.varying:
        return None
    return tuple(name for name in axes if name in jax.typeof(value).manual_axis_type.varying)


def _device_key(key: Array, values: Array) -> Array:
    """Return the key of this device's values, which is the given key where every device has the same values."""
    if not (axes := device_axes()):
        return key
    if (axes_of_values := varying_axes(values, axes)) is None:
        raise ValueError(
            f"x: in pmap, or in shard_map with check_vma=False, it is unknown which devices along {axes[0]!r} hold the "
            "same values, and these must have the same noise; use shard_map with check_vma=True, the default"
        )
    if not axes_of_values:
        return key
    index = jax.lax.axis_index(axes_of_values)
    return chacha.wrap(chacha.stream_words(jax.random.key_data(key), chacha.DEVICE_STREAM, (index, 0), 8, 32))


def _check_lattice(lattice: Real | None, values: Array) -> None:
    """Refuse values that may be off the lattice: all except integers up to int32 on a lattice of all integers.

    Such integers are exact in float64, and no clipping moves them.
    """
    if lattice is None:
        return
    exact = np.issubdtype(values.dtype, np.integer) and values.dtype.itemsize <= 4 and values.dtype != np.uint32
    if not (exact and Fraction(float(lattice)).numerator == 1):
        raise ValueError(
            f"x: has type {values.dtype}; values on the lattice {float(lattice):g} must be integers, of int32 or a "
            "narrower type, all of which must be on the lattice"
        )
    if jax.dtypes.canonicalize_dtype(np.float64) != np.float64:
        raise ValueError("x: integers on a lattice need 64-bit reports; call this under jax.enable_x64(True)")


def _reports(sampler: ExactSampler, key: Array, x: Array) -> RealArray:
    words = [chacha.stream_words(key, need.stream, (0, 0), len(x), need.bits) for need in sampler.words]
    if getattr(sampler.mechanism, "lattice", None) is not None:
        words[1] = jnp.zeros_like(words[1])  # Values on the lattice are whole cells, so that rounding moves none.
    noise = sampler.words[0]
    return sampler.complete_reports(
        x, *words, noise_words=lambda turn: chacha.stream_words(key, noise.stream, (0, 0), len(x), noise.bits, turn)
    )


def with_mapped_keys(reports: Callable[..., Real]) -> Callable[..., Array]:
    """Return a function of key and values over both of which ``vmap`` maps."""
    guarded = jax.custom_batching.custom_vmap(reports)

    def rule(size: int, batched: list[bool], key: Array, x: Array) -> tuple[Array, bool]:
        if not batched[0]:
            raise ValueError(f"key: is one for {size} rows under vmap, which would have the same noise; split it")
        return with_mapped_keys(jax.vmap(reports, (0, 0 if batched[1] else None)))(key, x), True

    guarded.def_vmap(rule)
    return guarded
