"""One release of a session: sums and selections of the rows that count, with noise from separate keys."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache, partial
from itertools import pairwise
from typing import TypeAlias

import numpy as np

import dpkernels as dpk
from dpkernels.decimals import rational
from dpkernels.exact.noise.sampler import ExactNoise
from dpkernels.exact.registry import Certificate
from dpkernels.exact.selection.exponential import exponential_item
from dpkernels.exact.selection.permute_and_flip import permute_and_flip_top_k
from dpkernels.session.blocks import CHUNK_ROWS, Block
from dpkernels.session.cells import Key, Keys, distinct_keys
from dpkernels.session.distinct import HALF, LOW_HALF, DistinctWords, SortedCounts
from dpkernels.session.sums import NoisySums, SumLattice, add_rows, floor_to_9_digits, noise_sampler
from dpkernels.session.tables import SessionTable, are_first

# The cells of a block's rows, -1 for none, and k arrays of integer weights, or None for ones.
WeightedRows: TypeAlias = tuple[np.ndarray, Sequence[np.ndarray] | None]
KeyReader: TypeAlias = Callable[[np.ndarray], tuple[Sequence[Key], np.ndarray]]


@dataclass(frozen=True)
class NoiseRecord:
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
    certificate: Certificate | None = None
    reports: int = 1
    choice: str = "exponential mechanism"  # the mechanism of a choice


@dataclass(repr=False)
class ReleaseInProgress:
    """A release in progress: the rows that count, and what has been drawn.

    Attributes:
        table: the data.
        rows_per_person: the most rows of a person that count.
        groups_per_person: the most keys of a person when keys are found.
        secret: 32 bytes, from which the key of every noise and choice is derived, together with the exact integers
            that it is for: other integers have other noise.
    """

    table: SessionTable
    rows_per_person: int
    groups_per_person: int
    secret: bytes
    noise_records: list[NoiseRecord] = field(default_factory=list)
    _drawn: int = 0

    def key(self, *content: bytes) -> bytes:
        """Return the 32 bytes of the next key, which the bytes of the contents decide, too."""
        self._drawn += 1
        digest = hashlib.blake2b(self._drawn.to_bytes(8, "little"), key=self.secret, digest_size=32, person=b"session")
        for item in content:
            digest.update(item)
        return digest.digest()

    def sums(
        self, names: Sequence[str], shape: tuple[int, int], weighted_rows: Callable[[Block], WeightedRows]
    ) -> np.ndarray:
        """Return the exact integer sums, of shape (groups, weights), of all rows that count."""
        sums = np.zeros(shape, np.int64)
        for block_sums in self.table.map(names, partial(_block_sums, weighted_rows, shape)):
            sums += block_sums
        return sums

    def add_noise(self, sums: np.ndarray, lattice: SumLattice, epsilon: float, label: str) -> NoisySums:
        """Return the sums, rounded to the lattice, with noise."""
        sampler, rounded = noise_sampler(lattice, epsilon, sums.size), lattice.rounded(sums)
        key = self.key(f"{lattice.key_text} {epsilon!r} {rounded.shape}".encode(), rounded.tobytes())
        values = dpk.perturb(rounded.reshape(-1).astype(np.float64), sampler, key=dpk.key_from_bytes(key))
        self.noise_records.append(
            NoiseRecord(label, epsilon, 0.0, lattice.sensitivity, float(lattice.step), sampler.certificate)
        )
        return NoisySums(values.reshape(rounded.shape), lattice, sampler)

    def sorted_counts(
        self, names: Sequence[str], groups: int, function: Callable[[Block], tuple[np.ndarray, np.ndarray]]
    ) -> list[SortedCounts]:
        """Return for each group the integers of its rows, from a function of a block to groups and integers."""
        distinct = DistinctWords()
        for block_words in self.table.map(names, partial(_block_words, function)):
            distinct.add(*block_words)
        words, counts = distinct.sorted()
        starts = np.searchsorted(words, np.arange(groups + 1, dtype=np.uint64) << HALF)
        return [SortedCounts((words[a:b] & LOW_HALF).astype(np.int64), counts[a:b]) for a, b in pairwise(starts)]

    def choose_item(self, scores: np.ndarray, lengths: np.ndarray, epsilon: Fraction) -> tuple[int, int]:
        """Return the stretch and the item in it that the exponential mechanism chooses."""
        key = self.key(f"{epsilon}".encode(), scores.tobytes(), lengths.tobytes())
        return exponential_item(scores, lengths, epsilon, key)

    def choose_top(self, counts: np.ndarray, epsilon: float, k: int, label: str) -> np.ndarray:
        """Return k indices, chosen one by one; a person changes each count by at most 1, all in one direction."""
        chosen = permute_and_flip_top_k(counts, epsilon, k, self.key(f"{epsilon!r} {k}".encode(), counts.tobytes()))
        self.noise_records.append(
            NoiseRecord(f"{label}: {k} choices", float(rational(epsilon) * k), choice="permute-and-flip")
        )
        return chosen

    def person_counts(self, keys: Keys) -> np.ndarray:
        """Return how many persons have a row with each key."""
        return self._count_persons(keys.name, lambda array: ([], keys.codes(array)), len(keys), keys.keys)[1]

    def person_counts_by_key(self, name: str) -> tuple[list[Key], np.ndarray]:
        """Return all keys of a column, and how many persons have each, who count for ``groups_per_person`` at most."""
        return self._count_persons(name, distinct_keys, self.groups_per_person, [])

    def _count_persons(
        self, name: str, read: KeyReader, most: int, stated: Sequence[Key]
    ) -> tuple[list[Key], np.ndarray]:
        """Return keys and their numbers of persons, each of whom counts for at most so many keys.

        Args:
            name: the column.
            read: returns the keys that an array has, and for each cell the index of its key among these, or -1. If
                there are none, the index is among those that are stated.
            most: of a person. Which keys count is decided by a keyed hash of their names: neither by other persons nor
                by the order of rows.
            stated: keys that are returned first.
        """
        indices, pairs = {key: index for index, key in enumerate(stated)}, DistinctWords()
        for keys, owners, codes, counts in self.table.map([name], partial(_block_keys, name, read)):
            if keys:
                codes = np.array([indices.setdefault(key, len(indices)) for key in keys], np.uint64)[codes]
            words = owners << HALF | codes
            order = np.argsort(words)
            pairs.add(words[order], counts[order])
        all_keys, (words, counts) = list(indices), pairs.sorted()
        owners, codes = words >> HALF, (words & LOW_HALF).astype(np.int64)
        if self.table.persons is None:
            return all_keys, np.bincount(codes, counts, len(all_keys)).astype(np.int64)
        names = (repr(key).encode(errors="surrogatepass") for key in all_keys)
        digests = [hashlib.blake2b(name, key=self.secret).digest() for name in names]
        rank = np.argsort(np.argsort(np.array(digests, "S64")))
        order = np.lexsort((rank[codes], owners))
        return all_keys, np.bincount(codes[order][are_first(owners[order], most)], minlength=len(all_keys))

    def add_bounded_noise(self, counts: np.ndarray, sampler: ExactNoise, label: str) -> np.ndarray:
        """Return counts with bounded noise, of which a person changes up to ``groups_per_person`` by 1."""
        certificate, groups = sampler.certificate, self.groups_per_person
        epsilon, delta = float(groups * rational(certificate.epsilon)), float(groups * rational(certificate.delta))
        self.noise_records.append(NoiseRecord(label, epsilon, delta, certificate=certificate, reports=groups))
        if not len(counts):  # The report is the same: whether anybody has a key is not public.
            return np.zeros(0)
        key = dpk.key_from_bytes(self.key(f"{epsilon!r} {delta!r} {label}".encode(), counts.tobytes()))
        return np.asarray(dpk.perturb(counts.astype(np.float64), sampler, key=key))


@lru_cache(maxsize=16)
def key_count_sampler(epsilon: float, delta: float, groups: int) -> ExactNoise:
    """Return the sampler of the noise of each count when keys are found, of which a person has at most ``groups``."""
    epsilon, delta = (
        floor_to_9_digits(rational(epsilon) / groups),
        floor_to_9_digits(rational(delta) / groups),
    )  # of one key
    return dpk.exact_sampler(dpk.truncated_discrete_laplace(epsilon=epsilon, delta=delta, sensitivity=1.0))


def _block_sums(
    weighted_rows: Callable[[Block], WeightedRows], shape: tuple[int, int], block: Block, persons: np.ndarray | None
) -> np.ndarray:
    """Return the sums of a block; persons are not used."""
    sums = np.zeros(shape, np.int64)
    for rows in block.chunks(max(CHUNK_ROWS, 4 * len(sums))):
        add_rows(sums, *weighted_rows(rows))
    return sums


def _block_words(
    function: Callable[[Block], tuple[np.ndarray, np.ndarray]], block: Block, persons: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct words of a block's groups and integers, and their counts."""
    words = [np.zeros(0, np.uint64)]
    for rows in block.chunks(CHUNK_ROWS):
        codes, integers = function(rows)
        words.append(codes.astype(np.uint64) << HALF | integers.astype(np.uint64))
    return np.unique(np.concatenate(words), return_counts=True)


def _block_keys(
    name: str, read: KeyReader, block: Block, persons: np.ndarray | None
) -> tuple[Sequence[Key], np.ndarray, np.ndarray, np.ndarray]:
    """Return keys, the distinct pairs of a person, 0 for all if a row is one, and a key, and the rows of each pair."""
    keys, codes = read(block[name])
    present = codes >= 0
    owners = np.zeros(len(codes), np.uint64) if persons is None else persons.astype(np.uint64)
    pairs, counts = np.unique(owners[present] << HALF | codes[present].astype(np.uint64), return_counts=True)
    return keys, pairs >> HALF, pairs & LOW_HALF, counts
