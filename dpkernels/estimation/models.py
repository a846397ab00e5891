"""Models of the distribution of inputs, and the choice among them by the likelihood of held-out reports.

A model is a mixture of cells and atoms. Cells are equal bins with a uniform density, or the points of a grid if the
inputs are on a grid. Atoms are point masses at the knots of the channel. To choose a model, reports are divided
into folds at random, and each model is fitted to all folds but one.

| model | weights |
|---|---|
| splines | a smooth density: a mixture of quadratic B-splines whose number maximises the penalised likelihood |
| ems | maximum likelihood masses of the cells, smoothed after each step of expectation maximisation |
| atoms | splines and atoms; atoms are added where the likelihood increases most, while it increases enough |
| none | maximum likelihood masses of all knots, without any smoothing |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from operator import itemgetter

import numpy as np
from scipy.interpolate import BSpline

from dpkernels.caching import bounded_cache
from dpkernels.estimation.channel import Channel
from dpkernels.estimation.likelihood import AnyDistribution, MixtureModel, ems_shares, maximum_likelihood
from dpkernels.shapes import Float

_DEGREE = 2  # of splines
# The numbers of splines that are tried, up to d/4 for d bins.
LADDER = (6, 8, 12, 16, 24, 32, 48, 64)
# The largest number of groups into which neighbouring reports are merged.
_MAX_GROUPS = 256
# The penalty of each spline that is used, in nats: between Akaike's 1 and Schwarz's log(n)/2.
_SPLINE_PENALTY = 2.0
# The penalty of each atom. If there is none, an atom at the best position rarely increases the log-likelihood by more.
_ATOM_PENALTY = 8.0
_MAX_ATOMS = 40  # The most atoms of a model.
# The numbers of splines beside atoms that are tried.
_BESIDE_ATOMS = (6, 12, 24)
# Relative to the interval and to 1, numbers that differ by less than this are the same.
_POSITION_RTOL = 1e-9
# Shares below this are a solver's zeros.
_MIN_SHARE = 1e-4
# Intervals of smooth distributions use more splines than the fitted model, by this many steps of the ladder.
_LADDER_STEPS = 2
_FOLDS = 4  # parts of the reports in cross-validation
_MIN_FOR_FOLDS = 100  # reports; with fewer ones splines are fitted
# In nats. Another model is chosen only if it predicts held-out reports better than splines by more than this, which is
# about what chance alone can do.
_HANDICAPS = {"splines": 0.0, "ems": 2.0, "atoms": 2.0, "none": 4.0}


@dataclass(frozen=True)
class InputDistribution:
    """A distribution of inputs."""

    edges: Float[np.ndarray, " edges"]  #: of the bins, in which the density is uniform
    shares: Float[np.ndarray, " edges-1"]  #: the masses of the bins
    places: Float[np.ndarray, " atoms"]  #: increasing places of point masses, within the bins
    masses: Float[np.ndarray, " atoms"]  #: the point masses; all masses together are 1
    model: str = ""  #: a description of the model that was fitted

    @cached_property
    def _steps(self) -> tuple[np.ndarray, np.ndarray]:
        """Return places, each twice, and the cdf below and at every place."""
        x = np.union1d(self.edges, self.places)
        smooth = np.interp(x, self.edges, np.append(0.0, np.cumsum(self.shares)))
        atoms = np.append(0.0, np.cumsum(self.masses))
        sides = [smooth + atoms[np.searchsorted(self.places, x, side)] for side in ("left", "right")]
        total = sides[1][-1]
        return np.repeat(x, 2), np.stack(sides, axis=1).ravel() / total

    def cdf(self, x: np.ndarray, *, strict: bool = False) -> np.ndarray:
        """Return P(X <= x), or P(X < x) if strict."""
        return _interpolate_from_left(x, *self._steps) if strict else np.interp(x, *self._steps)

    def quantile(self, p: np.ndarray) -> np.ndarray:
        """Return the smallest x with P(X <= x) >= p."""
        x, cdf = self._steps
        return _interpolate_from_left(p, cdf, x)


def _interpolate_from_left(x: np.ndarray, points: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return interpolated values as ``np.interp`` does, but of equal points the first one's and not the last one's."""
    return 0.0 - np.interp(-x, -points[::-1], -values[::-1])


@lru_cache(maxsize=32)
def basis(bins: int, splines: int) -> Float[np.ndarray, "{bins} {splines}"]:
    """Return (bins, splines) the share of every spline in equal bins; columns have the sum 1."""
    knots = np.linspace(0, 1, splines - _DEGREE + 1)
    knots = np.concatenate([np.zeros(_DEGREE), knots, np.ones(_DEGREE)])
    integrals = BSpline(knots, np.eye(splines), _DEGREE).antiderivative()(np.linspace(0, 1, bins + 1))
    shares = np.diff(integrals, axis=0)
    return shares / shares.sum(axis=0)


def ladder(bins: int) -> tuple[int, ...]:
    """Return the numbers of splines that are available for this number of bins."""
    return tuple(k for k in LADDER if 4 * k <= bins) or LADDER[:1]


@dataclass(frozen=True)
class Weights:
    """The weights of a fitted model: of the cells, and of the atoms at all positions; with its number of splines."""

    cells: np.ndarray
    atoms: np.ndarray
    model: str
    splines: int | None = None

    @property
    def point_masses(self) -> np.ndarray:
        """Return (k,) at which positions there are point masses beside a smooth density."""
        return (self.atoms > 0) & (self.splines is not None)


class ReportModels:
    """The models of one channel.

    Groups of neighbouring reports are counted together, from the first report in ``groups`` on. ``edges`` are (d + 1,)
    ends of the cells, and ``cells`` (m, d) P(group | cell). ``positions`` are (k,) of atoms, ``atoms`` (m, k) P(group |
    position), and ``named`` (k,) at which of them every model has an atom.
    """

    def __init__(self, channel: Channel, bins: int, named: tuple[float, ...], grid: float | None) -> None:
        m = len(channel.reports)
        self.groups = np.unique(np.linspace(0, m, min(m, _MAX_GROUPS), endpoint=False).astype(int))
        self.grid, self._ends = grid, (channel.lower, channel.upper)
        if grid is None:
            self.edges = np.linspace(channel.lower, channel.upper, bins + 1)
            self.cells = channel.matrix(self.edges, self.groups)
            self.positions = _kinks(channel.knots, channel.probabilities(channel.knots, self.groups), named)
            self.atoms = channel.probabilities(self.positions, self.groups)
        else:
            self.positions = grid_points(channel.lower, channel.upper, grid)
            self.edges = np.append(self.positions - grid / 2, self.positions[-1] + grid / 2)
            self.cells = self.atoms = channel.probabilities(self.positions, self.groups)
        self.named = np.isin(self.positions, [self.positions[np.abs(self.positions - atom).argmin()] for atom in named])

    def fit(self, model: str, counts: np.ndarray) -> Weights:
        return MODELS[model](self, counts)

    def choose(self, counts: np.ndarray, seed: int, names: Iterable[str]) -> str:
        if counts.sum() < _MIN_FOR_FOLDS:
            return "splines"
        folds = _folds(counts, seed)

        def score(model: str) -> float:
            total = 0.0
            for fold in folds:
                weights, is_seen = self.fit(model, counts - fold), fold > 0
                q = self.cells @ weights.cells + self.atoms @ weights.atoms
                with np.errstate(divide="ignore"):
                    total += float(fold[is_seen] @ np.log(q[is_seen]))
            return total - _HANDICAPS[model]

        return max(names, key=score)

    def distribution(self, weights: Weights) -> InputDistribution:
        if self.grid is not None:
            masses = weights.cells + weights.atoms
            return InputDistribution(np.array(self._ends), np.zeros(1), self.positions, masses, weights.model)
        is_used = weights.atoms > 0
        return InputDistribution(
            self.edges, weights.cells, self.positions[is_used], weights.atoms[is_used], weights.model
        )

    def possible(self, counts: np.ndarray, weights: Weights | None = None) -> MixtureModel:
        """Return the distributions over which intervals extend: without a fitted model, all on the interval or grid.

        With one they are smooth, with more splines than it, hence less bias, and point masses only at its positions.
        """
        if weights is None:
            if self.grid is None:
                return AnyDistribution(self.atoms, counts, self.positions, self.positions)
            return MixtureModel(self.atoms, counts, self.positions)
        steps, splines = ladder(self.cells.shape[1]), weights.splines or self.splines(counts).splines or 0
        shapes = basis(self.cells.shape[1], steps[min(steps.index(splines) + _LADDER_STEPS, len(steps) - 1)])
        is_used = self.named | weights.point_masses
        columns = np.hstack([self.cells @ shapes, self.atoms[:, is_used]])
        return MixtureModel(columns, counts, self.positions[is_used], self.edges, shapes)

    def splines(self, counts: np.ndarray) -> Weights:
        """Return the splines whose number maximises the penalised likelihood, with the named atoms."""
        return max((self._mixture(counts, k, self.named) for k in ladder(self.cells.shape[1])), key=itemgetter(1))[0]

    def smooth(self, counts: np.ndarray) -> Weights:
        d, atoms = self.cells.shape[1], np.zeros(len(self.positions))
        shares = ems_shares(np.hstack([self.cells, self.atoms[:, self.named]]), counts, d)
        atoms[self.named] = shares[d:]
        return Weights(shares[:d], atoms, "smoothed expectation maximisation")

    def with_atoms(self, counts: np.ndarray) -> Weights:
        """Return splines and atoms; the number of splines and that of atoms maximise the penalised likelihood."""
        sizes = [k for k in _BESIDE_ATOMS if k <= max(ladder(self.cells.shape[1]))]
        return max((self._grown(counts, k) for k in sizes), key=itemgetter(1))[0]

    def unsmoothed(self, counts: np.ndarray) -> Weights:
        return Weights(
            np.zeros(self.cells.shape[1]), maximum_likelihood(self.atoms, counts).shares, "point masses alone"
        )

    def _grown(self, counts: np.ndarray, splines: int) -> tuple[Weights, float]:
        """Add atoms to splines where the likelihood has the greatest derivative, until the score falls."""
        best, score = self._mixture(counts, splines, self.named)
        for _ in range(_MAX_ATOMS):
            q = self.cells @ best.cells + self.atoms @ best.atoms
            index = int((self.atoms.T @ (counts / np.maximum(q, 1e-300))).argmax())
            allowed = self.named | (best.atoms > 0)
            allowed[max(index - 1, 0) : index + 2] = True
            grown, grown_score = self._mixture(counts, splines, allowed)
            if grown_score <= score:
                break
            best, score = grown, grown_score
        return best, score

    def _mixture(self, counts: np.ndarray, splines: int, allowed: np.ndarray) -> tuple[Weights, float]:
        """Return the fit with this number of splines and atoms at allowed positions, and its penalised likelihood."""
        shapes = basis(self.cells.shape[1], splines)
        fit = maximum_likelihood(np.hstack([self.cells @ shapes, self.atoms[:, allowed]]), counts)
        atoms = np.zeros(len(self.positions))
        atoms[allowed] = fit.shares[splines:]
        is_used = atoms > 0
        # Mass at two neighbouring positions stands for one atom between them.
        number = int((is_used & ~np.append(False, is_used[:-1])).sum())
        penalty = _SPLINE_PENALTY * (fit.shares[:splines] > _MIN_SHARE).sum() + _ATOM_PENALTY * number
        density = f"a density of {splines} splines"
        model = f"{density} and {number} point mass{'es' * (number != 1)}" if number else density
        weights = Weights(shapes @ fit.shares[:splines], atoms, model, splines)
        return weights, counts.sum() * fit.log_likelihood - penalty


report_models = bounded_cache(1 << 27)(ReportModels)  # The models of a channel are made once.

MODELS: dict[str, Callable[[ReportModels, np.ndarray], Weights]] = {
    "splines": ReportModels.splines,
    "ems": ReportModels.smooth,
    "atoms": ReportModels.with_atoms,
    "none": ReportModels.unsmoothed,
}


def _kinks(knots: np.ndarray, columns: np.ndarray, named: tuple[float, ...]) -> np.ndarray:
    """Return the named atoms, and the knots at which P(group of reports | x) is not linear in x, with both ends."""
    is_distinct = np.append(True, np.diff(knots) > _POSITION_RTOL * (knots[-1] - knots[0]))
    x, columns = knots[is_distinct], columns[:, is_distinct]
    turns = np.abs(np.diff(np.diff(columns) / np.diff(x))).max(axis=0) * (x[2:] - x[:-2])
    return np.union1d(x[np.concatenate([[True], turns > _POSITION_RTOL, [True]])], named)


def _folds(counts: np.ndarray, seed: int) -> list[np.ndarray]:
    rng, unassigned, folds = np.random.default_rng(seed), counts, []
    for remaining in range(_FOLDS, 1, -1):
        folds.append(rng.binomial(unassigned, 1 / remaining))
        unassigned = unassigned - folds[-1]
    return [*folds, unassigned]


def grid_points(lower: float, upper: float, grid: float) -> np.ndarray:
    """Return the multiples of ``grid`` in [lower, upper]."""
    return grid * np.arange(math.ceil(lower / grid - _POSITION_RTOL), math.floor(upper / grid + _POSITION_RTOL) + 1)
