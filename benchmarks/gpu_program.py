"""What an H200 would launch and move for an exact release, read from programs compiled without one.

    pip install -e '.[gpu-program]'
    python -m benchmarks.gpu_program                    # float32, less than a minute
    python -m benchmarks.gpu_program --dtype float64

XLA's compiler for GPUs takes a description of the device in its place. The limit is what memory alone allows: 4.3 TB/s
of an H200. Tables that are looked up count once whole, as XLA counts them.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import time
from collections.abc import Callable
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
from dpkernels.release import device_engine

H200 = """gpu_device_info { threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152
 shared_memory_per_core: 233472 threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128
 block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535 memory_bandwidth: 4800000000000
 l2_cache_size: 52428800 clock_rate_ghz: 1.98 device_memory_size: 150000000000
 shared_memory_per_block_optin: 232448 cuda_compute_capability { major: 9 } registers_per_core_limit: 65536
 registers_per_block_limit: 65536 }
platform_name: "CUDA" dnn_version_info { major: 9 minor: 1 patch: 1 } device_description_str: "NVIDIA H200" """
BANDWIDTH = 4.3e12
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
_NOT_LAUNCHED = ("parameter", "constant", "get-tuple-element", "tuple", "bitcast")


def compiled(mechanism: Any, dtype: str) -> tuple[str, float]:
    """The program of a mechanism's exact release on an H200, as XLA writes it, and the seconds of its compilation."""
    form = dpk.certify(mechanism)
    described = topologies.get_topology_desc("h200", "cuda", target_config=H200, topology="1x1x1")
    mesh = Mesh(np.array(described.devices), "values")
    split = NamedSharding(mesh, PartitionSpec("values"))
    with jax.enable_x64(True):
        x = jax.ShapeDtypeStruct((VALUES,), dtype, sharding=split)
        heads = [jax.ShapeDtypeStruct((12,), jnp.uint32, sharding=split) for _ in form.words]
        lowered = device_engine.sharded(form, tuple(mesh.devices.ravel())).lower(x, *heads)
        start = time.perf_counter()
        return lowered.compile().as_text() or "", time.perf_counter() - start


def kernels_and_bytes(program: str) -> tuple[int, int]:
    """Kernels that a program launches, and bytes that these read and write."""
    pattern = re.compile(r"\s*(?:ROOT )?%([\w.-]+) = (\(.*?\)|\S+) ([\w-]+)\((.*?)\)")
    lines = [pattern.match(line) for line in program[program.index("\nENTRY") :].splitlines()]
    made = {line[1]: (line[2], line[3], re.findall(r"%([\w.-]+)", line[4])) for line in lines if line}
    launched = [(shape, operands) for shape, kind, operands in made.values() if kind not in _NOT_LAUNCHED]
    moved = sum(_size(shape) + sum(_size(made[at][0]) for at in operands if at in made) for shape, operands in launched)
    return len(launched), moved


def _size(shape: str) -> int:
    """Bytes of a shape as XLA writes it, tuples summed."""
    found = re.findall(r"\b(\w+)\[([\d,]*)\]", shape)
    arrays = [(_BYTES[kind], dims.split(",") if dims else []) for kind, dims in found if kind in _BYTES]
    return sum(width * math.prod(map(int, dims)) for width, dims in arrays)


def main() -> None:
    """Compile and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_program", description="What an H200 would run.")
    parser.add_argument("--dtype", default="float32", choices=("float32", "float64"))
    options = parser.parse_args()
    head = ["exact release", "kernels", "bytes a value", "10^9 values/s at most", "compiled in, s"]
    print("| " + " | ".join(head) + " |\n| --- |" + " ---: |" * (len(head) - 1))
    for name, make in MADE.items():
        program, seconds = compiled(make(), options.dtype)
        kernels, moved = kernels_and_bytes(program)
        most = BANDWIDTH / (moved / VALUES) / 1e9
        print(f"| {name} | {kernels} | {moved / VALUES:.1f} | {most:.0f} | {seconds:.1f} |", flush=True)


if __name__ == "__main__":
    main()
