"""The interpreter of PTX: small kernels whose results are known."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from cudnn_fe_testkit.ptx import parse
from cudnn_fe_testkit.ptx_machine import Machine, TrapError
from cudnn_fe_testkit.ptx_memory import Memory

HEAD = """
.visible .entry k(
	.param .u64 k_param_0,
	.param .u64 k_param_1
)
.reqntid 64, 1, 1
{
	.shared .align 16 .b8 room[256];
	ld.param.b64 %rd1, [k_param_0];
	ld.param.b64 %rd2, [k_param_1];
	mov.u32 %r1, %tid.x;
	mov.u32 %r2, %ctaid.x;
	mad.lo.s32 %r3, %r2, 64, %r1;
	mul.wide.s32 %rd3, %r3, 4;
	add.s64 %rd4, %rd1, %rd3;
	add.s64 %rd5, %rd2, %rd3;
	ld.global.b32 %r4, [%rd4];
"""
SOURCE, TARGET = 1 << 32, 1 << 33  # addresses


def run(body: str, values: Any, blocks: int = 1) -> Any:
    """What a kernel stores for each thread that loaded one of the values."""
    kernel = parse(HEAD + body + "\n\tret;\n}\n")["k"]
    given = np.ascontiguousarray(values).view(np.uint8).copy()
    result = np.zeros(4 * 64 * blocks, np.uint8)
    memory = Memory()
    memory.add(SOURCE, given)
    memory.add(TARGET, result)
    parameters = [address.to_bytes(8, "little") for address in (SOURCE, TARGET)]
    Machine(kernel, (blocks, 1, 1), (64, 1, 1), parameters, memory).run()
    return result.view(np.uint32)


def test_threads_part_and_meet_again() -> None:
    """Thread t of each block adds 1 t times; what they have then goes to the lane beside."""
    body = """
	mov.b32 %r5, 0;
	setp.eq.s32 %p1, %r1, 0;
	@%p1 bra $DONE;
$AGAIN:
	add.s32 %r5, %r5, 1;
	setp.lt.s32 %p2, %r5, %r1;
	@%p2 bra $AGAIN;
$DONE:
	shfl.sync.bfly.b32 %r6, %r5, 1, 31, -1;
	st.global.b32 [%rd5], %r6;"""
    found = run(body, np.zeros(128, np.int32), 2)
    np.testing.assert_array_equal(found, np.tile(np.arange(64) ^ 1, 2))


def test_shared_memory_is_a_blocks_own_behind_a_barrier() -> None:
    body = """
	shl.b32 %r5, %r1, 2;
	st.shared.b32 [%r5], %r4;
	bar.sync 0;
	xor.b32 %r6, %r5, 252;
	ld.shared.b32 %r7, [%r6+0];
	st.global.b32 [%rd5], %r7;"""
    values = np.arange(128, dtype=np.int32)
    np.testing.assert_array_equal(run(body, values, 2), values.reshape(2, 64)[:, ::-1].reshape(-1))


def test_inline_assembly_has_registers_and_labels_of_its_own() -> None:
    one = "{ .reg .pred p; setp.lt.s32 p, %r4, 0; @p bra SKIP; add.s32 %r4, %r4, 5; SKIP: }\n"
    values = np.arange(-32, 32, dtype=np.int32)
    found = run(f"\t{one}\t{one}\tst.global.b32 [%rd5], %r4;", values).view(np.int32)
    np.testing.assert_array_equal(found, np.where(values < 0, values, values + 10))


@pytest.mark.parametrize(("words", "narrow"), [("rn.bf16x2", ml_dtypes.bfloat16), ("rn.f16x2", np.float16)])
def test_pairs_are_rounded_to_nearest_even(words: str, narrow: Any) -> None:
    values = np.random.default_rng(0).normal(size=64).astype(np.float32)
    found = run(f"\tcvt.{words}.f32 %r5, %r4, %r4;\n\tst.global.b32 [%rd5], %r5;", values)
    np.testing.assert_array_equal(found.view(np.uint16)[1::2], values.astype(narrow).view(np.uint16))
    np.testing.assert_array_equal(found.view(np.uint16)[::2], values.astype(narrow).view(np.uint16))


def test_fp8_saturates_and_keeps_nan() -> None:
    values = np.concatenate([[1e9, -1e9, np.nan, 0.3], np.linspace(-500, 500, 60)]).astype(np.float32)
    body = "\tcvt.rn.satfinite.e4m3x2.f32 %rs1, %r4, %r4;\n\tcvt.u32.u16 %r5, %rs1;\n\tst.global.b32 [%rd5], %r5;"
    codes = run(body, values).astype(np.uint8)
    wanted = np.clip(values, -448, 448).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    np.testing.assert_array_equal(np.where(np.isnan(values), 0x7F, wanted), codes)


def test_bytes_and_bits() -> None:
    values = np.random.default_rng(1).integers(0, 2**32, 64, dtype=np.uint32)
    body = """
	prmt.b32 %r5, %r4, 0, 291;
	lop3.b32 %r6, %r5, %r4, 255, 150;
	shf.r.wrap.b32 %r7, %r6, %r6, 7;
	st.global.b32 [%rd5], %r7;"""
    mixed = values.byteswap() ^ values ^ 255
    np.testing.assert_array_equal(run(body, values), mixed >> 7 | mixed << 25)


def test_a_fused_sum_is_rounded_once() -> None:
    values = np.full(64, 1 + 2.0**-12, np.float32)
    body = "\tfma.rn.f32 %r5, %r4, %r4, 0fBF800000;\n\tst.global.b32 [%rd5], %r5;"
    exact = (1 + 2.0**-12) ** 2 - 1
    assert (run(body, values).view(np.float32) == np.float32(exact)).all()
    assert np.float32(exact) != values[0] * values[0] - np.float32(1)


@pytest.mark.parametrize(
    ("body", "kind", "message"),
    [
        ("st.global.b32 [%rd5+256], %r4;", IndexError, "a write of 1 x 4 bytes outside"),
        ("ld.global.b32 %r5, [%rd4+-4];", IndexError, "a read of 1 x 4 bytes outside"),
        ("ld.global.v4.b32 {%r5,%r6,%r7,%r8}, [%rd4];", IndexError, "misaligned access of 4 x 4 bytes"),
        ("trap;", TrapError, "trapped"),
        ("wgmma.fence.sync.aligned;", NotImplementedError, "wgmma"),
    ],
)
def test_faults_are_errors(body: str, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        run(f"\t{body}", np.zeros(64, np.int32))


def test_a_shuffle_from_a_lane_that_is_elsewhere_is_an_error() -> None:
    body = """
	setp.lt.s32 %p1, %r1, 5;
	@%p1 bra $END;
	shfl.sync.idx.b32 %r5, %r4, 0, 31, -1;
$END:
	st.global.b32 [%rd5], %r4;"""
    with pytest.raises(TrapError, match="a shuffle reads a lane"):
        run(body, np.zeros(64, np.int32))
