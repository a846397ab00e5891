"""Exact releases on a GPU launch few kernels and move few bytes, by the programs that XLA compiles for an H200."""

import importlib.util

import pytest

from benchmarks.gpu_program import MADE, VALUES, compiled, kernels_and_bytes

PROGRAM = """HloModule made
ENTRY %main (x: f32[8]) -> f32[8] {
  %x.1 = f32[8]{0} parameter(0)
  %table = u64[4]{0} constant({...})
  %words = (u32[8]{0}, u16[8]{0}) fusion(%x.1), kind=kLoop
  %first = u32[8]{0} get-tuple-element(%words), index=0
  ROOT %made = f32[8]{0} fusion(%first, %x.1, %table), kind=kLoop
}
"""

# At most so many bytes a value of float32; kernels at most 5.
MOST = {name: 72 if "64 bits" in name else 60 if name == "hybrid" else 40 for name in MADE}


def test_kernels_and_bytes_are_counted():
    """Read 32 and write 48; read 32, 32 and 32 and write 32."""
    assert kernels_and_bytes(PROGRAM) == (2, 32 + 48 + 3 * 32 + 32)


@pytest.mark.skipif(importlib.util.find_spec("jax_cuda12_plugin") is None, reason="needs the extra gpu-program")
@pytest.mark.parametrize("name", MADE)
def test_a_release_on_a_gpu_is_a_few_kernels(name):
    program, _ = compiled(MADE[name](), "float32")
    kernels, moved = kernels_and_bytes(program)
    assert kernels <= 5
    assert moved <= MOST[name] * VALUES
