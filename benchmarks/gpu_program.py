"""Count what an H200 would launch, move and compute for a release, from programs that are compiled without one.

    pip install -e '.[gpu-program]'
    python -m benchmarks.gpu_program                    # float32, less than a minute
    python -m benchmarks.gpu_program --dtype float64    # exact releases only

XLA's compiler for GPUs accepts a description of the device in its place. Two limits apply: an H200's memory moves
4.3 TB/s, and its 132 processors compute 64 integer operations each at 1.98 GHz. A table that is looked up counts once
as a whole, as XLA counts it. Instructions are counted in the compiled PTX: arithmetic, logic and comparisons on
integers, times the threads launched. Those of 64 bits count twice and those of ChaCha20's loop ten times. Loads,
stores, moves and jumps do not count.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Before JAX is imported: it should look for no GPU here, nor say that it found none.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import dpkernels as dpk
from dpkernels.release import engines

H200 = """gpu_device_info { threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152
 shared_memory_per_core: 233472 threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128
 block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535 memory_bandwidth: 4800000000000
 l2_cache_size: 52428800 clock_rate_ghz: 1.98 device_memory_size: 150000000000
 shared_memory_per_block_optin: 232448 cuda_compute_capability { major: 9 } registers_per_core_limit: 65536
 registers_per_block_limit: 65536 }
platform_name: "CUDA" dnn_version_info { major: 9 minor: 1 patch: 1 } device_description_str: "NVIDIA H200" """
BANDWIDTH = 4.3e12
OPERATIONS = 132 * 64 * 1.98e9
DOUBLE_ROUNDS = 10
VALUES = 1 << 24

_SPAN: dict[str, Any] = {"epsilon": 1.0, "lower": -1.0, "upper": 1.0}
MADE: dict[str, Callable[[], Any]] = {
    "piecewise": lambda: dpk.piecewise(**_SPAN),
    "sine-quartic": lambda: dpk.composite("sine", "quartic", **_SPAN),
    "duchi": lambda: dpk.duchi(**_SPAN),
    "optimal": lambda: dpk.optimal(**_SPAN),
    "hybrid": lambda: dpk.hybrid(**_SPAN),
    "laplace, 64 bits": lambda: dpk.laplace(epsilon=1.0),
    "gaussian, 64 bits": lambda: dpk.gaussian(sigma=1.0, sensitivity=1.0, epsilon=4.9, delta=1e-6),
}

_BYTES = {"pred": 1, "s8": 1, "u8": 1, "s16": 2, "u16": 2, "s32": 4, "u32": 4, "f32": 4, "s64": 8, "u64": 8, "f64": 8}
# A loop is seldom entered; see ``integer_instructions``.
_NOT_LAUNCHED = ("parameter", "constant", "get-tuple-element", "tuple", "bitcast", "while")


_INTEGER = re.compile(r"\t(?!ld|st|mov|cvt|bra|ret)[a-z]+[\w.]*\.[bsu](?:16|32|(64))\s")


@dataclass(frozen=True)
class Program:
    """The cost of a program per value, for ``VALUES`` values at once.

    Attributes:
        kernels: the number of kernels launched.
        bytes: bytes read and written.
        instructions: integer instructions.
        seconds: time of the whole compilation.
    """

    kernels: int
    bytes: float
    instructions: float
    seconds: float


def exact_release(mechanism: object, dtype: str) -> Program:
    """The exact release of a mechanism on an H200."""
    sampler, mesh = dpk.exact_sampler(mechanism), _described()
    split = NamedSharding(mesh, PartitionSpec("values"))
    with jax.enable_x64(True):
        x = jax.ShapeDtypeStruct((VALUES,), dtype, sharding=split)
        heads = [jax.ShapeDtypeStruct((12,), jnp.uint32, sharding=split) for _ in sampler.words]
        return _read(engines.sharded(sampler, tuple(mesh.devices.ravel())).lower(x, *heads))


def float_kernel(mechanism: Any) -> Program:
    """A mechanism's own sampler of float32 on an H200."""
    mesh = _described()
    x = jax.ShapeDtypeStruct((VALUES,), jnp.float32, sharding=NamedSharding(mesh, PartitionSpec("values")))
    key = jax.ShapeDtypeStruct((), jax.random.key(0).dtype, sharding=NamedSharding(mesh, PartitionSpec()))
    return _read(jax.jit(mechanism.sample).lower(key, x))


def _described() -> Mesh:
    described = topologies.get_topology_desc("h200", "cuda", target_config=H200, topology="1x1x1")
    return Mesh(np.array(described.devices), "values")


def _read(lowered: Any) -> Program:
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        text = lowered.compile(compiler_options={"xla_dump_to": folder}).as_text() or ""
        seconds = time.perf_counter() - start
        kernels, moved = kernels_and_bytes(text)
        ptx = "".join(path.read_text() for path in Path(folder).glob("*.ptx"))
        launches = next(Path(folder).glob("*thunk_sequence.txt")).read_text()
    return Program(kernels, moved / VALUES, integer_instructions(ptx, launches) / VALUES, seconds)


def integer_instructions(ptx: str, launches: str) -> int:
    """Instructions on integers that all threads of all kernels carry out.

    Kernels of a loop, whose lines are indented, do not count: it completes noise that needs further words, which one
    value of 2^24 does.

    Args:
        ptx: the text of the kernels; every loop is ChaCha20's.
        launches: lines that give each kernel's ``grid: [x, y, z] threads: [x, y, z]``.
    """
    pattern = r"^\d.* (\S+) grid: \[(\d+), (\d+), (\d+)\] threads: \[(\d+), (\d+), (\d+)\]"
    threads: Counter[str] = Counter()
    for name, *sizes in re.findall(pattern, launches, flags=re.MULTILINE):
        threads[name] += math.prod(map(int, sizes))
    bodies = re.findall(r"\.entry (\w+)\((.*?)\n\}", ptx, flags=re.DOTALL)
    return sum(threads[name] * _carried_out(body) for name, body in bodies)


def _carried_out(body: str) -> int:
    """Instructions on integers of one thread."""
    loops = re.findall(r"\n(\$\w+):(.*?bra(?:\.uni)? \t?\1;)", body, flags=re.DOTALL)
    return _written(body) + (DOUBLE_ROUNDS - 1) * sum(_written(loop) for _, loop in loops)


def _written(body: str) -> int:
    return sum(2 if wide else 1 for wide in _INTEGER.findall(body))


def kernels_and_bytes(program: str) -> tuple[int, int]:
    """Kernels that a program launches, and bytes that these read and write."""
    pattern = re.compile(r"\s*(?:ROOT )?%([\w.-]+) = (\(.*?\)|\S+) ([\w-]+)\((.*?)\)")
    lines = [pattern.match(line) for line in program[program.index("\nENTRY") :].splitlines()]
    instructions = {line[1]: (line[2], line[3], re.findall(r"%([\w.-]+)", line[4])) for line in lines if line}
    launched = [(shape, operands) for shape, opcode, operands in instructions.values() if opcode not in _NOT_LAUNCHED]
    moved = sum(
        _size(shape) + sum(_size(instructions[operand][0]) for operand in operands if operand in instructions)
        for shape, operands in launched
    )
    return len(launched), moved


def _size(shape: str) -> int:
    """Bytes of a shape as XLA writes it, tuples summed."""
    typed_shapes = re.findall(r"\b(\w+)\[([\d,]*)\]", shape)
    arrays = [
        (_BYTES[element_type], dims.split(",") if dims else [])
        for element_type, dims in typed_shapes
        if element_type in _BYTES
    ]
    return sum(width * math.prod(map(int, dims)) for width, dims in arrays)


def main() -> None:
    """Compile and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_program", description="What an H200 would run.")
    parser.add_argument("--dtype", default="float32", choices=("float32", "float64"))
    dtype = parser.parse_args().dtype
    head = ["program", "kernels", "bytes a value", "integer instructions a value"]
    head += ["10^9 values/s by memory", "10^9 values/s by instructions"]
    print("| " + " | ".join(head) + " |\n| --- |" + " ---: |" * (len(head) - 1))
    seconds = []
    for name, make in MADE.items():
        seconds.append(_print(f"exact {name}", exact_release(make(), dtype)))
    for name, make in MADE.items() if dtype == "float32" else ():
        seconds.append(_print(f"float {name.partition(',')[0]}", float_kernel(make())))
    print(f"\ncompiled in {min(seconds):.1f} to {max(seconds):.1f} s")


def _print(name: str, program: Program) -> float:
    """Its row; the seconds of its compilation."""
    by_memory, by_instructions = BANDWIDTH / program.bytes / 1e9, OPERATIONS / program.instructions / 1e9
    cells = [str(program.kernels), f"{program.bytes:.1f}", f"{program.instructions:.0f}"]
    cells += [f"{by_memory:.0f}", f"{by_instructions:.0f}"]
    print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
    return program.seconds


if __name__ == "__main__":
    main()
