"""Sums of independent likelihood ratios, as bounds in convex order on a grid that is fine next to its origin.

The distribution of a sum S has masses at the points c + k 2^b h: zone 0 has all |k| <= N, and zone b > 0 those with N/2
< |k| <= N. So the step is h near the origin c, and at most 2/N of the distance to c elsewhere. Two sums with the same h
are added zone by zone. Masses nearer to c than zone b are first moved to the step of zone b; this loses nothing,
because the sum is moved there in any case. All terms are positive, so every mass keeps its relative accuracy.

An upper bound (side 1) splits a mass between two grid points among both points and keeps its mean. A lower bound (side
-1) gathers masses, and stores the mean of each group with its nearest grid point. Sums of independent numbers preserve
both orders. Proof: docs/proofs/schemes.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from dpkernels.numerics import UNIT_ROUNDOFF
from dpkernels.proven import proven
from dpkernels.shapes import Float, Num

HALF = 1024  # N: the points of a zone on either side of the origin.
_LIGHT = 1e-280  # Lighter masses are left out, and counted in the excess or not at all.
_LOWEST_MASS = 1e-15  # The share of the mass, of the least values, that the least zone need not resolve.
_NEGLIGIBLE = 1e-40  # A mass, and a first moment, that are negligible.
_CENTRED_WIDTH = 0.5  # The width of half the mass, relative to its middle, from which on the origin is in the middle.
_OFF_MIDDLE = 0.25  # The distance of the origin from the middle, relative to that width, from which on it is moved.
_MIN_WIDTH = HALF / 2  # The least number of steps in that width, if the origin is in the middle.
_MAX_WIDTH = HALF  # The most of them.


@dataclass(frozen=True)
class RatioSum:
    """A bound of the distribution of a sum of ratios under q."""

    mass: Num[np.ndarray, "zones points"]  # (zones, 2 N + 1).
    moment: (
        Num[np.ndarray, "zones points"] | None
    )  # Of a lower bound: the mass times the distance of its mean from the grid point.
    origin: float  # c.
    level: int  # h = 2^level.
    excess: float = 0.0  # Of an upper bound: the first moment of what is beyond the last zone.
    rounding: float = 0.0  # A bound on the relative error of every mass.

    @property
    def step(self) -> float:
        return math.ldexp(1.0, self.level)

    @property
    def side(self) -> int:
        return 1 if self.moment is None else -1

    def zone(self, number: int) -> _Row:
        """Return the masses of a zone; none beyond the last."""
        if number >= len(self.mass):
            zeros = np.zeros(2 * HALF + 1)
            return _Row(zeros, None if self.moment is None else zeros)
        return _Row(self.mass[number], None if self.moment is None else self.moment[number])

    def points(self) -> tuple[Float[np.ndarray, " outcomes"], Float[np.ndarray, " outcomes"]]:
        """Return the values of S, and their masses, in no order."""
        zone, index = np.nonzero(self.mass)
        mass = self.mass[zone, index]
        steps = (index - HALF).astype(float)
        if self.moment is not None:
            steps = steps + self.moment[zone, index] / mass / np.ldexp(self.step, zone)
        return np.maximum(self.origin + steps * np.ldexp(self.step, zone), 0.0), mass

    @property
    def quartiles(self) -> tuple[float, float, float]:
        value, mass = self.points()
        if not len(value):  # As a lower bound of a pair without privacy.
            return 0.0, 0.0, 0.0
        order = np.argsort(value)
        cumulative = np.cumsum(mass[order])
        low, middle, high = np.searchsorted(cumulative, cumulative[-1] * np.array([0.25, 0.5, 0.75]))
        return tuple(float(value[order[min(index, len(order) - 1)]]) for index in (low, middle, high))  # type: ignore[return-value]

    @property
    def zones_of_sum(self) -> int:
        """Return the zones that a sum needs: one more, if what would be beyond them is not negligible."""
        count, last = len(self.mass), self.mass[-1]
        farthest = HALF * math.ldexp(self.step, count - 1)
        return count + (float(last.sum()) * max(farthest, 1.0) > _NEGLIGIBLE)

    def plus(self, other: RatioSum) -> RatioSum:
        """Return the sum of both, which are independent."""
        level = max(self.level, other.level)
        first, second = self.coarsened(level), other.coarsened(level)
        is_square = self is other
        terms = (first,) if is_square else (first, second)
        sums: list[_Row] = []
        inside = [term.zone(len(term.mass)) for term in terms]
        for zone in range(max(term.zones_of_sum for term in terms)):
            zone_rows = [term.zone(zone) for term in terms]
            inner_rows = [inner + row for inner, row in zip(inside, zone_rows, strict=True)]
            if is_square:
                sums.append(zone_rows[0].convolved(inner_rows[0] + inside[0]))
            else:
                sums.append(zone_rows[0].convolved(inner_rows[1]) + inside[0].convolved(zone_rows[1]))
            step = math.ldexp(1.0, level + zone)
            inside = [rows.halved(step) for rows in inner_rows]
        mass, moment, excess = _in_zones(sums, level)
        rounding = first.rounding + second.rounding + (8 * HALF + 32) * UNIT_ROUNDOFF
        total = first.excess + second.excess + excess
        return RatioSum(mass, moment, first.origin + second.origin, level, total, rounding).adapted()

    def coarsened(self, level: int) -> RatioSum:
        """Return the bound with h = 2^level, which is at least its own."""
        zones = level - self.level
        if zones <= 0:
            return self
        inner = self.zone(0)
        for zone in range(zones):
            inner = inner.halved(math.ldexp(self.step, zone)) + self.zone(zone + 1)
        mass, moment = np.concatenate([inner.mass[None], self.mass[zones + 1 :]]), None
        if self.moment is not None:
            moment = np.concatenate([cast(np.ndarray, inner.moment)[None], self.moment[zones + 1 :]])
        return replace(self, mass=mass, moment=moment, level=level, rounding=self.rounding + 16 * zones * UNIT_ROUNDOFF)

    def adapted(self) -> RatioSum:
        """Return the bound with the origin and the step that its middle half needs."""
        low, middle, high = self.quartiles
        width = high - low
        if self.origin == 0.0 and width > _CENTRED_WIDTH * middle:
            return self.coarsened(max(self.level, _least_level(*self.points())))
        recentred = self
        if abs(middle - self.origin) > _OFF_MIDDLE * width:
            fine = math.floor(math.log2(width / _MIN_WIDTH)) if width > 0 else self.level
            recentred = self.moved(middle, max(fine, self.level))
        return recentred.coarsened(math.ceil(math.log2(width / _MAX_WIDTH))) if width > 0 else recentred

    def moved(self, origin: float, level: int) -> RatioSum:
        """Return the bound about another origin."""
        moved = discretised_ratio(*self.points(), self.side, origin, level)
        return replace(moved, excess=self.excess + moved.excess, rounding=self.rounding + moved.rounding)


def _least_level(value: Float[np.ndarray, " outcomes"], mass: Float[np.ndarray, " outcomes"]) -> int:
    """Return the level whose least zone ends at the lowest value above 0 that matters."""
    order = np.argsort(value)
    order = order[value[order] > 0]
    if not len(order):
        return 0
    lowest = value[order[min(int(np.searchsorted(np.cumsum(mass[order]), _LOWEST_MASS)), len(order) - 1)]]
    return math.floor(math.log2(lowest / HALF))


@dataclass(frozen=True)
class _Row:
    """Masses at k = -n .. n of one step, and their moments about the grid points."""

    mass: Num[np.ndarray, " points"]
    moment: Num[np.ndarray, " points"] | None

    def __add__(self, other: _Row) -> _Row:
        if len(self.mass) < len(other.mass):
            return other + self
        overlap = slice(margin := (len(self.mass) - len(other.mass)) // 2, len(self.mass) - margin)
        mass = self.mass.copy()
        mass[overlap] += other.mass
        if self.moment is None or other.moment is None:
            return _Row(mass, None)
        moment = self.moment.copy()
        moment[overlap] += other.moment
        return _Row(mass, moment)

    def convolved(self, other: _Row) -> _Row:
        mass = _convolved(self.mass, other.mass)
        if self.moment is None or other.moment is None:
            return _Row(mass, None)
        return _Row(mass, _convolved(self.moment, other.mass) + _convolved(self.mass, other.moment))

    def halved(self, step: float) -> _Row:
        """Return the same masses on every second point: spread to both neighbours, or gathered with the point below."""
        even, odd = self.mass[::2], self.mass[1::2]
        mass = np.zeros(2 * HALF + 1)
        start = HALF - len(even) // 2
        points = slice(start, start + len(even))
        mass[points] = even
        if self.moment is None:
            mass[points][:-1] += odd / 2
            mass[points][1:] += odd / 2
            return _Row(mass, None)
        moment = np.zeros(2 * HALF + 1)
        even_moment, odd_moment = self.moment[::2], self.moment[1::2]
        mass[points][: len(odd)] += odd
        moment[points] = even_moment
        moment[points][: len(odd)] += odd_moment + step * odd
        return _Row(mass, moment)


def _convolved(first: Num[np.ndarray, " points"], second: Num[np.ndarray, " points"]) -> Num[np.ndarray, " 2*points-1"]:
    convolution = np.zeros(len(first) + len(second) - 1)
    nonzero, nonzero_second = np.flatnonzero(first), np.flatnonzero(second)
    if len(nonzero) and len(nonzero_second):
        start, stop = int(nonzero[0]), int(nonzero[-1]) + 1
        start_second, stop_second = int(nonzero_second[0]), int(nonzero_second[-1]) + 1
        inner = np.convolve(first[start:stop], second[start_second:stop_second])
        convolution[start + start_second : stop + stop_second - 1] = inner
    return convolution


def _in_zones(
    sums: list[_Row], level: int
) -> tuple[Num[np.ndarray, "zones points"], Num[np.ndarray, "zones points"] | None, float]:
    """Return masses and moments in zones, from those at |k| <= 2 N of every step; and the first moment beyond all."""
    is_lower = sums[0].moment is not None
    names = ("mass", "moment") if is_lower else ("mass",)
    columns = [np.array([getattr(row, name) for row in sums]) for name in names]
    inner = slice(2 * HALF - HALF // 2, 2 * HALF + HALF // 2 + 1)
    for zone in range(len(sums) - 1, 0, -1):  # What is nearer belongs to the zone below, at every second point.
        for column in columns:
            column[zone - 1, HALF : 3 * HALF + 1 : 2] += column[zone, inner]
            column[zone, inner] = 0.0
    for zone in range(len(sums) - 1):  # What is farther belongs to the zone above.
        outer = [column[zone].copy() for column in columns]
        for column, outer_values in zip(columns, outer, strict=True):
            outer_values[HALF : 3 * HALF + 1] = 0.0
            column[zone, :HALF] = column[zone, 3 * HALF + 1 :] = 0.0
        if outer[0].any():
            row = _Row(outer[0], outer[1] if is_lower else None).halved(math.ldexp(1.0, level + zone))
            columns[0][zone + 1, HALF : 3 * HALF + 1] += row.mass
            if is_lower:
                columns[1][zone + 1, HALF : 3 * HALF + 1] += row.moment
    if is_lower:
        _recentre(columns, level)
    mass = columns[0]
    excess, last, step = 0.0, mass[-1], math.ldexp(1.0, level + len(sums) - 1)
    if not is_lower:
        outer_values = last[3 * HALF + 1 :]
        excess = float((outer_values * np.arange(1, HALF + 1)).sum()) * step
        last[3 * HALF] += outer_values.sum()
        # The sums are not negative, so that there is nothing far below.
        last[HALF] += last[:HALF].sum()
    inner_columns = [column[:, HALF : 3 * HALF + 1] for column in columns]
    light = inner_columns[0] < _LIGHT
    if not is_lower:
        excess += _LIGHT * float(light.sum()) * HALF * step
    for column in inner_columns:
        column[light] = 0.0
    return inner_columns[0], inner_columns[1] if is_lower else None, excess


def _recentre(columns: list[Num[np.ndarray, "zones points"]], level: int) -> None:
    """Move groups whose mean is nearer to the next grid point there."""
    mass, moment = columns
    for zone in range(len(mass)):
        step = math.ldexp(1.0, level + zone)
        occupied = np.flatnonzero(mass[zone] > _LIGHT)
        steps = moment[zone, occupied] / mass[zone, occupied] / step
        targets = occupied + np.rint(np.clip(steps, -2.0, 2.0)).astype(int)
        distance = np.abs(targets - 2 * HALF)
        # A group stays in its zone.
        is_moved = (targets != occupied) & (distance <= HALF) & ((zone == 0) | (distance > HALF // 2))
        sources, targets = occupied[is_moved], targets[is_moved]
        moved = mass[zone, sources], moment[zone, sources] - (targets - sources) * step * mass[zone, sources]
        for column, values in zip((mass[zone], moment[zone]), moved, strict=True):
            column[sources] = 0.0
            np.add.at(column, targets, values)


@proven("schemes#2-sums-of-ratios")
def discretised_ratio(
    value: Float[np.ndarray, " outcomes"],
    mass: Float[np.ndarray, " outcomes"],
    side: int,
    origin: float = 0.0,
    level: int | None = None,
) -> RatioSum:
    """Return the bound of one ratio with atoms at values >= 0; the lowest values decide the least step by default."""
    level = _least_level(value, mass) if level is None else level
    step = math.ldexp(1.0, level)
    distance = (value - origin) / step
    with np.errstate(divide="ignore"):
        zone = np.maximum(np.ceil(np.log2(np.abs(distance) / HALF)), 0.0).astype(int)
    position = distance / np.exp2(zone)
    count = int(zone.max(initial=0)) + 1
    floor = np.clip(np.floor(position), -HALF, HALF - 1)
    flat = (zone * (2 * HALF + 1) + floor + HALF).astype(int)
    size = count * (2 * HALF + 1)
    if side > 0:
        upper_mass = mass * (position - floor)
        total = np.bincount(flat, mass - upper_mass, size) + np.bincount(flat + 1, upper_mass, size)
        return RatioSum(total.reshape(count, -1), None, origin, level, 0.0, 32 * UNIT_ROUNDOFF)
    nearest = flat + (position - floor > 0.5)
    offset = (position - floor - (position - floor > 0.5)) * step * np.exp2(zone)
    masses, moments = (np.bincount(nearest, column, size).reshape(count, -1) for column in (mass, mass * offset))
    return RatioSum(masses, moments, origin, level, 0.0, (32 + len(value)) * UNIT_ROUNDOFF)


@proven("schemes#2-sums-of-ratios")
def self_sum(term: RatioSum, count: int) -> RatioSum:
    """Return the sum of so many independent copies."""
    total, added = term, 1
    for bit in bin(count)[3:]:
        total, added = total.plus(total), 2 * added
        if bit == "1":
            # The origin stays at the same share of the sum.
            copy = term.moved(total.origin / added, term.level) if total.origin else term
            total, added = total.plus(copy), added + 1
    return total
