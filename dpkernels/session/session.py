"""A session: data, a privacy unit, a budget, and statistics that are charged before they are computed."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import threading
import warnings
import weakref
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, NoReturn

from jax import Array

import accountants
from dpkernels import checks
from dpkernels.bounded_json import JsonObject
from dpkernels.budgets.filters import BudgetExceeded, EpsilonDelta, amount, format_amount, minus
from dpkernels.budgets.ledger import Ledger
from dpkernels.decimals import rational, shortest
from dpkernels.random.keys import release_key_bytes
from dpkernels.session import reports
from dpkernels.session.blocks import Data
from dpkernels.session.division import divide, expected_widths, needs_for_widths
from dpkernels.session.methods import Amount, StatisticMethods
from dpkernels.session.reports import Entry
from dpkernels.session.results import Result
from dpkernels.session.run import ReleaseInProgress
from dpkernels.session.statistic import Statistic
from dpkernels.session.sums import floor_to_9_digits
from dpkernels.session.tables import SessionTable, make_table
from dpkernels.staging import replaced

_EPSILONS = 1e-3, 20.0  # of one release
_open_data = set[int | str]()  # identities of the data that sessions without a ledger are of


class DataWarning(UserWarning):
    """A warning for the holder of the data. It depends on the data and is not protected: do not publish it."""


class Session(StatisticMethods):
    """Statistics of data that you hold, within one privacy budget.

        session = dpk.Session(people, person="id", rows_per_person=5, epsilon=1.0)
        session.mean("age", lower=0, upper=100, by={"plan": ["A", "B"]}, epsilon=0.2).table()

    Guarantee: all results together are (epsilon, delta)-DP. Neighbouring data differ in one person: all rows of one
    person are added or removed. Statistics, and their parts of the budget, may be chosen from earlier results, because
    costs of separate calls are added (see ``Filter``); a ``plan`` is one call, whose releases are composed.

    Not covered are: the names and types of columns, that the data has at most 2^29 rows, and a line of a CSV file at
    most 2^24 bytes, the time that a release takes, and warnings of the kind ``DataWarning``.
    """

    def __init__(
        self,
        data: Data,
        person: str | None = None,
        rows_per_person: int | None = None,
        groups_per_person: int | None = None,
        *,
        epsilon: Amount | None = None,
        delta: Amount = 0,
        ledger: Ledger | str | os.PathLike[str] | None = None,
        key: Array | None = None,
    ) -> None:
        """Bound the rows of each person, and open the budget.

        Args:
            data: a pandas or polars DataFrame, a pyarrow Table or RecordBatchReader, a dict of arrays, the path of a
                CSV or Parquet file or of a folder of such files, a list of these with the same columns, or a
                ``ray.data.Dataset``. It must not change while the session is in use.
            person: the column that says whom a row is about. Rows in which it is missing count for nobody and are left
                out. By default a row is a person.
            rows_per_person: the most rows of a person that count; required with ``person``. Which ones do, if there are
                more, is decided by a keyed hash of their content.
            groups_per_person: the most keys for which a person counts when keys are found; by default
                ``rows_per_person``.
            epsilon: the budget of this session; by default what the ledger has.
            delta: the budget's delta, which keys that are found and the composition of plans use.
            ledger: a ledger, or its path, that is charged, too. Give one to all sessions about the same people.
            key: a ChaCha20 key that makes the results repeatable. By default the operating system's randomness is used.

        Raises:
            TypeError: data of another kind, or of arguments.
            ValueError: an argument is out of range or missing.
        """
        self._table = SessionTable.open(data)
        if person is None:
            if rows_per_person not in (None, 1) or groups_per_person not in (None, 1):
                raise ValueError("rows_per_person, groups_per_person: need the column of the person; a row is a person")
            rows_per_person = 1
        elif rows_per_person is None:
            # The answer to whether somebody has two rows would be a release.
            raise ValueError(f"rows_per_person: must be stated for person={person!r}; more rows need more noise")
        self.person, self.rows_per_person = person, checks.integer_in("rows_per_person", rows_per_person, 1, 1 << 20)
        self._groups_per_person = self.rows_per_person
        if groups_per_person is not None:
            groups_per_person = checks.integer_in("groups_per_person", groups_per_person, 1, 1 << 20)
            self._groups_per_person = min(self.rows_per_person, groups_per_person)
        self._ledger = Ledger(ledger) if isinstance(ledger, str | os.PathLike) else ledger
        if epsilon is None and self._ledger is None:
            raise ValueError("epsilon: a session without a ledger needs a budget")
        if epsilon is None and delta:
            raise ValueError("delta: needs the epsilon of this session's budget; the ledger has its own")
        self._filter = None if epsilon is None else accountants.Filter(epsilon, delta)
        self._secret = secrets.token_bytes(32) if key is None else release_key_bytes(key)
        self._entries: list[Entry] = []
        self._spent, self._plans = EpsilonDelta(), 0
        self._lock = threading.RLock()
        self._warned = set[tuple[Hashable, tuple[float, float]]]()
        if person is not None:
            self._table.bound_rows(person, self.rows_per_person, self._derived("rows"))
        if self._ledger is None:
            _warn_of_second_session(data)

    def __repr__(self) -> str:
        return f"Session: {self.neighbouring}. Spent: {self.spent}. Left: {self.left}."

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("Session: cannot be copied, because a copy would not count the releases of the other")

    def _derived(self, name: str) -> bytes:
        return hashlib.blake2b(name.encode(), key=self._secret, digest_size=32).digest()

    # Budget

    @property
    def spent(self) -> EpsilonDelta:
        """Return what this session has spent."""
        return self._spent

    @property
    def left(self) -> EpsilonDelta:
        """Return what a release may still cost: by this session's budget and by the ledger, whichever has less."""
        epsilons, deltas = zip(*(left for _, left in self._budgets()), strict=True)
        return EpsilonDelta(min(epsilons), min(deltas))

    @property
    def budget(self) -> EpsilonDelta:
        """Return the whole budget of this session, or of the ledger if the session has none of its own."""
        return self._budgets()[0][0]

    def _budgets(self) -> list[tuple[EpsilonDelta, EpsilonDelta]]:
        """Return the budget of this session and that of the ledger, as far as there are any, with what is left."""
        budgets = [] if self._filter is None else [(self._filter.budget, self._filter.left)]
        if self._ledger is not None:
            state = self._ledger.state()
            budgets.append((state.budget, state.left))
        return budgets

    def _cost(self, epsilon: Amount | None, share: Amount | None, delta: Amount) -> EpsilonDelta:
        """Return the cost of a release, which floats hold: epsilon is given, or a share of the whole budget."""
        if (epsilon is None) == (share is None):
            raise ValueError("epsilon, share: give one of them, the release's part of the budget")
        if share is not None:
            checks.within("share", share, 0.0, 1.0)
            epsilon = floor_to_9_digits(amount("share", share) * self.budget.epsilon)
        cost = EpsilonDelta(rational(float(amount("epsilon", epsilon))), rational(float(amount("delta", delta))))
        checks.within("epsilon", float(cost.epsilon), *_EPSILONS)
        return cost

    # Releases

    def release(
        self, statistic: Statistic, *, epsilon: Amount | None = None, share: Amount | None = None, delta: Amount = 0
    ) -> Result:
        """Release a statistic. ``count``, ``mean`` and the others are calls of this.

        Args:
            statistic: one of ``dpkernels.session``, such as ``Mean("age", 0, 100)``.
            epsilon: its part of the budget, in [0.001, 20].
            share: the same as a share of the whole budget; give one of the two.
            delta: its delta, which is required if keys are found, and otherwise 0.

        Raises:
            BudgetExceeded: less is left, and the message says how much; nothing was released or charged.
            ValueError: a column does not exist, or an argument is out of range. Nothing was released or charged, and
                no cell of the data decides about this.
        """
        cost = self._cost(epsilon, share, delta)
        return self._release([statistic], [float(cost.epsilon)], [float(cost.delta)], cost)[0]

    def plan(
        self,
        statistics: Sequence[Statistic],
        *,
        epsilon: Amount | None = None,
        share: Amount | None = None,
        delta: Amount = 0,
        widths: Sequence[float] | None = None,
        objective: str = "largest",
        rows: int = 1000,
    ) -> Plan:
        """Divide a budget among statistics; ``expected`` shows widths of intervals, and ``release`` releases all.

        With a delta, the statistics get the largest epsilons whose composition, a rigorous upper bound, is within the
        budget. For many statistics that is more than their share.

        Args:
            statistics: what to release.
            epsilon: the budget of all of them.
            share: the same as a share of the whole budget; give one of the two.
            delta: their delta. Statistics whose keys are found get half of it, in equal parts.
            widths: the widths of 95 % intervals that are wanted, one a statistic. ``tune.allocate`` divides the budget
                for the expected widths relative to these. By default the epsilons are equal.
            objective: what is made small: "largest", the largest relative width; or "variance", the sum of the squares
                of all.
            rows: the number of rows of a group, for which these widths are; it is not read from the data.
        """
        cost, rows = self._cost(epsilon, share, delta), checks.integer_in("rows", rows, 1, 1 << 29)
        is_list = isinstance(statistics, Sequence) and len(statistics) > 0
        if not is_list or not all(isinstance(statistic, Statistic) for statistic in statistics):
            raise ValueError("statistics: must be one or more statistics of dpkernels.session, such as [Count()]")
        needs = [1.0] * len(statistics)
        if widths is not None:
            needs = needs_for_widths(statistics, widths, objective, rows, self.rows_per_person, float(cost.epsilon))
        finder_count = sum(statistic.finds_keys for statistic in statistics)
        key_delta = float(f"{float(cost.delta) / 2 / max(finder_count, 1) * (1 - 1e-9):.9g}")
        deltas = [key_delta if statistic.finds_keys else 0.0 for statistic in statistics]
        composition_delta = float(cost.delta - sum(map(rational, deltas), Fraction(0)))
        epsilons = divide(needs, float(cost.epsilon), composition_delta)
        self._check_all(statistics, epsilons, deltas)
        return Plan(self, tuple(statistics), epsilons, tuple(deltas), cost, rows)

    def check(self, statistic: Statistic, *, epsilon: Amount = 1.0, delta: Amount = 1e-6) -> None:
        """Raise the ValueError of a release with this budget, if there is one; nothing is released or charged."""
        if not isinstance(statistic, Statistic):
            raise TypeError(f"statistic: {statistic!r} is none of dpkernels.session, such as Count()")
        self._table.check_columns(*statistic.names)
        budget = float(amount("epsilon", epsilon)), float(amount("delta", delta))
        statistic.check_budget(self.rows_per_person, self._groups_per_person, *budget)

    def _check_all(self, statistics: Sequence[Statistic], epsilons: Sequence[float], deltas: Sequence[float]) -> None:
        for statistic, epsilon, delta in zip(statistics, epsilons, deltas, strict=True):
            self.check(statistic, epsilon=epsilon, delta=delta)

    def _release(
        self,
        statistics: Sequence[Statistic],
        epsilons: Sequence[float],
        deltas: Sequence[float],
        cost: EpsilonDelta,
        *,
        is_plan: bool = False,
    ) -> list[Result]:
        """Check, warn, charge, and then compute and release."""
        self._check_all(statistics, epsilons, deltas)
        titles = ", ".join(statistic.title for statistic in statistics)
        with self._lock:
            self._check_budgets(cost, titles)
            self._table.check_unchanged()
            for statistic in statistics:
                self._warn_of_extremes(statistic)
            charge = self._charge(cost, titles)
            self._spent = EpsilonDelta(self._spent.epsilon + cost.epsilon, self._spent.delta + cost.delta)
            results = []
            self._plans += is_plan
            plan = self._plans if is_plan else 0
            for statistic, epsilon, delta in zip(statistics, epsilons, deltas, strict=True):
                secret = self._derived(f"release {len(self._entries)} {statistic.title} {statistic.arguments_text}")
                run = ReleaseInProgress(self._table, self.rows_per_person, self._groups_per_person, secret)
                result = statistic.release(run, epsilon, delta)
                self._entries.append(Entry(statistic, plan, cost, tuple(run.noise_records), result, charge))
                results.append(result)
            return results

    def _check_budgets(self, cost: EpsilonDelta, label: str) -> None:
        for budget, left in self._budgets():
            if min(minus(left, cost)) < 0:
                most = self.left
                advice = f"at most epsilon {format_amount(most.epsilon)}, delta {format_amount(most.delta)} fits"
                raise BudgetExceeded(budget, minus(budget, left), cost, f"{label}: {advice}; ")

    def _charge(self, cost: EpsilonDelta, label: str) -> str:
        """Charge the budget and the ledger, or neither; return the hash of the ledger's entry."""
        if self._filter is not None:
            self._filter.check_process()
        self._check_budgets(cost, label)  # Again: meanwhile another process may have charged the ledger.
        charge = ""
        if self._ledger is not None:
            charge = self._ledger.charge(*cost, label=label).entries[-1].hash
        if self._filter is not None:
            self._filter.charge(*cost, label=label)
        return charge

    def _warn_of_extremes(self, statistic: Statistic) -> None:
        """Warn where stated bounds are the extremes of the data, which they were then probably read from."""
        for column, ends in statistic.stated_bounds.items():
            if (column, ends) not in self._warned and ends == self._table.extremes(column):
                warnings.warn(
                    f"the bounds of {column!r} are exactly the smallest and the largest value of the data. Bounds that "
                    "are read from the data are not private: state what is known without it, or give "
                    "bounds='private'. This warning depends on the data; do not publish it",
                    DataWarning,
                    stacklevel=4,
                )
            self._warned.add((column, ends))

    # Reports

    @property
    def neighbouring(self) -> str:
        """Say which data are neighbours."""
        if self.person is None:
            return "one row is added or removed: a row is a person"
        return f"all rows of one person are added or removed, of which at most {self.rows_per_person} count"

    def report(self) -> str:
        """Return what was released, with which noise, at what cost, and two sentences for a methods section.

        Everything in it follows from statements and results, so it may be published with them.
        """
        return reports.report(self._entries, self.spent, self.left, self.neighbouring)

    def to_dict(self, *, confidence: float = 0.95) -> JsonObject:
        """Return results, intervals, certificates and charges as JSON, which ``save`` writes."""
        ledger = None if self._ledger is None else self._ledger.state().ledger
        saved = reports.to_dict(self._entries, self.spent, self.neighbouring, ledger, confidence)
        return dict(json.loads(json.dumps(saved, default=lambda number: number.item())))

    def save(self, path: str | os.PathLike[str], *, confidence: float = 0.95) -> None:
        """Write results, intervals, certificates and charges as JSON, which ``dpkernels certify --verify`` verifies."""
        with replaced(Path(path), 0o666) as file:
            file.write(json.dumps(self.to_dict(confidence=confidence), indent=1).encode())


@dataclass(frozen=True, repr=False)
class Plan:
    """Statistics with their parts of a budget, before anything is released.

    Attributes:
        session: whose data they are of.
        statistics: what is released.
        epsilons: of each statistic.
        deltas: of each statistic.
        cost: of all together.
        rows: of a group, for expected widths.
    """

    session: Session
    statistics: tuple[Statistic, ...]
    epsilons: tuple[float, ...]
    deltas: tuple[float, ...]
    cost: EpsilonDelta
    rows: int

    def __repr__(self) -> str:
        pairs = zip(self.statistics, self.epsilons, strict=True)
        lines = (f"  {statistic.title}: epsilon {shortest(epsilon)}" for statistic, epsilon in pairs)
        return "\n".join([f"Plan of {self.cost}", *lines])

    def expected(self) -> Any:
        """Return a table of the expected widths of 95 % intervals, NaN where they depend on the data; it costs nothing.

        Of a table the width is that of one group of ``rows`` rows, spread in the middle of the bounds.
        """
        columns: dict[str, Sequence[object]] = {
            "statistic": [statistic.title for statistic in self.statistics],
            "epsilon": list(self.epsilons),
            "width": expected_widths(self.statistics, self.epsilons, self.rows, self.session.rows_per_person),
        }
        return make_table(self.session._table.kind, columns)

    def release(self) -> list[Result]:
        """Charge the budget once, and release all statistics; the errors are those of ``Session.release``."""
        return self.session._release(self.statistics, self.epsilons, self.deltas, self.cost, is_plan=True)


def _warn_of_second_session(data: Data) -> None:
    """Warn if there is another session of the same object, or of the same file, without a ledger."""
    identities = [_identity(table) for table in (data if isinstance(data, list | tuple) else [data])]
    if not _open_data.isdisjoint(identities):
        warnings.warn(
            "another session has the same data, and neither has a ledger: their budgets add up. Give one ledger to all "
            "sessions about the same people",
            stacklevel=3,
        )
    _open_data.update(identity for identity in identities if identity is not None)


def _identity(data: Data) -> int | str | None:
    """Return what names an object as long as it exists, or a file; None for lists, whose memory may be used again."""
    if isinstance(data, str | os.PathLike):
        return str(Path(data).resolve())
    owner = next(iter(data.values())) if isinstance(data, Mapping) else data
    try:
        weakref.finalize(owner, _open_data.discard, id(owner))
    except TypeError:
        return None
    return id(owner)
