"""A batch is its entries: every quantity of a batch of three is what three single mechanisms have."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import ALL
from noise_registry import LAWS

import dpkernels as dpk
from dpkernels import numerics
from dpkernels.batches import distinct_entries, flat_leaves, leaves, map_leaves
from dpkernels.distributions.discrete import DiscreteGaussian, DiscreteLaplace
from dpkernels.distributions.generalised_normal import GeneralisedNormal
from dpkernels.distributions.logistic import Logistic
from dpkernels.distributions.student import Student
from dpkernels.mechanisms.windowed import minima
from dpkernels.mechanisms.windowed.bases import Constant
from dpkernels.mechanisms.windowed.mechanism import _excess, _excess_bound, _max_excess, critical_points
from dpkernels.mechanisms.windowed.windows import Sine, Triangle
from dpkernels.solve import refined_maximum

NOISE = LAWS | {
    "logistic": Logistic(0.7),
    "student": Student(1.3, 5.0),
    "generalised-normal": GeneralisedNormal(1.1, 1.4),
    "discrete-laplace": DiscreteLaplace(2.5, 0.5),
    "discrete-gaussian": DiscreteGaussian(1.7),
}
EVERY = ALL | {f"additive-{name}": dpk.Additive(noise) for name, noise in NOISE.items()}
FACTORS = np.array([1.0, 0.99, 0.97])
QUICK = ("piecewise-0.5", "triangle-quartic0.3-5-w1.3", "hybrid-1", "optimal-1", "central-piecewise-1", "duchi-0.1")
QUICK_NOISE = ("additive-laplace", "additive-merged", "additive-recycled-gaussian", "additive-discrete-laplace")

over_every = pytest.mark.parametrize("name", EVERY)


def three(m):
    """The mechanism and two with other parameters, as a batch."""
    return map_leaves(lambda leaf, axes: leaf if axes else leaf * FACTORS, m)


def entries(batch):
    return [batch[i] for i in range(3)]


def inputs(m):
    if isinstance(m, dpk.Additive):
        return np.array([-2.0, 0.0, 1.5, 30.0])
    low, high = (float(end) for end in m.input_interval)
    return low + (high - low) * np.array([0.0, 0.13, 0.5, 1.0])


def columns(of_entry, batch):
    """A function of every entry, stacked along the last axis."""
    return np.stack(np.broadcast_arrays(*map(of_entry, entries(batch))), -1)


def grids(batch):
    x = columns(inputs, batch)
    u = np.array([0.03, 0.4, 0.77, 0.999])[:, None] + 0 * x
    return x, u


def close(value, expected, batch):
    expected = np.asarray(expected)
    size = np.abs(expected[np.isfinite(expected)]).max(initial=1e-300)
    np.testing.assert_allclose(value, expected, rtol=1e-12, atol=1e-12 * size)


QUANTITIES = {
    "pdf": lambda m, y, x: m.pdf(y, x),
    "cdf": lambda m, y, x: m.cdf(y, x),
    "mass": lambda m, y, x: m.mass(y, x),
    "log_prob": lambda m, y, x: m.log_prob(y, x),
    "mean": lambda m, y, x: m.mean(x),
    "variance": lambda m, y, x: m.variance(x),
    "absolute_error": lambda m, y, x: m.absolute_error(x),
    "probability_within": lambda m, y, x: m.probability_within(x, 0.31 * abs(y - x)),
    "error_bound": lambda m, y, x: m.error_bound(x),
    "worst_variance": lambda m, y, x: m.worst_variance,
    "low": lambda m, y, x: m.output_interval[0],
    "high": lambda m, y, x: m.output_interval[1],
    "places": lambda m, y, x: m.atoms(x)[0],
    "masses": lambda m, y, x: m.atoms(x)[1],
}


@pytest.mark.lengthy
@pytest.mark.quick(*QUICK, *QUICK_NOISE)
@over_every
def test_quantities_of_a_batch_are_those_of_its_entries(name):
    batch = three(EVERY[name])
    assert batch.batch_shape == (3,)
    x, u = grids(batch)
    y = batch.icdf(u, x)
    close(y, np.stack([m.icdf(u[:, i], x[:, i]) for i, m in enumerate(entries(batch))], -1), batch)
    for quantity in QUANTITIES.values():
        expected = [np.asarray(quantity(m, y[:, i], x[:, i])) for i, m in enumerate(entries(batch))]
        close(quantity(batch, y, x), np.stack(expected, -1), batch)


@pytest.mark.lengthy
@pytest.mark.quick("piecewise-0.5", "additive-laplace")
@over_every
def test_jax_quantities_and_samples_of_a_batch(name):
    """Under jit; by vmap over the batch; and by a gradient in the parameters."""
    with jax.enable_x64(True):
        batch = three(EVERY[name])
        x, u = grids(batch)
        y = batch.icdf(u, x)
        traced = jax.tree.map(jnp.asarray, batch)
        moving, still = _numbers_that_move(traced)

        def variance(moving, x):
            return _joined(moving, still).variance(x)

        expected = batch.variance(x)
        close(jax.jit(variance)(moving, x), expected, batch)
        close(jax.vmap(lambda m, x: m.variance(x), (0, 1), 1)(flat_leaves(traced), x), expected, batch)
        # Off the atoms, next to which rounding decides whether one counts.
        beside = y + 1e-5 * np.abs(y - x) + 1e-9 * np.abs(x)
        close(jax.jit(lambda m, y, x: m.cdf(y, x))(traced, beside, x), batch.cdf(beside, x), batch)
        gradient = jax.tree.leaves(jax.grad(lambda m: variance(m, x).sum())(moving))
        assert all(np.isfinite(leaf).all() and leaf.shape == (3,) for leaf in gradient)
        key = dpk.simulation_key(1)
        for method in ("mixture", "inverse"):
            reports = batch.sample(key, x, method=method)
            assert reports.shape == x.shape
            assert np.isfinite(reports).all()
            # The entries draw from the same uniform numbers, those of the flat index.
            uniform = np.asarray(dpk.Additive(dpk.Laplace(1.0)).noise.cdf(_laplace(key, x.shape)))
            single_reports = [np.asarray(m.icdf(uniform[:, i], x[:, i])) for i, m in enumerate(entries(batch))]
            if method == "inverse":
                np.testing.assert_allclose(
                    reports, np.stack(single_reports, -1), rtol=1e-6, atol=1e-9 * np.abs(single_reports).max()
                )


def _laplace(key, shape):
    return np.asarray(dpk.Additive(dpk.Laplace(1.0)).sample(key, np.zeros(shape), method="inverse"))


def _numbers_that_move(batch):
    leaves_, structure = jax.tree.flatten(batch)
    return [leaf if jnp.ndim(leaf) == 1 else None for leaf in leaves_], (leaves_, structure)


def _joined(moving, still):
    fixed, structure = still
    return jax.tree.unflatten(structure, [a if a is not None else b for a, b in zip(moving, fixed, strict=True)])


CONSTRUCTORS = {
    "piecewise": lambda e, low, high: dpk.piecewise(epsilon=e, lower=low, upper=high),
    "central objective": lambda e, low, high: dpk.piecewise(epsilon=e, lower=low, upper=high, objective="central"),
    "triangle": lambda e, low, high: dpk.piecewise_triangle(epsilon=e, lower=low, upper=high),
    "wang2019": lambda e, low, high: dpk.piecewise_wang2019(epsilon=e, lower=low, upper=high),
    "duchi": lambda e, low, high: dpk.duchi(epsilon=e, lower=low, upper=high),
    "hybrid": lambda e, low, high: dpk.hybrid(epsilon=e, lower=low, upper=high),
    "square wave": lambda e, low, high: dpk.square_wave(epsilon=e, lower=low, upper=high),
    "sine": lambda e, low, high: dpk.composite("sine", epsilon=e, lower=low, upper=high, width=0.7),
    "best sine": lambda e, low, high: dpk.composite("sine", epsilon=e, lower=low, upper=high),
    "laplace": lambda e, low, high: dpk.laplace(epsilon=e, sensitivity=high - low),
    "logistic": lambda e, low, high: dpk.logistic(epsilon=e, sensitivity=high - low),
    "student": lambda e, low, high: dpk.student(epsilon=e, sensitivity=high - low),
    "staircase": lambda e, low, high: dpk.staircase(epsilon=e, sensitivity=high - low),
    "truncated laplace": lambda e, low, high: dpk.truncated_laplace(epsilon=e, delta=1e-6, sensitivity=high - low),
    "truncated gaussian": lambda e, low, high: dpk.truncated_gaussian(sigma=e, delta=1e-6, sensitivity=high - low),
    "central": lambda e, low, high: dpk.central_piecewise(
        epsilon=e, lower=low, upper=high, sensitivity=(high - low) / 3, steps=2
    ),
}


@pytest.mark.lengthy
@pytest.mark.quick("piecewise", "hybrid", "laplace", "staircase", "wang2019")
@pytest.mark.parametrize("name", CONSTRUCTORS)
def test_a_constructor_of_arrays_makes_what_it_makes_of_numbers(name):
    """The parameters are the same bits, those that are searched too."""
    budgets, lower = np.array([0.37, 1.0, 3.21]), np.array([0.0, -1.5, 1000.0])
    upper = lower + np.array([1.0, 7.7, 0.3])
    batch = CONSTRUCTORS[name](budgets, lower, upper)
    singles = [CONSTRUCTORS[name](*entry) for entry in zip(*(a.tolist() for a in (budgets, lower, upper)), strict=True)]
    assert list(batch) == singles
    assert batch == CONSTRUCTORS[name](budgets, lower, upper)
    assert hash(batch) == hash(batch[:])
    assert batch != CONSTRUCTORS[name](budgets[::-1], lower, upper)


def test_parameters_broadcast_and_entries_are_chosen_as_of_an_array():
    batch = dpk.laplace(epsilon=np.array([[0.5], [1.0]]), sensitivity=np.array([1.0, 2.0, 3.0]))
    assert batch.batch_shape == (2, 3)
    assert len(batch) == 2
    assert batch[1, 2] == dpk.laplace(epsilon=1.0, sensitivity=3.0)
    assert batch[:, 1].batch_shape == (2,)
    assert batch[1][0] == batch[1, 0]
    assert [row.batch_shape for row in batch] == [(3,), (3,)]
    assert "0.5 to 1" in repr(batch)
    assert len(repr(dpk.laplace(epsilon=np.linspace(1, 2, 10**5)))) < 300
    with pytest.raises(TypeError, match="no length"):
        len(batch[0, 0])
    with pytest.raises(TypeError, match="no entries"):
        batch[0, 0][0]
    assert dpk.laplace(epsilon=1.0)


def test_a_batch_keeps_the_numbers_that_were_checked():
    budgets = np.array([0.5, 1.0])
    batch = dpk.laplace(epsilon=budgets)
    budgets[0] = 20.0
    assert batch[0] == dpk.laplace(epsilon=0.5)
    with pytest.raises(ValueError, match="read-only"):
        batch.noise.scale[0] = 1e-3
    assert all(not leaf.flags.writeable for leaf, _ in leaves(batch) if np.ndim(leaf))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: dpk.laplace(epsilon=np.where(np.arange(40) == 17, -1.0, 1.0)), "epsilon: entry 17 is -1, not in"),
        (lambda: dpk.laplace(epsilon=np.array([[1.0, np.nan]])), r"epsilon: entry \(0, 1\) is nan"),
        (lambda: dpk.laplace(epsilon=np.ones(3), sensitivity=np.ones(4)), "do not broadcast to one batch"),
        (lambda: dpk.duchi(epsilon=1.0, lower=np.zeros(2), upper=np.array([1.0, 0.0])), "entry 1 is 0, 0; lower must"),
        (lambda: dpk.Additive(dpk.Laplace(np.ones(3)), np.ones(2)), "do not broadcast to one batch"),
        (lambda: dpk.laplace(epsilon=np.ones(0)), "one entry or more"),
        (lambda: dpk.composite(base=dpk.Quartic(np.array([0.5, 2.0])), epsilon=1.0, lower=0.0, upper=1.0), "entry 1"),
        (lambda: dpk.on_vectors(dpk.laplace(epsilon=np.ones(2)), dimensions=2, norm="l1"), "is a batch"),
        (lambda: dpk.truncated_discrete_laplace(epsilon=np.ones(2), delta=0.1), "reach: is one number"),
    ],
)
def test_entries_are_refused_by_their_place(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_lists_and_values_of_other_shapes_are_refused():
    with pytest.raises(TypeError, match="is a list"):
        dpk.laplace(epsilon=[1.0, 2.0])
    batch, key = dpk.laplace(epsilon=np.ones(3)), dpk.simulation_key(0)
    for shape in ((), (1,), (4,), (3, 1)):
        with pytest.raises(ValueError, match=r"last axes must be \(3,\)"):
            batch.sample(key, np.zeros(shape))


def test_distinct_entries_are_found_once():
    batch = dpk.laplace(epsilon=np.array([1.0, 0.5, 1.0, 2.0]), sensitivity=np.array([1.0, 3.0, 1.0, 1.0]))
    firsts, kinds = distinct_entries(batch)
    assert firsts.tolist() == [0, 1, 3]
    assert kinds.tolist() == [0, 1, 0, 2]


def test_the_best_widths_of_many_budgets_are_those_of_each():
    budgets = np.geomspace(0.01, 20.0, 60)
    for arguments in ({}, {"objective": "central"}):
        batch = dpk.piecewise(epsilon=budgets, lower=0.0, upper=1.0, **arguments)
        assert batch.width.tolist() == [
            dpk.piecewise(epsilon=epsilon, lower=0.0, upper=1.0, **arguments).width for epsilon in budgets.tolist()
        ]


@pytest.mark.parametrize(
    ("window", "condition"), [("sine", "pointwise"), ("triangle", "pointwise"), ("sine", "sup_inf")]
)
def test_the_best_widths_of_falling_windows_are_those_of_each(window, condition):
    """Also at budgets whose best width is beyond the plateau, where the search is that of each."""
    budgets = np.geomspace(0.02, 20.0, 9)
    arguments = {"condition": condition, "lower": 0.0, "upper": 1.0}
    batch = dpk.composite(window, epsilon=budgets, **arguments)
    assert list(batch) == [dpk.composite(window, epsilon=epsilon, **arguments) for epsilon in budgets.tolist()]


def test_on_a_plateau_the_max_excess_is_one_without_a_search():
    """At random widths up to 4/3; and the bound of the others is below the maximum, and not far."""
    random = np.random.default_rng(3)
    for window in (Sine(), Triangle()):
        for width in [*random.uniform(1e-5, 1.33, 8).tolist(), 1.33, 1.34, 1.6, 1.99]:
            parameters = window, Constant(), width, float(random.uniform(0.01, 3))
            points = critical_points(*parameters[:3])
            dense = refined_maximum(lambda v, parameters=parameters: _excess(v, parameters), points)
            assert _max_excess(*parameters) == dense
            assert (dense == 1.0) == (width < 4 / 3)
            assert 0.8 * dense <= float(_excess_bound(*parameters)) <= dense


def test_squares_of_arrays_have_the_bits_of_pythons_power():
    """Also where the product is nearly halfway between two floats, at powers of two, and at the ends of the range."""
    random = np.random.default_rng(1)
    exponents = random.integers(-400, 400, 2000)
    edges = np.sqrt(2.0**exponents) * (1 + random.integers(-3, 4, 2000) * 2.0**-53)
    extremes = [0.0, -0.0, 5e-324, 1e-200, 1e-160, 1.3e154, np.inf, -np.inf]
    values = np.concatenate([random.uniform(0, 2, 20_000), np.exp(random.uniform(-340, 340, 2000)), edges, extremes])
    assert (numerics.squared(values) == [math.pow(value, 2.0) for value in values]).all()
    assert np.isnan(numerics.squared(np.array([np.nan]))).all()
    with pytest.raises(OverflowError):
        numerics.squared(np.array([1e160]))


def test_blocks_of_budgets_have_the_widths_of_each(monkeypatch):
    budgets = np.linspace(0.1, 8.0, 11)
    widths = dpk.piecewise(epsilon=budgets, lower=0.0, upper=1.0).width
    monkeypatch.setattr(minima, "_BLOCK", 3)
    assert (dpk.piecewise(epsilon=budgets, lower=0.0, upper=1.0).width == widths).all()
    assert widths.tolist() == [dpk.piecewise(epsilon=eps, lower=0.0, upper=1.0).width for eps in budgets.tolist()]
