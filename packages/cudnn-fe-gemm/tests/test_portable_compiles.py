"""How the portable kernels reach memory, and that no dtype, layout or alignment needs more than SM80's instructions."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

import pytest

from cudnn_fe.core.compile import compile_now
from cudnn_fe.core.gemm_spec import GemmSpec, Major
from cudnn_fe.core.toolchain import missing_toolchain
from cudnn_fe.gemm.dswiglu.kernel_spec import DswigluSpec

pytestmark = pytest.mark.skipif(missing_toolchain() is not None, reason=f"no kernel compiler: {missing_toolchain()}")

# What a later architecture brought and a kernel for SM80 must not need.
NEWER = re.compile(r"wgmma|tcgen05|mbarrier|cp\.async\.bulk|cluster|stmatrix|setmaxnreg|griddepcontrol|e4m3|e5m2")


def ptx_of(module: str, spec: GemmSpec | DswigluSpec, arch: str, folder: Path) -> str:
    """The PTX of a fresh compilation."""
    compile_now(f"cudnn_fe.gemm.{module}.portable", spec, arch, f"--keep-ptx --dump-dir={folder}")
    (path,) = folder.glob("*.ptx")
    return path.read_text()


def instructions(ptx: str) -> set[str]:
    """Opcodes, without the operands and names that could resemble one."""
    return set(re.findall(r"(?:^|[\s;}])(?:@!?%?\w+ )?([a-z][a-z0-9_:]*(?:\.[a-z0-9_:]+)+)(?=[\s;])", ptx))


@pytest.mark.parametrize(
    ("kind", "major", "alignment", "loads"),
    [
        ("float16", "k", 16, "cp.async.cg.shared.global"),
        ("bfloat16", "mn", 4, "cp.async.ca.shared.global"),
        ("bfloat16", "k", 2, "ld.global.u16"),
        ("float32", "mn", 16, "cp.async.cg.shared.global"),
        ("float8_e4m3fn", "k", 16, "ld.global.v4.b32"),
        ("float8_e5m2", "mn", 1, "ld.global.u8"),
    ],
)
def test_only_base_instructions(
    kind: str, major: Major, alignment: Literal[1, 2, 4, 16], loads: str, tmp_path: Path
) -> None:
    """Every way of loading, with the width that the alignment allows."""
    spec = GemmSpec(kind, kind, ("float32",), major, major, arch="sm_80", alignment=alignment)
    found = instructions(ptx_of("matmul", spec, "sm_80", tmp_path))
    assert loads in found
    assert "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32" in found or kind != "float32"
    assert not [name for name in found if NEWER.search(name)]


@pytest.mark.parametrize("upstream", [None, "float32"])
def test_derivative_moves_16_bytes(upstream: str | None, tmp_path: Path) -> None:
    """The derivative's aligned kernel has wide loads and stores; the other one's are an element wide."""
    spec = DswigluSpec("bfloat16", "float16", upstream, "bfloat16", arch="sm_80")
    found = instructions(ptx_of("dswiglu", spec, "sm_80", tmp_path))
    assert {"ld.global.v4.b32", "st.global.v4.b32", "ld.global.u16", "st.global.b16"} <= found
    assert not [name for name in found if NEWER.search(name)]
