"""Budgets over several queries: a filter, which refuses what would exceed it, and an odometer, which only counts.

Sums are exact, see ``amounts``. Neighbouring is whatever the charged queries' guarantees were taken over, and must be
the same for all. Every charge may be chosen after seeing the reports of the earlier ones, its epsilon and delta
included; the data may be reached in no other way. Objects here live in one process and forget at its end:
``ledger.Ledger`` does not.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import Any, Generic, NamedTuple

from dpkernels.budgets.amounts import Amounts, EpsilonDelta, Rho, amount, asked, budgeted, minus, plus


class Charge(NamedTuple, Generic[Amounts]):
    """One query's charge.

    Attributes:
        amounts: what it costs.
        label: what it was for.
    """

    amounts: Amounts
    label: str


class BudgetExceeded(ValueError):  # noqa: N818 - it is no error of the caller's
    """A charge that was refused; nothing was charged, and the query must not run.

    Attributes:
        budget: all there was.
        spent: what the earlier charges took.
        asked: what was refused.
        where: whose budget, for the message.
    """

    def __init__(self, budget: Any, spent: Any, asked: Any, where: str = "") -> None:
        super().__init__(budget, spent, asked, where)
        self.budget, self.spent, self.asked, self.where = budget, spent, asked, where

    @property
    def left(self) -> Any:
        """Return what was left of the budget when the charge was refused."""
        return minus(self.budget, self.spent)

    def __str__(self) -> str:
        facts = f"asked for {self.asked}; left {self.left} (budget {self.budget}; spent {self.spent})"
        return f"{self.where}the budget would be exceeded: {facts}; nothing was charged"


def check(budget: Amounts, spent: Amounts, asked: Amounts, where: str = "") -> None:
    """Refuse a charge that does not fit.

    Raises:
        BudgetExceeded: some sum would be above the budget's.
    """
    if min(minus(budget, plus(spent, asked))) < 0:
        raise BudgetExceeded(budget, spent, asked, where)


class _Account(Generic[Amounts]):
    """Charges and their sum. Under the lock of an account, checking and charging are one step.

    A lock cannot be pickled or deeply copied, so neither can an account: two copies would spend one budget twice.
    """

    def __init__(self, spent: Amounts, budget: Amounts | None = None) -> None:
        self.spent: Amounts = spent
        self.charges: list[Charge[Amounts]] = []
        self._budget: Amounts | None = budget
        self._lock = threading.Lock()

    def charge(self, asked: Amounts, label: str) -> Charge[Amounts]:
        with self._lock:
            if self._budget is not None:
                check(self._budget, self.spent, asked)
            # The sum first: whatever interrupts this, what has been granted counts.
            self.spent = plus(self.spent, asked)
            self.charges.append(made := Charge(asked, label))
            return made


class _Charged(ABC, Generic[Amounts]):
    """What has been charged to an account."""

    _account: _Account[Amounts]

    @abstractmethod
    def __init__(self) -> None: ...

    @property
    def spent(self) -> Amounts:
        """Return the sum of the charges."""
        return self._account.spent

    @property
    def charges(self) -> tuple[Charge[Amounts], ...]:
        """Return every charge, the first first."""
        return tuple(self._account.charges)


class _Limited(_Charged[Amounts]):
    """The same of an account with a budget."""

    budget: Amounts

    @property
    def left(self) -> Amounts:
        """Return the budget less the charges."""
        return minus(self.budget, self.spent)


class Filter(_Limited[EpsilonDelta]):
    """An (epsilon, delta) fixed in advance, and charges that never exceed it.

    Guaranteed: whoever charges every query before running it, and runs none that is refused, learns something
    (epsilon, delta)-DP, however each query and its price were chosen from the reports before it, and whenever they
    stop. That sums of epsilon and of delta are enough for this is the basic filter of Rogers, Roth, Ullman & Vadhan
    2016; advanced composition with constants of prices fixed beforehand is not valid here. Threads may share a filter.

    Args:
        epsilon: positive.
        delta: in [0, 1).

    Attributes:
        budget: what was fixed.

    Raises:
        TypeError: not numbers.
        ValueError: epsilon not positive and finite; delta not in [0, 1).

    Example:
        >>> budget = Filter(1.0)
        >>> charges = [budget.charge(0.1) for _ in range(10)]
        >>> print(budget.left)
        epsilon 0, delta 0
    """

    def __init__(self, epsilon: Any, delta: Any = 0) -> None:
        self.budget = budgeted(epsilon, delta)
        self._account = _Account(EpsilonDelta(), self.budget)

    def charge(self, epsilon: Any, delta: Any = 0, label: str = "") -> Charge[EpsilonDelta]:
        """Charge a query; run it only after this returns.

        Args:
            epsilon: a number, or a certificate or mechanism that has both; see ``asked``.
            delta: a number.
            label: what it is for.

        Raises:
            BudgetExceeded: it does not fit; nothing was charged.
            TypeError: not numbers.
            ValueError: an amount that is negative, infinite or NaN.
        """
        return self._account.charge(asked(epsilon, delta), label)


class ConcentratedFilter(_Limited[Rho]):
    """A rho of zCDP fixed in advance, and charges that never exceed it.

    Guaranteed as ``Filter`` has it, with rho-zCDP instead: rho may be chosen on the way too (Feldman & Zrnic 2021,
    of every Renyi order at once; Whitehouse, Ramdas, Rogers & Wu 2023). ``concentrated.best_epsilon(rho, delta)`` of
    the whole budget, at a delta fixed in advance, is the epsilon that it pays for. For mechanisms that are zCDP
    without a leak: approximate zCDP needs an account of its leaks, which this is not.

    Args:
        rho: positive.

    Attributes:
        budget: what was fixed.

    Raises:
        TypeError: not a number.
        ValueError: not positive and finite.
    """

    def __init__(self, rho: Any) -> None:
        self.budget = Rho(amount("rho", rho))
        if self.budget.rho == 0:
            raise ValueError("rho: a budget of 0 pays for nothing")
        self._account = _Account(Rho(), self.budget)

    def charge(self, rho: Any, label: str = "") -> Charge[Rho]:
        """Charge a query; run it only after this returns.

        Raises:
            BudgetExceeded: it does not fit; nothing was charged.
            TypeError: not a number.
            ValueError: negative, infinite or NaN.
        """
        return self._account.charge(Rho(amount("rho", rho)), label)


class Odometer(_Charged[EpsilonDelta]):
    """Running totals without a budget: it never refuses.

    Guaranteed for pure queries (delta 0), with certainty and whenever one looks or stops: of whatever has been seen,
    the probabilities under neighbouring data differ by a factor of at most e^spent.epsilon, even if every price was
    chosen from the reports before it.

    With deltas: for every (E, D) fixed in advance, what was seen up to the last moment at which the totals were at
    most (E, D) is (E, D)-DP. Where prices, or the moment to stop, depend on reports, the totals are random, and
    "(spent.epsilon, spent.delta)-DP" is not a statement about them: only their largest possible value is a guarantee.
    Basic composition pays nothing more for being read at any time; sharper compositions would (Rogers et al. 2016).
    """

    def __init__(self) -> None:
        self._account = _Account(EpsilonDelta())

    def charge(self, epsilon: Any, delta: Any = 0, label: str = "") -> Charge[EpsilonDelta]:
        """Count a query, before it runs.

        Args:
            epsilon: a number, or a certificate or mechanism that has both; see ``asked``.
            delta: a number.
            label: what it is for.

        Raises:
            TypeError: not numbers.
            ValueError: an amount that is negative, infinite or NaN.
        """
        return self._account.charge(asked(epsilon, delta), label)
