"""Profiles: the probability of one report as a function of the input, for the optimal mechanism's program.

A profile is 1 on some adjacent rows. It falls by a factor e^-eps at each of its steps to the right, at rows
r_1 <= r_2 <= .., and to the left, at rows l_1 >= l_2 >= ... Steps of one side are at least ``cells`` rows apart, so
neighbouring rows are at most one step apart. Sums of profiles with nonnegative weights are private. Probabilities that
fall and rise again are not such sums. On small grids with every neighbour ratio as a constraint, they improve the
worst-case variance by less than 1e-4, and an average variance by less than 2e-4.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

# Profiles are followed down to 2^-24; smaller values are negligible next to the least probability of a report.
_BITS = 24


@dataclass(frozen=True, eq=False)
class Grids:
    """The inputs and outputs of a program, and the operations on profiles over them.

    A set of profiles is an integer array with one row per profile: the index of the report, r_1, r_2, .., l_1, l_2, ...
    The last or the first row of the grid stands for steps that a side does not have.

    Attributes:
        ratio: e^eps.
        inputs: x_i, equally spaced.
        outputs: y_j.
        cells: the largest distance of neighbouring rows.
        weights: the rows' weights in the average variance; None for the worst case.
        symmetric: whether every profile stands for itself and its mirror image, x -> -x and y -> -y. Rows below the
            middle are then omitted.
    """

    ratio: float
    inputs: np.ndarray
    outputs: np.ndarray
    cells: int
    weights: np.ndarray | None
    symmetric: bool

    @property
    def rows(self) -> int:
        """Return n."""
        return len(self.inputs)

    @property
    def gap(self) -> float:
        """Return x_(i+1) - x_i."""
        return float(self.inputs[1] - self.inputs[0])

    @property
    def base(self) -> int:
        """Return the first row that is not left out."""
        return (self.rows - 1) // 2 if self.symmetric else 0

    @cached_property
    def centres(self) -> np.ndarray:
        """Return the base row's input, and the middles between neighbouring rows above it."""
        x = self.inputs[self.base :]
        return np.append(x[0], (x[1:] + x[:-1]) / 2)

    @cached_property
    def falls(self) -> np.ndarray:
        """Return the amounts by which a profile falls at its first step, its second, and so on."""
        steps = min(-(-(self.rows - 1) // self.cells), math.ceil(_BITS * math.log(2) / math.log(self.ratio)))
        return (1 - 1 / self.ratio) * self.ratio ** -np.arange(float(steps))

    def mirrored(self, profiles: np.ndarray) -> np.ndarray:
        """Return profiles of the mirrored reports, at the mirrored inputs."""
        j, right, left = self.parts(profiles)
        return np.column_stack([len(self.outputs) - 1 - j, self.rows - 1 - left, self.rows - 1 - right])

    def parts(self, profiles: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return numbers of the reports, the steps to the right and those to the left."""
        steps = len(self.falls)
        return profiles[:, 0], profiles[:, 1 : 1 + steps], profiles[:, 1 + steps :]

    def unique(self, profiles: np.ndarray) -> np.ndarray:
        """Return the distinct profiles; of two mirror images, one."""
        if self.symmetric:
            other = self.mirrored(profiles)
            at = (profiles != other).argmax(axis=1)[:, None]
            later = np.take_along_axis(profiles, at, 1) > np.take_along_axis(other, at, 1)
            profiles = np.where(later, other, profiles)
        return np.unique(profiles, axis=0)

    def narrowest(self, j: np.ndarray, right: np.ndarray, left: np.ndarray) -> np.ndarray:
        """Return the profiles with the nearest allowed steps to the given ones; only those with r_1 >= l_1 are kept."""
        apart = self.cells * np.arange(len(self.falls))
        last = self.rows - 1
        right = np.maximum.accumulate(np.maximum(right, 0) - apart, axis=1) + apart
        left = np.minimum.accumulate(np.minimum(left, last) + apart, axis=1) - apart
        return np.column_stack([j, np.minimum(right, last), np.maximum(left, 0)])

    def all_windows(self) -> np.ndarray:
        """Return the profiles of all reports and rows l_1 <= r_1, with steps ``cells`` rows apart."""
        left, right = np.triu_indices(self.rows)
        j = np.repeat(np.arange(len(self.outputs)), len(left))
        right, left = (np.tile(side, len(self.outputs))[:, None] for side in (right, left))
        none = np.zeros(len(self.falls), int)
        return self.narrowest(j, right + none, left + none)

    def values(self, profiles: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return the profiles at some rows, of shape (profiles, rows)."""
        _, right, left = self.parts(profiles)
        sides = zip(right.T[:, :, None], left.T[:, :, None], strict=True)
        steps = sum((rows > after).astype(int) + (rows < before) for after, before in sides)
        return self.ratio ** -np.asarray(steps, float)

    def near(self, other: Grids, profiles: np.ndarray) -> np.ndarray:
        """Return profiles of these grids near those of other grids, up to one report and one row away."""
        j, *sides = other.parts(profiles)
        steps = len(self.falls)
        place = np.rint(np.interp(other.outputs[j], self.outputs, np.arange(len(self.outputs)))).astype(int)
        at = np.rint(np.interp(other.inputs, self.inputs, np.arange(self.rows))).astype(int)
        right, left = (
            np.pad(at[side], ((0, 0), (0, max(0, steps - side.shape[1]))), "edge")[:, :steps] for side in sides
        )
        moved = [
            self.narrowest(place + a, right + b, left + c) for a in (-1, 0, 1) for b in (-1, 0, 1) for c in (-1, 0, 1)
        ]
        made = np.concatenate(moved)
        j, right, left = self.parts(made)
        return made[(j >= 0) & (j < len(self.outputs)) & (left[:, 0] <= right[:, 0])]

    def best(self, at_base: np.ndarray, at_steps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the profiles of most value, and their values.

        The value of a profile f is f_base at_base + sum_i (f_i - f_(i-1)) at_steps_i, with prices that depend on the
        report. It is a sum over steps, so dynamic programming finds the best steps from the outermost inwards. The
        result has the best profile for every report and every row r_1.

        Args:
            at_base: one a report.
            at_steps: of shape (n - 1, reports), for i from 1 to n - 1.
        """
        i, none = np.arange(self.rows)[:, None], np.zeros((1, len(at_base)))
        right = np.concatenate([-at_steps, none]) - at_base * (i < self.base)
        left = np.concatenate([none, at_steps]) + at_base * (i <= self.base)
        to_right, next_right = self._best_steps(right)
        to_left, next_left = (part[::-1] for part in self._best_steps(left[::-1]))
        best, first_left = _running_best(to_left)
        value = best + to_right
        r, j = np.unravel_index(
            np.union1d(_flat(value.argmax(0), 1, value.shape), _flat(value.argmax(1), 0, value.shape)), value.shape
        )
        steps = len(self.falls)
        rights, lefts = [r], [first_left[r, j]]
        last = self.rows - 1
        for _ in range(steps - 1):
            rights.append(next_right[rights[-1], j])
            lefts.append(last - next_left[lefts[-1], j])
        return np.column_stack([j, *rights, *lefts]), value[r, j]

    def _best_steps(self, gain: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the value of the best steps from a first one on, and the second's row; a fall by 1 gains ``gain``.

        V_i = (1 - 1/ratio) gain_i + max_(k >= i + cells) V_k/ratio;  past the last row there are no steps.
        """
        q, last = 1 / self.ratio, self.rows - 1
        value, second = gain.copy(), np.full(gain.shape, last)
        best, at = gain.copy(), np.full(gain.shape, last)
        for i in range(last - 1, -1, -1):
            k = min(i + self.cells, last)
            value[i], second[i] = (1 - q) * gain[i] + q * best[k], at[k]
            better = value[i] >= best[i + 1]
            best[i], at[i] = np.where(better, value[i], best[i + 1]), np.where(better, i, at[i + 1])
        return value, second


def _running_best(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the largest value so far along the first axis, and where it is."""
    best = np.maximum.accumulate(values, axis=0)
    new = np.ones(values.shape, bool)
    new[1:] = values[1:] > best[:-1]
    return best, np.maximum.accumulate(np.where(new, np.arange(len(values))[:, None], 0), axis=0)


def _flat(at: np.ndarray, axis: int, shape: tuple[int, ...]) -> np.ndarray:
    other = np.arange(len(at))
    return np.ravel_multi_index((at, other) if axis == 1 else (other, at), shape)
