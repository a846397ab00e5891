"""One release of a session: sums and choices from the rows that count, with noise under keys of their own."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np

import dpkernels as dpk
from dpkernels.decimals import rational
from dpkernels.exact.choice import exponential_item
from dpkernels.exact.noise import ExactNoise
from dpkernels.exact.permute_and_flip import permute_and_flip_top_k
from dpkernels.session.cells import Keys, key_of
from dpkernels.session.sums import Lattice, NoisySums, add_rows, rounded_down, sampler_of
from dpkernels.session.tables import Block, Table, are_first


@dataclass(frozen=True)
class Part:
    """One noise or choice of a release, for reports.

    Attributes:
        label: what it was for.
        epsilon: its epsilon for one person, with all the person's rows.
        sensitivity: the largest change by one person, in the units of ``step``.
        step: of noise, the lattice of the values.
        certificate: of noise, the certificate; None for a choice.
        reports: of how many values for one person the certificate is charged.
    """

    label: str
    epsilon: float
    delta: float = 0.0
    sensitivity: int = 1
    step: float = 1.0
    certificate: Any = None
    reports: int = 1
    choice: str = "exponential mechanism"  # the mechanism of a choice


@dataclass
class Run:
    """A release in progress: the rows that count, and what has been drawn.

    Attributes:
        table: the data.
        rows: the most rows of a person.
        groups: the most keys of a person when keys are found.
        secret: 32 bytes, from which the key of every noise and choice is derived, together with the exact integers
            that it is for: other integers have other noise.
    """

    table: Table
    rows: int
    groups: int
    secret: bytes
    parts: list[Part] = field(default_factory=list)
    _drawn: int = 0

    def key(self, content: bytes) -> bytes:
        """Return the 32 bytes of the next key."""
        self._drawn += 1
        digest = hashlib.blake2b(key=self.secret, digest_size=32, person=b"session")
        digest.update(self._drawn.to_bytes(8, "little") + content)
        return digest.digest()

    def sums(
        self, names: Sequence[str], shape: tuple[int, int], rows_of: Callable[[Block], tuple[Any, Any]]
    ) -> np.ndarray:
        """Return the exact integer sums, of shape (groups, weights), of all rows that count."""
        sums = np.zeros(shape, np.int64)
        for block, _ in self.table.blocks(*names):
            add_rows(sums, *rows_of(block))
        return sums

    def noisy(self, sums: np.ndarray, lattice: Lattice, epsilon: float, label: str) -> NoisySums:
        """Return the sums, rounded to the lattice, with noise."""
        sampler, rounded = sampler_of(lattice, epsilon, sums.size), lattice.rounded(sums)
        key = self.key(f"{lattice} {epsilon!r} {rounded.shape}".encode() + rounded.tobytes())
        values = dpk.perturb(rounded.reshape(-1).astype(np.float64), sampler, key=dpk.key_from_bytes(key))
        self.parts.append(Part(label, epsilon, 0.0, lattice.sensitivity, float(lattice.step), sampler.certificate))
        return NoisySums(values.reshape(rounded.shape), lattice, sampler)

    def sorted_places(
        self, names: Sequence[str], groups: int, function: Callable[[Block], tuple[np.ndarray, np.ndarray]]
    ) -> list[np.ndarray]:
        """Return for each group the sorted places of its rows, from the groups and the places of a block's rows."""
        blocks = (function(block) for block, _ in self.table.blocks(*names))
        # One array of as few bytes as possible, which may have a billion.
        joined = [codes.astype(np.uint64) << np.uint64(32) | places.astype(np.uint64) for codes, places in blocks]
        both = np.concatenate([np.zeros(0, np.uint64), *joined])
        del joined
        both.sort()
        starts = np.searchsorted(both, np.arange(groups + 1, dtype=np.uint64) << np.uint64(32))
        return [(both[a:b] & np.uint64(0xFFFFFFFF)).astype(np.int64) for a, b in pairwise(starts)]

    def item(self, scores: np.ndarray, lengths: np.ndarray, epsilon: Fraction) -> tuple[int, int]:
        """Return the stretch and the item in it that the exponential mechanism chooses."""
        key = self.key(f"{epsilon}".encode() + scores.tobytes() + lengths.tobytes())
        return exponential_item(scores, lengths, epsilon, key)

    def top(self, counts: np.ndarray, epsilon: float, k: int, label: str) -> np.ndarray:
        """Return k indices, chosen one by one; a person changes each count by at most 1, all in one direction."""
        chosen = permute_and_flip_top_k(counts, epsilon, k, self.key(f"{epsilon!r} {k}".encode() + counts.tobytes()))
        self.parts.append(Part(f"{label}: {k} choices", float(rational(epsilon) * k), choice="permute-and-flip"))
        return chosen

    def note_choice(self, epsilon: float, label: str) -> None:
        self.parts.append(Part(label, epsilon))

    def persons(self, keys: Keys) -> np.ndarray:
        """Return how many persons have a row with each key."""
        pairs = [(keys.codes(block[keys.name]), persons) for block, persons in self.table.blocks(keys.name)]
        return self._persons(pairs, len(keys), len(keys))

    def persons_by_key(self, name: str) -> tuple[list[Any], np.ndarray]:
        """Return all keys of a column, and how many persons have each; a person has at most ``groups`` of them."""
        known: dict[Any, int] = {}
        pairs = []
        for block, persons in self.table.blocks(name):
            cells = [key_of(cell) for cell in block[name].tolist()]
            codes = [-1 if cell is None else known.setdefault(cell, len(known)) for cell in cells]
            pairs.append((np.array(codes, np.int64), persons))
        return list(known), self._persons(pairs, len(known), self.groups, [repr(key) for key in known])

    def _persons(
        self, pairs: Sequence[tuple[np.ndarray, Any]], keys: int, most: int, names: Sequence[str] = ()
    ) -> np.ndarray:
        counts = np.zeros(keys, np.int64)
        if all(persons is None for _, persons in pairs):
            for codes, _ in pairs:
                counts += np.bincount(codes[codes >= 0], minlength=keys)
            return counts
        joined = [persons[codes >= 0].astype(np.int64) * keys + codes[codes >= 0] for codes, persons in pairs]
        distinct = np.unique(np.concatenate(joined))
        owners, codes = np.divmod(distinct, max(keys, 1))
        # Which keys count is decided by a hash of their names: neither by other persons nor by the order of rows.
        digests = [hashlib.blake2b(name.encode(errors="surrogatepass"), key=self.secret).digest() for name in names]
        rank = np.argsort(np.argsort(np.array(digests, "S64"))) if len(names) else np.arange(keys)
        order = np.lexsort((rank[codes], owners)) if keys else np.zeros(0, np.int64)
        return np.bincount(codes[order][are_first(owners[order], most)], minlength=keys)

    def noisy_counts(self, counts: np.ndarray, sampler: ExactNoise, label: str) -> np.ndarray:
        """Return counts with bounded noise, of which a person changes up to ``groups`` by 1."""
        certificate = sampler.certificate
        epsilon, delta = (float(self.groups * rational(part)) for part in (certificate.epsilon, certificate.delta))
        self.parts.append(Part(label, epsilon, delta, certificate=certificate, reports=self.groups))
        if not len(counts):  # The report is the same: whether anybody has a key is not public.
            return np.zeros(0)
        key = dpk.key_from_bytes(self.key(f"{epsilon!r} {delta!r} {label}".encode() + counts.tobytes()))
        return np.asarray(dpk.perturb(counts.astype(np.float64), sampler, key=key))


def key_sampler(epsilon: float, delta: float, groups: int) -> ExactNoise:
    """Return the sampler of the noise of each count when keys are found, of which a person has at most ``groups``."""
    own_epsilon, own_delta = (rounded_down(rational(part) / groups) for part in (epsilon, delta))
    return dpk.exact_sampler(dpk.truncated_discrete_laplace(epsilon=own_epsilon, delta=own_delta, sensitivity=1.0))
