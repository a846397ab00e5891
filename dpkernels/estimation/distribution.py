"""Estimated distributions of inputs: a density that is uniform on bins, plus point masses."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np


@dataclass(frozen=True)
class InputDistribution:
    """A distribution of inputs.

    Attributes:
        edges: (d + 1,) of the bins, in which the density is uniform.
        shares: (d,) the masses of the bins.
        places: (k,) increasing places of point masses, within the bins.
        masses: (k,) the point masses; all masses together are 1.
        model: a description of the model that was fitted.
    """

    edges: np.ndarray
    shares: np.ndarray
    places: np.ndarray
    masses: np.ndarray
    model: str = ""

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
        places, cdf = self._steps
        at = np.searchsorted(places, x, side="left" if strict else "right")
        low, high = np.clip(at - 1, 0, len(places) - 1), np.clip(at, 0, len(places) - 1)
        width = places[high] - places[low]
        part = np.where(width > 0, (x - places[low]) / np.where(width > 0, width, 1.0), 0.0)
        inside = cdf[low] + part * (cdf[high] - cdf[low])
        return np.where(at == 0, 0.0, inside)

    def quantile(self, p: np.ndarray) -> np.ndarray:
        """Return the smallest x with P(X <= x) >= p."""
        places, cdf = self._steps
        after = np.clip(np.searchsorted(cdf, p, side="left"), 1, len(cdf) - 1)
        low, high = cdf[after - 1], cdf[after]
        part = np.clip((p - low) / np.where(high > low, high - low, 1.0), 0.0, 1.0)
        return places[after - 1] + part * (places[after] - places[after - 1])
