"""Budgets over several queries: a filter, which refuses charges that would exceed it, and an odometer, which counts.

Sums are exact, see ``amounts``. The guarantees of all charged queries must use the same neighbouring relation. Every
query, with its epsilon and delta, may be chosen after seeing the outputs of the earlier ones. The data may be accessed
only through charged queries. These objects exist in one process; ``ledger.Ledger`` is persistent.
"""

from __future__ import annotations

import threading
from typing import Any, Generic, NamedTuple

from dpkernels.budgets.amounts import Amounts, EpsilonDelta, Rho, amount, asked, budgeted, minus, plus


class Charge(NamedTuple, Generic[Amounts]):
    """The charge of one query.

    Attributes:
        amounts: its cost.
        label: a description of the query.
    """

    amounts: Amounts
    label: str


class BudgetExceeded(ValueError):  # noqa: N818 - it is no error of the caller's
    """A charge was refused and not made; the query must not run.

    Attributes:
        budget: the whole budget.
        spent: the sum of the earlier charges.
        asked: the refused amounts.
        where: the owner of the budget, for the message.
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
    """Refuse a charge that exceeds the rest of the budget.

    Raises:
        BudgetExceeded: a sum would be above the budget.
    """
    if min(minus(budget, plus(spent, asked))) < 0:
        raise BudgetExceeded(budget, spent, asked, where)


class _Charged(Generic[Amounts]):
    """An object that is charged, with a lock that makes checking and charging atomic.

    A lock cannot be pickled or deeply copied, and therefore this object cannot either: two copies would spend the same
    budget twice.
    """

    def __init__(self, zero: Amounts, budget: Amounts | None = None) -> None:
        self._spent: Amounts = zero
        self._charges: list[Charge[Amounts]] = []
        self._budget: Amounts | None = budget
        self._lock = threading.Lock()

    @property
    def spent(self) -> Amounts:
        """Return the sum of the charges."""
        return self._spent

    @property
    def charges(self) -> tuple[Charge[Amounts], ...]:
        """Return every charge, the first first."""
        return tuple(self._charges)

    def _charge(self, asked: Amounts, label: str) -> Charge[Amounts]:
        with self._lock:
            if self._budget is not None:
                check(self._budget, self._spent, asked)
            # The sum is updated first, so that an interruption never loses a granted charge.
            self._spent = plus(self._spent, asked)
            self._charges.append(made := Charge(asked, label))
            return made


class _Limited(_Charged[Amounts]):
    """An object with a budget."""

    budget: Amounts

    @property
    def left(self) -> Amounts:
        """Return the budget less the charges."""
        return minus(self.budget, self.spent)


class _ByEpsilonDelta(_Charged[EpsilonDelta]):
    """An object that is charged with (epsilon, delta)."""

    def charge(self, epsilon: Any, delta: Any = 0, label: str = "") -> Charge[EpsilonDelta]:
        """Charge a query. Run the query only after this returns.

        Args:
            epsilon: a number, or a certificate or mechanism that has both; see ``asked``.
            delta: a number.
            label: a description of the query.

        Raises:
            BudgetExceeded: the charge exceeds the rest of a budget and was not made.
            TypeError: not numbers.
            ValueError: an amount that is negative, infinite or NaN.
        """
        return self._charge(asked(epsilon, delta), label)


class Filter(_Limited[EpsilonDelta], _ByEpsilonDelta):
    """A privacy filter: an (epsilon, delta) budget fixed in advance, and charges that never exceed it.

    Guarantee: if every query is charged before it runs, and no refused query runs, all outputs together are
    (epsilon, delta)-DP. Each query and its cost may depend on the earlier outputs, and so may the time to stop. Sums of
    epsilon and of delta suffice by the basic filter of Rogers, Roth, Ullman & Vadhan 2016. Advanced composition for
    costs fixed in advance is not valid here. Threads may share a filter.

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
        super().__init__(EpsilonDelta(), self.budget)


class ConcentratedFilter(_Limited[Rho]):
    """A privacy filter for zCDP: a budget rho fixed in advance, and charges that never exceed it.

    The guarantee is that of ``Filter`` with rho-zCDP in place of (epsilon, delta)-DP; each charge may depend on earlier
    outputs (Feldman & Zrnic 2021, for every Renyi order; Whitehouse, Ramdas, Rogers & Wu 2023).
    ``concentrated.best_epsilon(rho, delta)`` of the whole budget, at a delta fixed in advance, is the corresponding
    epsilon. The filter is for pure zCDP, without the delta of approximate zCDP.

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
        super().__init__(Rho(), self.budget)
        if self.budget.rho == 0:
            raise ValueError("rho: a budget of 0 allows no charge")

    def charge(self, rho: Any, label: str = "") -> Charge[Rho]:
        """Charge a query. Run the query only after this returns.

        Raises:
            BudgetExceeded: the charge exceeds the rest of the budget and was not made.
            TypeError: not a number.
            ValueError: negative, infinite or NaN.
        """
        return self._charge(Rho(amount("rho", rho)), label)


class Odometer(_ByEpsilonDelta):
    """A privacy odometer: running totals without a budget, which never refuse a charge.

    Guarantee for pure queries (delta 0), at any time: the probabilities of the outputs so far under neighbouring data
    differ by a factor of at most e^spent.epsilon, even if every cost was chosen from the earlier outputs.

    Guarantee with deltas: for every (E, D) fixed in advance, the outputs up to the last moment at which the totals were
    at most (E, D) are (E, D)-DP. If costs or the time to stop depend on outputs, the totals are random, and the outputs
    are not "(spent.epsilon, spent.delta)-DP": only the largest possible value of the totals is a guarantee. With
    basic composition the totals may be read at any time; sharper compositions would need more (Rogers et al. 2016).
    """

    def __init__(self) -> None:
        super().__init__(EpsilonDelta())
