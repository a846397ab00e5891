"""Memory and time of a session of Parquet files that are larger than memory should be.

    python -m benchmarks.session_memory                      # 10^7 rows, with and without persons
    python -m benchmarks.session_memory --rows 100000000     # 10^8 rows: 1 GB of files
    python -m benchmarks.session_memory --quick              # 10^5 rows: a smoke run

Files of 2 10^6 rows are written to a temporary folder: ids of persons, of which each has five rows in different files,
ages, and 24 plans. A process of its own opens a session, and releases a count, means by plan, three quantiles and the
ten most frequent plans. The peak is that of its resident memory, the imports of all packages included.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.shown import machine, make_parser, markdown

_FILE = 2_000_000
_SESSION = """
import json, resource, sys, time
import dpkernels as dpk
import dpkernels.session

peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
before, start = peak(), time.process_time()
person = {"person": "id", "rows_per_person": 2} if sys.argv[2] == "person" else {}
session = dpk.Session(sys.argv[1], epsilon=4.0, **person)
opened = time.process_time() - start
plans = list(range(24))
session.count(epsilon=1.0)
session.mean("age", 0, 100, by={"plan": plans}, epsilon=1.0)
session.quantiles("age", 0, 100, (0.25, 0.5, 0.75), epsilon=1.0)
session.top("plan", 10, plans, epsilon=1.0)
print(json.dumps([before, peak(), opened, time.process_time() - start - opened]))
"""


def write(folder: Path, rows: int) -> None:
    """Write files of people, in which the rows of a person are far apart."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    rng = np.random.default_rng(1)
    for number, start in enumerate(range(0, rows, _FILE)):
        size = min(_FILE, rows - start)
        columns = {
            "id": (np.arange(start, start + size) * 7919) % max(rows // 5, 1),
            "age": rng.uniform(0, 100, size),
            "plan": rng.integers(0, 24, size).astype(np.int8),
        }
        parquet.write_table(pa.table(columns), folder / f"{number:04}.parquet")


def measured(folder: Path, unit: str) -> dict[str, Any]:
    """Return peaks in GiB, and processor times in seconds, of a session of the files."""
    run = subprocess.run(
        [sys.executable, "-c", _SESSION, str(folder), unit], check=True, capture_output=True, text=True
    )
    before, peak, opened, released = json.loads(run.stdout.splitlines()[-1])
    return {"unit": unit, "imports": before, "peak": peak, "opened": opened, "released": released}


def main() -> None:
    """Print the table."""
    parser = make_parser(__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = 100_000 if options.quick else options.rows
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), rows)
        measurements = [measured(Path(folder), unit) for unit in ("row", "person")]
    if options.json:
        print(json.dumps([{"rows": rows, **measurement} for measurement in measurements]))
        return
    print(machine("pyarrow"))
    header = ["rows", "privacy unit", "GiB after imports", "GiB at the peak", "s to open", "s for 4 releases"]
    cells = [
        [
            f"{rows:,}",
            measurement["unit"],
            *(f"{measurement[name]:.2f}" for name in ("imports", "peak", "opened", "released")),
        ]
        for measurement in measurements
    ]
    print(markdown(header, cells))


if __name__ == "__main__":
    main()
