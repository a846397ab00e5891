"""One release of a session: sums and choices from the rows that count, with noise under keys of their own."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any

import numpy as np

import dpkernels as dpk
from dpkernels.decimals import rational
from dpkernels.exact.noise.sampler import ExactNoise
from dpkernels.exact.selection.exponential import exponential_item
from dpkernels.exact.selection.permute_and_flip import permute_and_flip_top_k
from dpkernels.numerics import RealArray
from dpkernels.session.blocks import PIECE, Block
from dpkernels.session.cells import Keys, keys_of
from dpkernels.session.distinct import HALF, LOW_HALF, DistinctWords, Places
from dpkernels.session.sums import Lattice, NoisySums, add_rows, rounded_down, sampler_of
from dpkernels.session.tables import Table, are_first

KeyReader = Callable[[np.ndarray], tuple[Sequence[Any], np.ndarray]]


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


@dataclass(repr=False)
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

    def key(self, *content: Any) -> bytes:
        """Return the 32 bytes of the next key, which the bytes of the contents decide, too."""
        self._drawn += 1
        digest = hashlib.blake2b(self._drawn.to_bytes(8, "little"), key=self.secret, digest_size=32, person=b"session")
        for part in content:
            digest.update(part)
        return digest.digest()

    def sums(
        self, names: Sequence[str], shape: tuple[int, int], rows_of: Callable[[Block], tuple[Any, Any]]
    ) -> np.ndarray:
        """Return the exact integer sums, of shape (groups, weights), of all rows that count."""
        sums = np.zeros(shape, np.int64)
        for part in self.table.map(names, partial(_block_sums, rows_of, shape)):
            sums += part
        return sums

    def noisy(self, sums: np.ndarray, lattice: Lattice, epsilon: float, label: str) -> NoisySums:
        """Return the sums, rounded to the lattice, with noise."""
        sampler, rounded = sampler_of(lattice, epsilon, sums.size), lattice.rounded(sums)
        key = self.key(f"{lattice.key_text} {epsilon!r} {rounded.shape}".encode(), rounded.reshape(-1))
        values = dpk.perturb(rounded.reshape(-1).astype(np.float64), sampler, key=dpk.key_from_bytes(key))
        self.parts.append(Part(label, epsilon, 0.0, lattice.sensitivity, float(lattice.step), sampler.certificate))
        return NoisySums(values.reshape(rounded.shape), lattice, sampler)

    def places(
        self, names: Sequence[str], groups: int, function: Callable[[Block], tuple[np.ndarray, np.ndarray]]
    ) -> list[Places]:
        """Return for each group the places of its rows, from the groups and the places of a block's rows."""
        words = DistinctWords()
        for part in self.table.map(names, partial(_block_places, function)):
            words.add(*part)
        both, counts = words.sorted()
        starts = np.searchsorted(both, np.arange(groups + 1, dtype=np.uint64) << HALF)
        return [Places((both[a:b] & LOW_HALF).astype(np.int64), counts[a:b]) for a, b in pairwise(starts)]

    def item(self, scores: np.ndarray, lengths: np.ndarray, epsilon: Fraction) -> tuple[int, int]:
        """Return the stretch and the item in it that the exponential mechanism chooses."""
        key = self.key(f"{epsilon}".encode(), scores, lengths)
        return exponential_item(scores, lengths, epsilon, key)

    def top(self, counts: np.ndarray, epsilon: float, k: int, label: str) -> np.ndarray:
        """Return k indices, chosen one by one; a person changes each count by at most 1, all in one direction."""
        chosen = permute_and_flip_top_k(counts, epsilon, k, self.key(f"{epsilon!r} {k}".encode(), counts))
        self.parts.append(Part(f"{label}: {k} choices", float(rational(epsilon) * k), choice="permute-and-flip"))
        return chosen

    def persons(self, keys: Keys) -> np.ndarray:
        """Return how many persons have a row with each key."""
        return self._persons(keys.name, lambda array: ([], keys.codes(array)), len(keys), keys.keys)[1]

    def persons_by_key(self, name: str) -> tuple[list[Any], np.ndarray]:
        """Return all keys of a column, and how many persons have each; a person has at most ``groups`` of them."""
        return self._persons(name, keys_of, self.groups, [])

    def _persons(self, name: str, read: KeyReader, most: int, stated: Sequence[Any]) -> tuple[list[Any], np.ndarray]:
        """Return keys and their numbers of persons, each of whom counts for at most so many keys.

        Args:
            name: the column.
            read: returns the keys that an array has, and for each cell the index of its key among these, or -1. If
                there are none, the index is among those that are stated.
            most: of a person. Which keys count is decided by a keyed hash of their names: neither by other persons nor
                by the order of rows.
            stated: keys that are returned first.
        """
        known, pairs = {key: index for index, key in enumerate(stated)}, DistinctWords()
        for keys, owners, codes, counts in self.table.map([name], partial(_block_keys, name, read)):
            if keys:
                codes = np.array([known.setdefault(key, len(known)) for key in keys], np.uint64)[codes]
            words = owners << HALF | codes
            order = np.argsort(words)
            pairs.add(words[order], counts[order])
        names, (words, counts) = list(known), pairs.sorted()
        owners, codes = words >> HALF, (words & LOW_HALF).astype(np.int64)
        if self.table.persons is None:
            return names, np.bincount(codes, counts, len(names)).astype(np.int64)
        digests = [hashlib.blake2b(repr(key).encode(errors="surrogatepass"), key=self.secret).digest() for key in names]
        rank = np.argsort(np.argsort(np.array(digests, "S64")))
        order = np.lexsort((rank[codes], owners))
        return names, np.bincount(codes[order][are_first(owners[order], most)], minlength=len(names))

    def noisy_counts(self, counts: np.ndarray, sampler: ExactNoise, label: str) -> np.ndarray:
        """Return counts with bounded noise, of which a person changes up to ``groups`` by 1."""
        certificate = sampler.certificate
        epsilon, delta = (float(self.groups * rational(part)) for part in (certificate.epsilon, certificate.delta))
        self.parts.append(Part(label, epsilon, delta, certificate=certificate, reports=self.groups))
        if not len(counts):  # The report is the same: whether anybody has a key is not public.
            return np.zeros(0)
        key = dpk.key_from_bytes(self.key(f"{epsilon!r} {delta!r} {label}".encode(), counts))
        return np.asarray(dpk.perturb(counts.astype(np.float64), sampler, key=key))


@lru_cache(maxsize=16)
def key_sampler(epsilon: float, delta: float, groups: int) -> ExactNoise:
    """Return the sampler of the noise of each count when keys are found, of which a person has at most ``groups``."""
    own_epsilon, own_delta = (rounded_down(rational(part) / groups) for part in (epsilon, delta))
    return dpk.exact_sampler(dpk.truncated_discrete_laplace(epsilon=own_epsilon, delta=own_delta, sensitivity=1.0))


def _block_sums(
    rows_of: Callable[[Block], tuple[Any, Any]], shape: tuple[int, int], block: Block, persons: RealArray | None
) -> RealArray:
    """Return the sums of a block; persons are not used."""
    sums = np.zeros(shape, np.int64)
    for piece in block.pieces(max(PIECE, 4 * len(sums))):
        add_rows(sums, *rows_of(piece))
    return sums


def _block_places(
    function: Callable[[Block], tuple[np.ndarray, np.ndarray]], block: Block, persons: RealArray | None
) -> tuple[RealArray, RealArray]:
    """Return the distinct words of a block's groups and places, and their counts."""
    words = []
    for piece in block.pieces(PIECE):
        codes, places = function(piece)
        words.append(codes.astype(np.uint64) << HALF | places.astype(np.uint64))
    return np.unique(np.concatenate([np.zeros(0, np.uint64), *words]), return_counts=True)


def _block_keys(
    name: str, read: KeyReader, block: Block, persons: RealArray | None
) -> tuple[Sequence[Any], np.ndarray, np.ndarray, np.ndarray]:
    """Return keys, the distinct pairs of a person, 0 for all if a row is one, and a key, and the rows of each pair."""
    keys, codes = read(block[name])
    present = codes >= 0
    owners = np.zeros(len(codes), np.uint64) if persons is None else persons.astype(np.uint64)
    pairs, counts = np.unique(owners[present] << HALF | codes[present].astype(np.uint64), return_counts=True)
    return keys, pairs >> HALF, pairs & LOW_HALF, counts
