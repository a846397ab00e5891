"""Every number of privacy that ``account`` prints is that of the mechanism's density, in 50 digits."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from additive_commands import ADDITIVE
from command_helpers import Run, command
from oracle import exact_profile

import dpkernels as dpk

run = pytest.fixture(command, name="run")

AT = ["--at-epsilon", "0.3", "--at-epsilon", "0.9", "--at-delta", "1e-3", "--at-delta", "1e-7"]
INTERVAL = ["--epsilon", "1", "--lower", "-3", "--upper", "5"]
# The noise is far from even: its two directions differ.
UNEVEN = ["--epsilon", "1", "--delta", "0.1", "--sensitivity", "1", "--noise-upper", "2.5"]
# Options, the mechanism, and the sensitivity of additive noise.
CASES: dict[str, tuple[list[str], Any, float | None]] = {
    "truncated-laplace": (UNEVEN, dpk.truncated_laplace(epsilon=1.0, delta=0.1, sensitivity=1.0, upper=2.5), 1.0)
}
for name in ("piecewise", "duchi", "hybrid"):
    CASES[name] = INTERVAL, dpk.MECHANISMS[name](epsilon=1.0, lower=-3.0, upper=5.0), None
for name in ("laplace", "gaussian, sigma", "staircase, gamma"):
    CASES[name] = ADDITIVE[name][0], ADDITIVE[name][1](), 2.0


@pytest.mark.parametrize("case", CASES)
def test_account_prints_the_truth(run: Run, case: str) -> None:
    given, mechanism, sensitivity = CASES[case]
    done = run("account", case.partition(",")[0], *given, *AT, "--json")
    assert done.code == 0, done.err
    payload = json.loads(done.out)
    for row in payload["delta_at_epsilon"]:
        true = float(exact_profile(mechanism, row["epsilon"], sensitivity))
        assert row["delta"] == pytest.approx(true, rel=1e-9, abs=1e-15)
    for row in payload["epsilon_at_delta"]:
        if row["epsilon"] is None:  # No epsilon suffices.
            assert float(exact_profile(mechanism, 30.0, sensitivity)) > row["delta"]
            continue
        above, below = (
            float(exact_profile(mechanism, row["epsilon"] * (1 + share), sensitivity)) for share in (1e-9, -1e-6)
        )
        assert above <= row["delta"] * (1 + 1e-9) + 1e-15
        assert below >= row["delta"] or row["epsilon"] == 0.0
    if (pure := payload["pure_epsilon"]) is not None:
        assert float(exact_profile(mechanism, np.nextafter(pure, np.inf), sensitivity)) <= 1e-12
        assert float(exact_profile(mechanism, pure * (1 - 1e-3), sensitivity)) > 0
