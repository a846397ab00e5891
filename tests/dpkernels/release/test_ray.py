"""Real Ray on this machine: two nodes, workers, nodes and drivers that are killed, and where the key is not."""

from __future__ import annotations

import base64
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_helpers import Run, command
from dataset_helpers import AGE, MECHANISM, SECRET, expected, is_release, names, released, write

import dpkernels as dpk
from dpkernels.cli.dataset import ray_watch
from dpkernels.cli.dataset.folder import NOTE, SIDECAR
from dpkernels.cli.dataset.perturb import Secret, perturb_part
from dpkernels.random.keys import column_secret
from dpkernels.release import ray_data
from dpkernels.release.ray_data import BlockSecrets, number_rows, perturb_block

ray = pytest.importorskip("ray")

run = pytest.fixture(command, name="run")
RAY = ("--engine", "ray", "--quiet", *AGE)
CODE = "import sys; from dpkernels.cli import main; sys.exit(main())"
STORE = 80 << 20
# A node that is gone is missed after 1 s instead of 20.
HEALTH = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 200, "health_check_failure_threshold": 5}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head that runs no tasks, and two nodes of a CPU each."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_AUTH_MODE", "disabled")  # else a token is written to the home folder
        common = {"object_store_memory": STORE, "include_dashboard": False}
        made = Cluster(initialize_head=True, head_node_args={**common, "num_cpus": 0, "_system_config": HEALTH})
        try:
            for _ in range(2):
                made.add_node(num_cpus=1, **common)
            ray.init(address=made.address, log_to_driver=False, logging_level="ERROR")
            session = Path(ray._private.worker._global_node.get_session_dir_path())
            yield made
        finally:
            ray.shutdown()
            made.shutdown()
    gone_by(
        10, lambda: not [one for one in psutil.process_iter(["cmdline"]) if session.name in str(one.info["cmdline"])]
    )
    shutil.rmtree(session, ignore_errors=True)


def gone_by(seconds: float, condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def known_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpkernels.cli.dataset.perturb.Secret", lambda _: Secret(SECRET))


def stalling(folder: Path, numbers: set[int]) -> Callable[..., Any]:
    """``perturb_part`` that, the first time, waits to be killed after it has written; its runs leave notes."""

    def work(job: Any, secret: Any, part: Any) -> Any:
        note, place = folder / f"{part.number}-{os.getpid()}", ray.get_runtime_context().get_node_id()
        first = not list(folder.glob(f"{part.number}-*"))
        done = perturb_part(job, secret, part)
        note.write_text(f"{place} {done.written.sha256}")
        if first and part.number in numbers:
            time.sleep(300)
        return done

    return work


def when_there(pattern: str, folder: Path, then: Callable[[str], None]) -> threading.Thread:
    """Do something with the name of a file as soon as there is one."""

    def wait() -> None:
        gone_by(60, lambda: [path for path in folder.glob(pattern) if path.read_text()])
        then(next(iter(folder.glob(pattern))).name)

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


@pytest.mark.thorough
def test_a_release_of_a_cluster_is_that_of_one_process(cluster: Any, run: Run, known_secret: None) -> None:
    ages = write(Path("in"), files=50, rows=300)
    assert run("perturb", "in", "out", *RAY).code == 0
    assert is_release(Path("out"), ages)
    assert names() == ["in", "out"]
    assert run("perturb", "in", "alone", "--quiet", *AGE).code == 0
    for path in Path("alone").glob("[!_]*"):
        assert path.read_bytes() == Path("out", path.name).read_bytes()
    assert Path("alone", SIDECAR).read_text() == Path("out", SIDECAR).read_text()
    assert "mean" in run("estimate", "out", "--column", "age", "--engine", "ray").out


@pytest.mark.thorough
def test_a_worker_that_is_killed_after_it_has_written(
    cluster: Any, run: Run, known_secret: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ages = write(Path("in"), files=8)
    (notes := tmp_path / "notes").mkdir()
    monkeypatch.setattr("dpkernels.cli.dataset.perturb.perturb_part", stalling(notes, {3}))
    killer = when_there("3-*", notes, lambda name: os.kill(int(name.partition("-")[2]), signal.SIGKILL))
    assert run("perturb", "in", "out", *RAY).code == 0
    killer.join()
    assert is_release(Path("out"), ages)
    first, second = sorted(notes.glob("3-*"))
    assert first.read_text().split()[1] == second.read_text().split()[1]
    assert len(names(notes)) == 9


def node_of(cluster: Any, wanted: str) -> Any:
    (found,) = [node for node in cluster.worker_nodes if node.node_id == wanted]
    return found


def kill_node(cluster: Any, node: Any) -> None:
    """SIGKILL, by pid; ``replaced`` puts another in its place."""
    os.kill(node.all_processes["raylet"][0].process.pid, signal.SIGKILL)
    node.all_processes["raylet"][0].process.wait()
    cluster.worker_nodes.discard(node)


def replaced(cluster: Any) -> None:
    """Two nodes again; in the main thread, for Ray sets handlers of signals."""
    while len(cluster.worker_nodes) < 2:
        cluster.add_node(num_cpus=1, object_store_memory=STORE, include_dashboard=False)


@pytest.mark.thorough
def test_a_node_that_is_killed(
    cluster: Any, run: Run, known_secret: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ages = write(Path("in"), files=8)
    (notes := tmp_path / "notes").mkdir()
    monkeypatch.setattr("dpkernels.cli.dataset.perturb.perturb_part", stalling(notes, {4}))
    killer = when_there(
        "4-*", notes, lambda name: kill_node(cluster, node_of(cluster, (notes / name).read_text().split()[0]))
    )
    assert run("perturb", "in", "out", *RAY).code == 0
    killer.join()
    replaced(cluster)
    assert is_release(Path("out"), ages)
    first, second = (path.read_text().split() for path in notes.glob("4-*"))
    assert first[0] != second[0]
    assert first[1] == second[1]


@pytest.mark.thorough
def test_a_driver_that_is_killed(cluster: Any, run: Run, tmp_path: Path) -> None:
    ages = write(Path("in"), files=300, rows=200)
    command = [sys.executable, "-c", CODE, "perturb", "in", "out", "--address", cluster.address, *RAY]
    process = subprocess.Popen(command, cwd=tmp_path)
    gone_by(60, lambda: list(tmp_path.glob(".dpkernels-*.parts/0*")))
    process.kill()
    assert process.wait() == -signal.SIGKILL
    (left,) = tmp_path.glob(".dpkernels-*.parts")
    assert names() == [left.name, f"{left.name.rpartition('-')[0]}.lock", "in"]
    assert not Path("out").exists()
    assert "no release" in (left / NOTE).read_text()
    assert not (left / SIDECAR).exists()
    before = {path.name: path.read_bytes() for path in left.glob("[!_]*")}
    result = run("perturb", "in", "out", *RAY)
    assert result.code == 0
    assert "removed" in result.err
    assert names() == ["in", "out"]
    assert released(Path("out"))["id"].to_pylist() == list(range(len(ages)))
    assert all(Path("out", name).read_bytes() != then for name, then in before.items())


@pytest.mark.thorough
def test_bad_values_are_named_by_the_driver_alone(cluster: Any, run: Run) -> None:
    """And not by Ray: what its workers print, or raise, others can read."""
    write(Path("in"), files=6, rows=100)
    pq.write_table(
        pa.table({"id": np.arange(100), "age": np.full(100, 120.0) + (np.arange(100) == 55) * 7.8125}),
        "in/0004.parquet",
    )
    result = run("perturb", "in", "out", *RAY)
    assert result.code == 1
    for words in ("0004.parquet", "column 'age'", "row 55", "127.8125"):
        assert words in result.err
    assert names() == ["in"]
    time.sleep(0.5)
    assert not found_in(session(), [b"127.8125"])


@pytest.mark.lengthy
@pytest.mark.quick("TypeError-1")
@pytest.mark.parametrize(("kind", "code"), [(TypeError, 1), (KeyError, 1), (click.UsageError, 2)])
def test_an_error_that_nobody_foresaw_is_told_by_the_driver_alone(
    cluster: Any, run: Run, monkeypatch: pytest.MonkeyPatch, kind: type[Exception], code: int
) -> None:
    write(Path("in"), files=1, rows=5)
    value = f"1{os.urandom(8).hex()}"

    def work(job: Any, secret: Any, part: Any, value: str = value) -> Any:
        raise kind(f"what is {value}?")

    monkeypatch.setattr("dpkernels.cli.dataset.perturb.perturb_part", work)
    result = run("perturb", "in", "out", *RAY)
    assert (result.code, f"what is {value}?" in result.err) == (code, True)
    assert "0000.parquet" in result.err or code == 2
    assert names() == ["in"]
    time.sleep(0.5)
    assert found_in(session(), [value.encode()]) == []


@pytest.mark.thorough
def test_a_cluster_of_our_own_leaves_no_token(tmp_path: Path) -> None:
    """In the home folder, where Ray keeps one that all its later clusters take."""
    ages = write(tmp_path / "in", files=2, rows=20)
    (tmp_path / "home").mkdir()
    given = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    command = [sys.executable, "-c", CODE, "perturb", "in", "out", *RAY]
    subprocess.run(command, cwd=tmp_path, check=True, env={**given, "HOME": str(tmp_path / "home")})
    assert len(released(tmp_path / "out")) == len(ages)
    assert not list((tmp_path / "home").rglob("*token*"))


@pytest.mark.lengthy
def test_a_part_that_fails_wherever_it_is_tried(cluster: Any, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    write(Path("in"), files=3)

    def work(job: Any, secret: Any, part: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("dpkernels.cli.dataset.perturb.perturb_part", work)
    result = run("perturb", "in", "out", *RAY, "--retries", "1")
    assert result.code == 1
    assert re.search(r"in/000\d.parquet, part \d: OSError: .*No space left on device", result.err)
    assert names() == ["in"]


# the key


def session() -> Path:
    return Path(ray._private.worker._global_node.get_session_dir_path())


def forms_of(secret: bytes) -> list[bytes]:
    """How a key may look in a file."""
    words = [str(word).encode() for word in np.frombuffer(secret, "<u4")]
    every = [column_secret(secret, "age"), secret]
    texts = [
        f(one)
        for one in every
        for f in (bytes.hex, repr, lambda b: base64.b64encode(b).decode().rstrip("="), lambda b: str(list(b))[1:-1])
    ]
    return [*every, *(text.strip("b'\"").encode() for text in texts), b" ".join(words[:4]), b", ".join(words[:4])]


def found_in(folder: Path, wanted: list[bytes]) -> list[str]:
    """Files below a folder that hold any of these."""
    texts = ((path, path.read_bytes()) for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return [str(path) for path, text in texts if any(one in text for one in wanted)]


def stores() -> Iterator[bytes]:
    """The object stores' shared memory, as far as it was used."""
    for process in psutil.process_iter(["name"]):
        if process.info["name"] == "raylet":
            for handle in Path(f"/proc/{process.pid}/fd").iterdir():
                if "plasma" in str(handle.readlink()):
                    yield handle.read_bytes()


@pytest.mark.thorough
def test_the_key_is_in_no_file_of_ray_and_none_of_ours(
    cluster: Any, run: Run, known_secret: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the store overflows onto the disk, workers are killed and parts fail."""
    write(Path("in"), files=8, rows=500)
    (notes := tmp_path / "notes").mkdir()
    monkeypatch.setattr("dpkernels.cli.dataset.perturb.perturb_part", stalling(notes, {2}))
    killer = when_there("2-*", notes, lambda name: os.kill(int(name.partition("-")[2]), signal.SIGKILL))
    noise = np.random.default_rng(0)
    filler = [ray.put(noise.bytes(20 << 20)) for _ in range(6)]
    done = run("perturb", "in", "out", *RAY)
    killer.join()
    filler += [ray.put(noise.bytes(20 << 20)) for _ in range(6)]
    write(Path("bad"), files=1, rows=50)
    failed = run(
        "perturb", "bad", "out2", "--column", "age", "--lower", "0", "--upper", "1", "--epsilon", "1", "--engine", "ray"
    )
    assert (done.code, failed.code) == (0, 1)
    gone_by(20, lambda: [path for path in session().rglob("*") if "spilled" in str(path.parent)])
    wanted = forms_of(SECRET)
    assert found_in(session(), wanted) == []
    assert found_in(tmp_path, wanted) == []
    assert not any(one in text for text in stores() for one in wanted)
    assert not any(one in (done.out + done.err + failed.out + failed.err).encode() for one in wanted)
    assert SECRET.hex() not in repr(Secret(SECRET)) + repr([Secret(SECRET)]) + repr(BlockSecrets(SECRET, SECRET))
    del filler


@pytest.mark.thorough
def test_a_key_that_is_printed_or_stored_is_found(cluster: Any, tmp_path: Path) -> None:
    """What the test before looks with finds what a careless engine would leave."""
    key = os.urandom(32)

    @ray.remote
    def careless(one: bytes) -> None:
        print("the key is", one.hex(), flush=True)

    ray.get(careless.remote(key))
    gone_by(20, lambda: found_in(session(), forms_of(key)))
    held = ray.put(key * 10_000)
    assert any(key in text for text in stores())
    del held


# a cluster of the command's own


STANDS_IN = """
import sys, time
file = open(sys.argv[1])
with open("/proc/self/comm", "w") as name: name.write("stands in")
print("ready", flush=True)
time.sleep(600)
"""


def standing_in(name: str, path: Path) -> subprocess.Popen[str]:
    """A process of this name, with a file open."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    command = [name, "-I", "-S", "-c", STANDS_IN, str(path)]
    process = subprocess.Popen(command, executable=sys.executable, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.lengthy
@pytest.mark.parametrize("killed", [True, False])
def test_what_ray_leaves_of_a_session_ends_with_a_driver_that_is_killed(tmp_path: Path, killed: bool) -> None:
    agent = standing_in("ray::Agent", tmp_path / "session_1" / "logs" / "raylet.out")
    others = [
        standing_in("ray::Agent", tmp_path / "session_2" / "logs" / "raylet.out"),  # of another cluster
        standing_in("tail", tmp_path / "session_1" / "logs" / "raylet.out"),  # of somebody who looks
    ]
    watch = subprocess.Popen([sys.executable, ray_watch.__file__, "session_1"], stdin=subprocess.PIPE)
    try:
        watch.communicate(b"" if killed else b".", timeout=30)
        if killed:
            assert agent.wait(10) == -signal.SIGKILL
        assert agent.poll() == (-signal.SIGKILL if killed else None)
        assert [one.poll() for one in others] == [None, None]
    finally:
        for one in (agent, *others):
            one.kill()
            one.communicate()


@pytest.mark.slow
def test_a_killed_driver_leaves_no_process_of_its_own_cluster(tmp_path: Path) -> None:
    write(tmp_path / "in", files=40, rows=200_000)
    process = subprocess.Popen([sys.executable, "-c", CODE, "perturb", "in", "out", *RAY], cwd=tmp_path)
    gone_by(60, lambda: list(tmp_path.glob(".dpkernels-*.parts/0*")))
    family = psutil.Process(process.pid).children(recursive=True)
    assert any(one.cmdline()[0].startswith("ray::") for one in family if one.is_running() and one.cmdline())
    process.kill()
    process.wait()
    gone_by(15, lambda: not [one for one in family if one.is_running() and one.status() != psutil.STATUS_ZOMBIE])


# ray.data


def dataset(rows: int, blocks: int, by: Callable[[Any], Any] | None = None) -> Any:
    import ray.data

    ray.data.DataContext.get_current().enable_progress_bars = False
    made = lambda batch: {"id": batch["id"], "age": (batch["id"] * 7919 % 12_000) / 100.0}  # noqa: E731
    return ray.data.range(rows, override_num_blocks=blocks).map_batches(by or made)


@pytest.mark.thorough
def test_a_dataset_of_ray_is_perturbed_in_the_order_of_its_blocks(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_data, "fresh_secrets", lambda: BlockSecrets(SECRET, bytes(32)))
    source = dataset(3000, 5).materialize()
    table = pa.concat_tables(ray.get(dpk.perturb(source, {"age": MECHANISM}).to_arrow_refs()))
    before = pa.concat_tables(ray.get(source.to_arrow_refs()))
    assert table["id"].equals(before["id"])
    np.testing.assert_array_equal(table["age"].to_numpy(), expected(before["age"].to_numpy()))


@pytest.mark.thorough
def test_what_of_a_dataset_of_ray_is_refused(cluster: Any) -> None:
    source = dataset(100, 2)
    with pytest.raises(ValueError, match=r"column 'age', block that begins with row 0: x: row 0 is 0, outside"):
        dpk.perturb(source, {"age": dpk.piecewise(epsilon=1.0, lower=50.0, upper=60.0)})
    with pytest.raises(ValueError, match="no column 'pay'; the dataset has id, age"):
        dpk.perturb(source, {"pay": MECHANISM})
    with pytest.raises(ValueError, match="key: the rows of a ray"):
        dpk.perturb(source, {"age": MECHANISM}, key=dpk.os_key())
    with pytest.raises(TypeError, match="needs a dict"):
        dpk.perturb(source, MECHANISM)
    with pytest.raises(TypeError, match="is on vectors"):
        dpk.perturb(source, {"age": dpk.on_vectors(dpk.laplace(epsilon=1.0), dimensions=3, norm="l1", lattice=1.0)})
    with pytest.raises(ValueError, match="is empty"):
        dpk.perturb(source.filter(lambda row: row["id"] < 0), {"age": MECHANISM})


@pytest.mark.thorough
def test_a_block_that_is_another_when_it_is_computed_again_is_refused() -> None:
    import ray.cloudpickle as pickle

    secrets = BlockSecrets(SECRET, bytes(32))
    columns = {"age": dpk.exact_sampler(MECHANISM)}, False
    described, block = pickle.dumps(columns), pa.table({"age": [1.0, 2.0, 3.0]})
    rows, known = number_rows(block, described, secrets)
    again = [perturb_block(one, described, secrets, 7, rows, known)[0] for one in (block, pa.concat_tables([block]))]
    assert again[0].equals(again[1])
    noted = block.replace_schema_metadata({"pandas": '{"attributes": [1, 2, 3]}', "note": "1, 2, 3"})
    assert b"1, 2, 3" not in perturb_block(noted, described, secrets, 7, rows, known)[0].schema.serialize().to_pybytes()
    for other in ([1.0, 3.0, 2.0], [1.0, 2.0], [1.0, 2.0, 3.5]):
        with pytest.raises(RuntimeError, match="pipeline behind it is not deterministic"):
            perturb_block(pa.table({"age": other}), described, secrets, 7, rows, known)


@pytest.mark.slow
@pytest.mark.parametrize("steady", [True, False])
def test_blocks_that_a_dead_node_took_along(cluster: Any, steady: bool) -> None:
    def drawn(batch: Any) -> Any:
        return {"id": batch["id"], "age": np.random.default_rng().uniform(0, 120, len(batch["id"]))}

    reports = dpk.perturb(dataset(80_000, 4, None if steady else drawn), {"age": MECHANISM})
    before = [table.to_pandas() for table in ray.get(reports.to_arrow_refs())] if steady else []
    for node in list(cluster.worker_nodes):
        kill_node(cluster, node)
    replaced(cluster)
    if not steady:
        with pytest.raises(ray.exceptions.RayError, match="not deterministic"):
            ray.get(reports.to_arrow_refs())
        return
    after = [table.to_pandas() for table in ray.get(reports.to_arrow_refs())]
    assert all(one.equals(other) for one, other in zip(before, after, strict=True))


# large


@pytest.mark.slow
def test_a_large_release_of_a_cluster_whose_worker_and_node_are_killed(
    cluster: Any, run: Run, known_secret: None, tmp_path: Path
) -> None:
    """2 * 10^7 rows in 50 files; whatever runs at that moment is killed."""
    ages = write(Path("in"), files=50, rows=400_000)
    killed = list[str]()

    def kill() -> None:
        gone_by(60, lambda: len(list(tmp_path.glob(".dpkernels-*.parts/0*"))) >= 5)
        busy = [one for one in psutil.process_iter(["cmdline"]) if str(one.info["cmdline"]).startswith("['ray::part")]
        killed.append(busy[0].info["cmdline"][0])
        busy[0].kill()
        gone_by(60, lambda: len(list(tmp_path.glob(".dpkernels-*.parts/0*"))) >= 15)
        killed.append("node")
        kill_node(cluster, next(iter(cluster.worker_nodes)))

    thread = threading.Thread(target=kill)
    thread.start()
    result = run("perturb", "in", "out", *RAY)
    thread.join()
    replaced(cluster)
    assert result.code == 0, result.err
    assert len(killed) == 2
    assert is_release(Path("out"), ages)
