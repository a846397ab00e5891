"""The content of a ledger and its verification: sums within the budget, valid amounts, and a chain of hashes.

An entry is a charge, or it voids an earlier charge. Both stay in the ledger; a voided charge does not count.

The chain begins with the budget's hash. Every entry's hash covers its own row and the previous hash, and the last hash,
the head, is stored separately. So every changed, missing, inserted or moved row is detected.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, reduce
from typing import Any, NamedTuple

from dpkernels.budgets.filters import EpsilonDelta, minus, plus, printed

_HASHED = 1  # version of what is hashed
_NUMBER = re.compile(r"[1-9][0-9]{0,17}")
_DECIMAL = re.compile(r"[0-9]{1,1000}(\.[0-9]{1,1000})?(e[+-][0-9]{1,3})?")


class UnsoundError(Exception):
    """The content of a ledger is not sound."""


class Entry(NamedTuple):
    """A charge in a ledger, or an entry that voids an earlier charge."""

    id: int  # its number, from 1
    time: str  # UTC, by the clock of the machine; it is not checked
    label: str  # a description
    amounts: EpsilonDelta  # the cost of the charge, or of the charge that this entry voids
    hash: str  # of this entry and all before it
    voids: int = 0  # the number of the charge that this entry voids; 0 for a charge


@dataclass(frozen=True)
class Statement:
    """The verified content of a ledger at one moment; ``ledger`` is its random identity."""

    ledger: str
    created: str
    budget: EpsilonDelta
    entries: tuple[Entry, ...] = ()

    @cached_property
    def spent(self) -> EpsilonDelta:
        """Return the sum of the charges that are not voided."""
        return reduce(_added, self.entries, EpsilonDelta())

    @cached_property
    def voided(self) -> dict[int, int]:
        """Return, by the number of each voided charge, the number of the entry that voids it."""
        return {entry.voids: entry.id for entry in self.entries if entry.voids}

    @property
    def left(self) -> EpsilonDelta:
        return minus(self.budget, self.spent)

    @property
    def head(self) -> str:
        """Return the hash of the whole chain of entries."""
        if self.entries:
            return self.entries[-1].hash
        return _hash("", _HASHED, self.ledger, self.created, *map(printed, self.budget))

    def next(self, time: str, label: str, amounts: EpsilonDelta) -> Entry:
        return _entry(self.head, len(self.entries) + 1, time, label, amounts)

    def next_void(self, time: str, label: str, charge: int) -> Entry:
        """Return the entry that voids a charge; an ``UnsoundError`` says that there is none or that it is voided."""
        _check_voidable(self.entries, self.voided, charge)
        return _entry(self.head, len(self.entries) + 1, time, label, self.entries[charge - 1].amounts, charge)


def _entry(head: str, number: int, time: str, label: str, amounts: EpsilonDelta, voids: int = 0) -> Entry:
    row = (number, time, label, *map(printed, amounts), *_voiding(voids))
    return Entry(number, time, label, amounts, _hash(head, *row), voids)


def _voiding(charge: int) -> tuple[str, ...]:
    return (f"voids {charge}",) if charge else ()


def _added(spent: EpsilonDelta, entry: Entry) -> EpsilonDelta:
    return minus(spent, entry.amounts) if entry.voids else plus(spent, entry.amounts)


def _check_voidable(entries: Sequence[Entry], voided: Container[int], charge: int) -> None:
    if not 1 <= charge <= len(entries) or entries[charge - 1].voids:
        raise UnsoundError(f"has no charge {charge} that could be voided")
    if charge in voided:
        raise UnsoundError(f"has voided charge {charge} already")


def verified(budgets: Sequence[Sequence[Any]], charges: Iterable[Sequence[Any]]) -> Statement:
    """Return the statement that rows of a file make, or raise an ``UnsoundError`` that says what is wrong.

    ``budgets`` are rows of (ledger, created, epsilon, delta, head), of which there must be one. ``charges`` are rows of
    (id, time, label, epsilon, delta, voids, hash), by id; voids is empty for a charge.
    """
    if len(budgets) != 1:
        raise UnsoundError(f"is damaged: it has {len(budgets)} budgets")
    ledger, created, epsilon, delta, head = _texts(budgets[0], "budget")
    start = Statement(ledger, created, EpsilonDelta(_parsed(epsilon), _parsed(delta)))
    statement = replace(start, entries=_entries(charges, start))
    if statement.head != head:
        raise UnsoundError("is damaged: its budget or its last charges were changed or deleted")
    return statement


def _entries(rows: Iterable[Sequence[Any]], start: Statement) -> tuple[Entry, ...]:
    """Return the entries, each checked against those before it: its hash, and that the sum stays within the budget."""
    head, spent, entries, voided = start.head, EpsilonDelta(), list[Entry](), set[int]()
    for number, (found, *row) in enumerate(rows, 1):
        if found != number:
            raise UnsoundError(f"is damaged: charge {number} is missing")
        *texts, voids, stated = _texts(row, f"charge {number}")
        if voids and not _NUMBER.fullmatch(voids):
            raise UnsoundError(f"is damaged: {voids[:40]!r} is not the number of a charge")
        charge = int(voids or 0)
        head = _hash(head, number, *texts, *_voiding(charge))
        if stated != head:
            raise UnsoundError(f"is damaged: charge {number}, or one before it, was changed")
        time, label, epsilon, delta = texts
        entry = Entry(number, time, label, EpsilonDelta(_parsed(epsilon), _parsed(delta)), head, charge)
        if charge:
            try:
                _check_voidable(entries, voided, charge)
            except UnsoundError as error:
                raise UnsoundError(f"is damaged: entry {number} voids a charge, and the ledger {error}") from None
            if entries[charge - 1].amounts != entry.amounts:
                raise UnsoundError(f"is damaged: entry {number} does not void the amounts of charge {charge}")
            voided.add(charge)
        spent = _added(spent, entry)
        if min(minus(start.budget, spent)) < 0:
            raise UnsoundError(f"is damaged: its charges of {spent} exceed its budget of {start.budget}")
        entries.append(entry)
    return tuple(entries)


def _texts(row: Sequence[Any], name: str) -> list[str]:
    if not all(isinstance(cell, str) for cell in row):
        raise UnsoundError(f"is damaged: {name} holds what is not text")
    return list(row)


def _parsed(text: str) -> Fraction:
    """Return an amount as the file has it: a decimal of at least 0, in the form that ``printed`` gives it."""
    if not _DECIMAL.fullmatch(text) or printed(amount := Fraction(text)) != text:
        raise UnsoundError(f"is damaged: {text[:40]!r} is not an amount")
    return amount


def text(amount: Fraction) -> str:
    """Return the text of an amount, from which ``_parsed`` reads the same amount."""
    try:
        return printed(_parsed(printed(amount)))
    except UnsoundError:
        raise ValueError(f"{amount} has no short decimal; a ledger keeps amounts as decimals, exactly") from None


def _hash(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
