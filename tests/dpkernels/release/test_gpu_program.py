"""Releases on a GPU launch few kernels and move few bytes, by the programs that XLA compiles for an H200."""

import importlib.util

import pytest

from benchmarks.gpu_program import MADE, exact_release, float_kernel, integer_instructions, kernels_and_bytes

PROGRAM = """HloModule made
ENTRY %main (x: f32[8]) -> f32[8] {
  %x.1 = f32[8]{0} parameter(0)
  %table = u64[4]{0} constant({...})
  %words = (u32[8]{0}, u16[8]{0}) fusion(%x.1), kind=kLoop
  %first = u32[8]{0} get-tuple-element(%words), index=0
  ROOT %made = f32[8]{0} fusion(%first, %x.1, %table), kind=kLoop
}
"""

PTX = """
.visible .entry rounds(
	.param .u64 first
)
{
	.reg .b32 	%r<3>;
	ld.global.b32 	%r0, [%rd1];
	mov.u32 	%r1, %tid.x;
	add.s32 	%r2, %r1, %r0;
$L__BB0_1:
	xor.b32 	%r2, %r2, %r1;
	shf.l.wrap.b32 	%r2, %r2, %r2, 16;
	setp.ne.b32 	%p2, %r117, 0;
	@%p2 bra 	$L__BB0_1;
	st.global.b32 	[%rd1], %r2;
	ret;
}
.visible .entry report(
	.param .u64 first
)
{
	mul.hi.u64 	%rd1, %rd2, %rd3;
	cvt.rn.f64.s32 	%fd1, %r1;
	add.rn.f64 	%fd2, %fd1, %fd1;
	ret;
}
"""
LAUNCHES = """001: kCustomKernel [a] rounds grid: [4, 1, 1] threads: [128, 1, 1]  shared_memory: 0 bytes
002: kCustomKernel [b] rounds grid: [2, 1, 1] threads: [128, 1, 1]  shared_memory: 0 bytes
003: kCustomKernel [c] report grid: [2, 3, 1] threads: [32, 1, 1]  shared_memory: 0 bytes
"""

LOOP = """004: kWhile        [prev=003 (1) | sink        ]
condition:
    No thunks.  body:
    005: kCustomKernel [source] rounds grid: [9, 1, 1] threads: [128, 1, 1]  shared_memory: 0 bytes
"""

# At most so many bytes a value of float32; kernels at most 5.
MOST = {name: 72 if "64 bits" in name else 60 if name == "hybrid" else 40 for name in MADE}


def test_kernels_and_bytes_are_counted():
    """Read 32 and write 48; read 32, 32 and 32 and write 32."""
    assert kernels_and_bytes(PROGRAM) == (2, 32 + 48 + 3 * 32 + 32)


def test_instructions_are_counted():
    """One addition and ten times three in the loop, a thread, launched twice; one of 64 bits."""
    assert integer_instructions(PTX, LAUNCHES) == (512 + 256) * 31 + 192 * 2


def test_instructions_of_a_loop_are_not_counted():
    assert integer_instructions(PTX, LAUNCHES + LOOP) == integer_instructions(PTX, LAUNCHES)


needs_compiler = pytest.mark.skipif(
    importlib.util.find_spec("jax_cuda12_plugin") is None, reason="needs the extra gpu-program"
)


@needs_compiler
@pytest.mark.parametrize("name", MADE)
def test_an_exact_release_is_a_few_kernels(name):
    program = exact_release(MADE[name](), "float32")
    assert program.kernels <= 5
    assert program.bytes <= MOST[name]
    assert 80 < program.instructions < 300  # ChaCha20 alone takes 65 a word.


@needs_compiler
@pytest.mark.parametrize("name", MADE)
def test_a_float_kernel_reads_and_writes_once(name):
    program = float_kernel(MADE[name]())
    assert program.kernels <= 3
    assert program.bytes <= (24 if name == "optimal" else 8.1)
    assert program.instructions < 130
