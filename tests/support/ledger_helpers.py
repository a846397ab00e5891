"""Ledgers in a test: charges, processes that stop, forged files, and the command that charges one."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

from command_helpers import AGE, Run

from dpkernels.budgets import ledger as ledger_module
from dpkernels.budgets.ledger import Ledger

ROOT = Path(__file__).parents[2]


# Begins a process that imports the ledger and not JAX: it starts fast, and may fork.
LIGHT = f"""
import json, os, random, signal, sys, time
sys.path.insert(0, {str(ROOT)!r})
from dpkernels.budgets.filters import BudgetExceeded
from dpkernels.budgets.ledger import Ledger, LedgerError
"""


def light(script: str, *arguments: Any) -> Any:
    """What a light process prints, as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", LIGHT + script, *map(str, arguments)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def some_charges(path: Path, count: int = 5) -> Ledger:
    ledger = Ledger.create(path, 1, 1e-6)
    for number in range(count):
        ledger.charge(0.1, 1e-7, f"query {number}")
    return ledger


# A process dies before a statement that starts with a word.
STOPPING = """
path = sys.argv[1]
import sqlite3
def stopping(word, connect=sqlite3.connect):
    class Stopping(sqlite3.Connection):
        def execute(self, statement, *more):
            if self.in_transaction and statement.startswith(word): os.kill(os.getpid(), signal.SIGKILL)
            return super().execute(statement, *more)
    return lambda *given, **named: connect(*given, **named, factory=Stopping)
"""


READ_ONLY = """
folder = sys.argv[1]
if os.geteuid() == 0:
    os.setgid(65534); os.setuid(65534)
found = [len(Ledger(folder + "/a").state().entries)]
for name in "ab":
    try: Ledger.create(folder + "/" + name, 1, 1e-6).charge(0.1)
    except LedgerError as error: found.append(str(error))
print(json.dumps(found))
"""


def sql(path: Path, *lines: str) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    for line in lines:
        connection.execute(line)
    connection.close()


def forged(path: Path, *prices: str) -> None:
    """A ledger whose hashes are right, of a forger who knows how they are made."""
    start = Ledger.create(path, 1).state()
    head = start.head
    for number, price in enumerate(prices, 1):
        head = ledger_module._hash(head, number, "", "", price, "0")
        sql(path, f"INSERT INTO charges VALUES ({number}, '', '', '{price}', '0', '{head}', '')")
    sql(path, f"UPDATE budget SET head = '{head}'")


LEDGER = ["--ledger", "people.ledger"]


SMALL = ["--column", "age", *AGE]  # epsilon 1


def shown(run: Run) -> dict[str, Any]:
    return json.loads(run("ledger", "people.ledger", "--json").out)
