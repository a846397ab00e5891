"""``perturb`` charges a ledger for what it releases, before it releases it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import accountants
import dpkernels as dpk
from dpkernels.budgets.filters import BudgetExceeded, Filter
from dpkernels.budgets.ledger import Ledger
from dpkernels.exact.certificate import _KINDS, CertificateError
from dpkernels.release import charges

NOISE = dpk.discrete_laplace(epsilon=1.0, sensitivity=1.0)
LOCAL = dpk.duchi(epsilon=0.5, lower=0.0, upper=10.0)
GAUSSIAN = accountants.calibrate.gaussian(epsilon=1.0, delta=1e-6, sensitivity=1.0)
VECTOR = dpk.on_vectors(NOISE, dimensions=3, norm="l1", lattice=1.0)
COLUMNS = {"age": LOCAL, "count": NOISE}
THREE = np.array([1.0, 2.0, 3.0])
PEOPLE = {"age": [1.0, 2.0, 3.0], "count": [4.0, 5.0, 6.0]}
SAME, DIFFERENT = "same-people", "different-people"

# Of each release its epsilon and its delta.
CASES: dict[str, tuple[Any, Any, str | None, str, str]] = {
    "a number": (3.0, NOISE, None, "1", "0"),
    "overlapping counts": (THREE, NOISE, SAME, "3", "0"),
    "counts of different people": (THREE, NOISE, DIFFERENT, "1", "0"),
    "one count": (THREE[:1], NOISE, None, "1", "0"),
    "rows of two counts": (np.ones((3, 2)), NOISE, DIFFERENT, "2", "0"),
    "one row of two counts": (np.ones((1, 2)), NOISE, None, "2", "0"),
    "rows of two counts, same": (np.ones((3, 2)), NOISE, SAME, "6", "0"),
    "local": (THREE, LOCAL, None, "0.5", "0"),
    "local rows of two": (np.ones((3, 2)), LOCAL, None, "1", "0"),
    "local, one person": (THREE, LOCAL, SAME, "1.5", "0"),
    "a vector": (THREE, VECTOR, None, "1", "0"),
    "two vectors": (np.ones((2, 3)), VECTOR, SAME, "2", "0"),
    "two vectors, different": (np.ones((2, 3)), VECTOR, DIFFERENT, "1", "0"),
    "pandas": (pd.DataFrame(PEOPLE), COLUMNS, DIFFERENT, "1.5", "0"),
    "polars": (pl.DataFrame(PEOPLE), COLUMNS, SAME, "4.5", "0"),
    "pyarrow": (pa.table(PEOPLE), COLUMNS, SAME, "4.5", "0"),
    "a series": (pd.Series(THREE), NOISE, SAME, "3", "0"),
    "an arrow column": (pa.chunked_array([THREE]), LOCAL, None, "0.5", "0"),
    "a sampler": (THREE, dpk.exact_sampler(NOISE), SAME, "3", "0"),
    "noise with a delta": (THREE, GAUSSIAN, SAME, "3", "3e-6"),
    "noise with a delta, different": (THREE, GAUSSIAN, DIFFERENT, "1", "1e-6"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_charge_is_what_is_released_about_one_person(case: str) -> None:
    x, mechanism, rows, epsilon, delta = CASES[case]
    budget = Filter(10, 0.1)
    reports = dpk.perturb(x, mechanism, ledger=budget, rows=rows, label="query")
    assert type(reports) is type(x)
    assert budget.charges == (((Fraction(epsilon), Fraction(delta)), "query"),)


def test_missing_values_are_charged_as_present_ones_are() -> None:
    for missing, length in (("keep", 3), ("drop", 2)):
        budget = Filter(10, 0.1)
        holes = np.array([1.0, np.nan, 3.0])
        assert len(dpk.perturb(holes, NOISE, missing=missing, ledger=budget, rows=SAME)) == length
        assert budget.spent.epsilon == 3


REFUSED: dict[str, tuple[Any, Any, dict[str, Any], type[Exception], str]] = {
    "statistics about nobody": (THREE, NOISE, {}, ValueError, "rows: None; x has 3 rows of statistics"),
    "a column of them": (pd.DataFrame(PEOPLE), COLUMNS, {}, ValueError, "rows: None; x has 3 rows of statistics"),
    "vectors about nobody": (np.ones((2, 3)), VECTOR, {}, ValueError, "rows: None; x has 2 rows of statistics"),
    "another word": (THREE, NOISE, {"rows": "same"}, ValueError, "rows: 'same' is not one of"),
    "a simulation": (THREE, LOCAL, {"exact": False}, ValueError, "ledger: a simulation"),
    "a list": ([1.0], LOCAL, {}, TypeError, "x: list is not an array"),
    "text": (np.array(["a"]), LOCAL, {}, TypeError, "x: holds <U1"),
    "a label that is no text": (THREE, LOCAL, {"label": 5}, TypeError, "label: 5 must be a string"),
    "a column of text": (pd.DataFrame({"age": ["a"]}), {"age": LOCAL}, {}, TypeError, "column 'age': x: holds"),
    "text in polars": (pl.Series(["a"]), LOCAL, {}, TypeError, "x: holds String"),
    "text in pyarrow": (pa.array(["a"]), LOCAL, {}, TypeError, "x: holds string"),
    "labels": (pd.Index(THREE), LOCAL, {}, TypeError, "x: is a pandas.Index"),
    "an expression": (pl.col("age"), LOCAL, {}, TypeError, "x: is a polars.Expr"),
    "a short key": (THREE, LOCAL, {"key": jax.random.key(0)}, TypeError, "key: a release needs a 256-bit"),
    "a number that is missing": (3.0, LOCAL, {"missing": "keep"}, TypeError, "missing: is for arrays"),
    "a missing number of JAX": (jnp.ones(3), LOCAL, {"missing": "drop"}, TypeError, "missing: ArrayImpl"),
    "nothing": (THREE[:0], LOCAL, {}, ValueError, "x: is empty"),
    "no such column": (pd.DataFrame(PEOPLE), {"pay": LOCAL}, {}, ValueError, "mechanism: no column 'pay'"),
    "a table without a dict": (pd.DataFrame(PEOPLE), LOCAL, {}, TypeError, "mechanism: a table needs a dict"),
    "a dict without a table": (THREE, COLUMNS, {}, TypeError, "mechanism: a dict is for tables"),
    "a short vector": (THREE[:2], VECTOR, {}, ValueError, "x: has shape"),
    "no claim": (
        THREE,
        dpk.Additive(dpk.Gaussian(1.0)),
        {"rows": SAME},
        CertificateError,
        "mechanism: claims sensitivity None",
    ),
}


# A mechanism of every kind of certificate.
KINDS = {
    "window": dpk.piecewise(epsilon=1.0, lower=0.0, upper=10.0),
    "placed window": dpk.square_wave(epsilon=1.0, lower=0.0, upper=10.0),
    "rows": dpk.duchi(epsilon=1.0, lower=0.0, upper=10.0),
    "mixture": dpk.hybrid(epsilon=1.0, lower=0.0, upper=10.0),
    "multivariate": dpk.multivariate(dimensions=3, epsilon=1.0, lower=0.0, upper=10.0),
    "noise": NOISE,
    "vector noise": VECTOR,
    "set of categories": dpk.subset_selection(1.0, 5, 2),
    "block of categories": dpk.block_response(1.0, 30),
    "prefixes": dpk.prefix_response(1.0, 3, 3),
    "statistics in an interval": dpk.central_piecewise(epsilon=1.0, sensitivity=1.0, lower=0.0, upper=10.0),
    "batch": dpk.piecewise(epsilon=np.ones(1), lower=0.0, upper=10.0),
    "batch of noise": dpk.laplace(epsilon=np.ones(1), sensitivity=1.0),
}


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_people_by_default_only_if_the_certificate_says_so(kind: str) -> None:
    sampler = dpk.exact_sampler(KINDS[kind])
    is_local = "local DP" in sampler.certificate.covers
    row = (3,) if hasattr(sampler.mechanism, "dimensions") else getattr(sampler, "shape", ())
    x = np.ones((2, *row), np.int64)  # Also codes of categories.
    if is_local:
        assert charges.cost(x, sampler, None)[0] == 1
    else:
        with pytest.raises(ValueError, match=r"rows: None; x has 2 rows (of statistics|with a mechanism each)"):
            charges.cost(x, sampler, None)


def test_a_mechanism_of_every_kind_of_certificate_is_there() -> None:
    kinds = {type(dpk.exact_sampler(mechanism).certificate) for mechanism in KINDS.values()}
    assert kinds == set(_KINDS.values()) - {_KINDS["shared noise"]}  # It is a part of batches alone.


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_is_not_charged(case: str) -> None:
    x, mechanism, options, error, words = REFUSED[case]
    budget = Filter(10, 0.1)
    with pytest.raises(error, match=words):
        dpk.perturb(x, mechanism, ledger=budget, **options)
    assert budget.charges == ()


@pytest.mark.parametrize("ledger", ["people.ledger", 1.0, Ledger, accountants.ConcentratedFilter(1)])
def test_what_cannot_be_charged_is_no_ledger(ledger: Any) -> None:
    with pytest.raises(TypeError, match=r"^ledger: "):
        dpk.perturb(3.0, LOCAL, ledger=ledger)


@pytest.mark.parametrize("option", [{"rows": SAME}, {"label": "query"}])
def test_a_description_of_a_charge_needs_a_ledger(option: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="describes a charge; it needs the ledger that is charged"):
        dpk.perturb(THREE, NOISE, **option)


def test_a_refused_charge_releases_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpkernels.release.perturb._perturb_column", lambda *_, **__: pytest.fail("released"))
    budget = Filter(2.5, 0.1)
    with pytest.raises(BudgetExceeded):
        dpk.perturb(THREE, NOISE, ledger=budget, rows=SAME)
    assert budget.charges == ()


def test_a_release_that_fails_keeps_its_charge() -> None:
    budget = Filter(10, 0.1)
    with pytest.raises(ValueError, match="row 1 is nan") as failed:
        dpk.perturb(np.array([1.0, np.nan]), NOISE, ledger=budget, rows=SAME)
    assert failed.value.__notes__ == ["The ledger was charged epsilon 2, delta 0 for this release. The charge stays."]
    assert budget.spent.epsilon == 2


def test_the_mechanism_that_is_charged_is_released() -> None:
    """A ledger that changes the caller's dict between the charge and the release changes nothing."""
    mechanisms = {"count": NOISE}

    class Changing(Filter):
        def charge(self, *amounts: Any, **named: Any) -> Any:
            mechanisms["count"] = dpk.duchi(epsilon=20.0, lower=0.0, upper=10.0)
            mechanisms["age"] = LOCAL
            return super().charge(*amounts, **named)

    table = dpk.perturb(pd.DataFrame(PEOPLE), mechanisms, ledger=Changing(10, 0.1), rows=SAME)
    assert table["age"].tolist() == PEOPLE["age"]
    assert all(report == round(report) for report in table["count"])


@pytest.mark.lengthy
def test_a_threshold_release_is_charged_before_it_is_made() -> None:
    counts = {"a": 500, "b": 3}
    options = {"sigma": 8.0, "truncation_delta": 1e-9, "delta": 1e-7, "l0_sensitivity": 2}
    budget = Filter(10, 0.1)
    released = accountants.unknown_domain_top_k(counts, ledger=budget, label="items", **options)
    assert released.items == ("a",)
    # The certified claim of a count, its largest loss and the mass of the truncation, for each of two counts.
    assert budget.spent.delta == Fraction("2e-9")
    assert 1 < budget.spent.epsilon < 2
    for exact, ledger, error in ((True, Filter(1, 0.1), BudgetExceeded), (False, budget, ValueError)):
        with pytest.raises(error):
            accountants.unknown_domain_top_k(counts, ledger=ledger, exact=exact, **options)
    assert len(budget.charges) == 1


KILLED = """
import os, signal, sys
import numpy as np, dpkernels as dpk, accountants
from dpkernels.release import perturb as module
def killed(*_, **__): os.kill(os.getpid(), signal.SIGKILL)
module._perturb_column = killed
ledger = accountants.Ledger.create(sys.argv[1], 5, 0.1)
dpk.perturb(np.ones(3), dpk.discrete_laplace(epsilon=1.0, sensitivity=1.0), ledger=ledger, rows="same-people")
"""


@pytest.mark.lengthy
def test_a_process_that_dies_between_charge_and_release_has_charged(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "a")], capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert Ledger(tmp_path / "a").state().spent.epsilon == 3


RACING = """
import json, sys
import numpy as np, dpkernels as dpk, accountants
ledger, released = accountants.Ledger.create(sys.argv[1], 60, 0.1), 0
noise = dpk.discrete_laplace(epsilon=1.0, sensitivity=1.0)
try:
    while True:
        released += len(dpk.perturb(np.ones(3), noise, ledger=ledger, rows="same-people"))
except accountants.BudgetExceeded:
    print(json.dumps(released))
"""


@pytest.mark.lengthy
def test_two_processes_release_what_the_budget_pays_for(tmp_path: Path) -> None:
    command = [sys.executable, "-c", RACING, str(tmp_path / "a")]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    released = [json.loads(process.communicate(timeout=120)[0]) for process in both]
    assert sum(released) == 60
    assert Ledger(tmp_path / "a").state().left.epsilon == 0
