"""Reports of categories by other packages: the time of a report, and the measured error of the estimates, as JSON.

    python benchmarks/category_peers.py > peers.json      # in an environment with multi-freq-ldpy and pure-ldp
    python -m benchmarks.categories --peers peers.json    # in one of this package: the same for it, and the ratios

It imports nothing of this package, since the peers need other versions of NumPy. The error is n times the sum of the
squared errors of all shares, estimated without bias from n reports of values of a Zipf distribution: multi-freq-ldpy's
from its own probabilities, since its estimates are cut off at 0, and pure-ldp's by its servers. Times are of the
processor.
"""

from __future__ import annotations

import importlib.metadata
import json
import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

EPSILON, DOMAINS = 1.0, (266, 1024)
_REPORTS, _TRIALS = 500, 12

Peer = tuple[str, str, Callable[[int], Any], Callable[[list[Any]], np.ndarray]]


def multi_freq(d: int) -> list[Peer]:
    """Return the mechanisms of multi-freq-ldpy: a client, and unbiased estimates of all shares."""
    from multi_freq_ldpy.pure_frequency_oracles.GRR import GRR_Client
    from multi_freq_ldpy.pure_frequency_oracles.SS import SS_Client
    from multi_freq_ldpy.pure_frequency_oracles.UE import UE_Client

    e = math.exp(EPSILON)
    size = max(1, int(np.rint(d / (e + 1))))
    of_sets = size * e / (size * e + d - size)

    def members(p: float, q: float, reports: list[Any]) -> np.ndarray:
        counts = np.bincount(np.concatenate([np.atleast_1d(report) for report in reports]), minlength=d)
        return (counts / len(reports) - q) / (p - q)

    def bits(reports: list[Any]) -> np.ndarray:
        p, q = 0.5, 1 / (e + 1)
        return (np.sum(reports, axis=0) / len(reports) - q) / (p - q)

    response = partial(members, e / (e + d - 1), 1 / (e + d - 1))
    return [
        ("multi-freq-ldpy", "randomised response", partial(GRR_Client, k=d, epsilon=EPSILON), response),
        (
            "multi-freq-ldpy",
            "subset selection",
            partial(SS_Client, k=d, epsilon=EPSILON),
            partial(members, of_sets, (size - of_sets) / (d - 1)),
        ),
        ("multi-freq-ldpy", "unary encoding (OUE)", partial(UE_Client, k=d, epsilon=EPSILON), bits),
    ]


def pure_ldp(d: int) -> list[Peer]:
    """Return the mechanisms of pure-ldp, with its servers."""
    from pure_ldp.frequency_oracles.direct_encoding import DEClient, DEServer
    from pure_ldp.frequency_oracles.hadamard_response import HadamardResponseClient, HadamardResponseServer
    from pure_ldp.frequency_oracles.local_hashing import LHClient, LHServer
    from pure_ldp.frequency_oracles.unary_encoding import UEClient, UEServer

    def shares(server: Any, reports: list[Any]) -> np.ndarray:
        server.reset()
        for report in reports:
            server.aggregate(report)
        values = [server.estimate(value, suppress_warnings=True) for value in range(1, d + 1)]
        return np.array(values) / len(reports)

    hadamard = HadamardResponseServer(EPSILON, d)
    pairs = [
        ("randomised response", DEClient(EPSILON, d), DEServer(EPSILON, d)),
        ("unary encoding (OUE)", UEClient(EPSILON, d, use_oue=True), UEServer(EPSILON, d, use_oue=True)),
        ("local hashing (OLH)", LHClient(EPSILON, d, use_olh=True), LHServer(EPSILON, d, use_olh=True)),
        ("Hadamard response", HadamardResponseClient(EPSILON, d, hadamard.get_hash_funcs()), hadamard),
    ]
    return [
        ("pure-ldp", name, lambda value, client=client: client.privatise(value + 1), partial(shares, server))  # type: ignore[misc]
        for name, client, server in pairs
    ]


def main() -> None:
    """Print a list of rows, and the versions of the packages."""
    rows = []
    for d in DOMAINS:
        rng = np.random.default_rng(0)
        np.random.seed(0)  # noqa: NPY002 (the peers use it)
        weights = 1.0 / np.arange(1, d + 1)
        values = rng.choice(d, _REPORTS, p=weights / weights.sum())
        truth = np.bincount(values, minlength=d) / _REPORTS
        for package, name, client, estimate in [*multi_freq(d), *pure_ldp(d)]:
            client(0)  # Compiled at the first call.
            seconds, errors = 0.0, []
            for _ in range(_TRIALS):
                begin = time.process_time()
                reports = [client(value) for value in values.tolist()]
                seconds += time.process_time() - begin
                errors.append(_REPORTS * float(((estimate(reports) - truth) ** 2).sum()))
            row = {"package": package, "mechanism": name, "categories": d, "seconds": seconds / _TRIALS / _REPORTS}
            row |= {"error": float(np.mean(errors)), "spread": float(np.std(errors, ddof=1) / math.sqrt(_TRIALS))}
            rows.append(row)
    packages = ("multi-freq-ldpy", "pure-ldp", "numpy", "numba")
    versions = {name: importlib.metadata.version(name) for name in packages}
    print(json.dumps({"epsilon": EPSILON, "versions": versions, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
