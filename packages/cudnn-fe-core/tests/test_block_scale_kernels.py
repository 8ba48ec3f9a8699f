"""The kernels that quantise and dequantise compile for every target, with wide accesses and base instructions."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cudnn_fe.core.block_scale import (
    block_scale_dequantize,
    block_scale_quantize,
    nvfp4_block_scale_dequantize,
    nvfp4_block_scale_quantize,
)
from cudnn_fe.core.block_scale.dequantizer.spec import DequantizeSpec
from cudnn_fe.core.block_scale.quantizer.spec import QuantizeSpec
from cudnn_fe.core.compile import compile_now
from cudnn_fe.core.targets import PORTABLE_TARGETS
from cudnn_fe.core.toolchain import missing_toolchain
from cudnn_fe_testkit.machine_code import stack_bytes

pytestmark = pytest.mark.skipif(missing_toolchain() is not None, reason=f"no kernel compiler: {missing_toolchain()}")

FOLDER = "cudnn_fe.core.block_scale"
BOTH = QuantizeSpec(
    "bfloat16", "float8_e4m3fn", "float8_e8m0fnu", 32, "epilogue", 1 / 448, "epilogue_columns", 1 / 448, packed=True,
    codes_dtype="float8_e4m3fn", scales_rank=6, norm_rank=1, amax=True, x_access=8, out_access=8, arch="sm_90a",
)  # fmt: skip
NVFP4 = replace(
    BOTH, element="float4_e2m1fn", scale="float8_e4m3fn", block=16, row_recipe="converter", column_recipe=None,
    codes_dtype="float4_e2m1fn", scales_rank=3, norm_rank=3, amax=False,
)  # fmt: skip
NARROW = replace(BOTH, x_dtype="float32", element="float8_e5m2", codes_dtype="float8_e5m2", packed=False, x_access=1,
                 scales_rank=3, norm_rank=None, out_access=1, amax=False)  # fmt: skip
PAIRS = replace(
    BOTH, element="float4_e2m1fn", column_recipe="epilogue", codes_dtype="float4_e2m1fn", norm_rank=None, amax=False
)
ROWS = DequantizeSpec(
    "float8_e4m3fn", "float8_e4m3fn", "float8_e8m0fnu", 32, columns=False, packed=True, scales_dtype="float8_e8m0fnu",
    scales_rank=6, factor_rank=None, out_dtype="bfloat16", in_access=8, out_access=8, arch="sm_90a",
)  # fmt: skip
COLUMNS = replace(ROWS, codes_dtype="uint8", element="float4_e2m1fn", columns=True, packed=False, scales_dtype="uint8",
                  scales_rank=3, factor_rank=1, out_dtype="float16", in_access=2, out_access=2)  # fmt: skip
SPECS = {"quantizer": (BOTH, NVFP4, NARROW, PAIRS), "dequantizer": (ROWS, COLUMNS)}
SPILLED = 4  # registers that the bound on them may cost
NEWER = re.compile(r"wgmma|tcgen05|mbarrier|cp\.async\.bulk|cluster|stmatrix|e4m3|e5m2|e2m1|ue8m0")


def ptx_of(folder: str, spec: QuantizeSpec | DequantizeSpec, into: Path) -> str:
    compile_now(f"{FOLDER}.{folder}.portable", spec, spec.arch, f"--keep-ptx --dump-dir={into}")
    (path,) = into.glob("*.ptx")
    return path.read_text()


@pytest.mark.parametrize(("folder", "spec"), [(f, spec) for f, specs in SPECS.items() for spec in specs])
def test_little_is_spilled(folder: str, spec: QuantizeSpec | DequantizeSpec, tmp_path: Path) -> None:
    compile_now(f"{FOLDER}.{folder}.portable", spec, spec.arch, f"--keep-cubin --dump-dir={tmp_path}")
    (path,) = tmp_path.glob("*.cubin")
    print(spec, stack_bytes(path.read_bytes()))
    assert stack_bytes(path.read_bytes()) <= 4 * SPILLED


@pytest.mark.parametrize("arch", PORTABLE_TARGETS)
@pytest.mark.parametrize(("folder", "spec"), [(f, spec) for f, specs in SPECS.items() for spec in specs])
def test_compiles(folder: str, spec: QuantizeSpec | DequantizeSpec, arch: str, tmp_path: Path) -> None:
    text = ptx_of(folder, replace(spec, arch=arch), tmp_path)
    found = set(re.findall(r"[a-z][a-z0-9_:]*(?:\.[a-z0-9_:]+)+", text))
    if arch == "sm_80":
        assert not [name for name in found if NEWER.search(name)]
    if spec in (BOTH, NVFP4, PAIRS):
        assert "ld.global.v4.b32" in found
    if spec is BOTH and arch != "sm_80":
        assert "cvt.rn.satfinite.e4m3x2.f32" in found
    if spec is ROWS:
        assert {"ld.global.v2.b32", "st.global.v4.b32"} <= found
    if spec is NARROW:
        assert {"ld.global.b32", "st.global.u8"} <= found


def test_jax_lowers_the_kernels_for_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    jax = pytest.importorskip("jax")
    jnp = jax.numpy
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_90a")

    def there_and_back(x: Any, encode: Any) -> Any:
        out = block_scale_quantize(x, "mxfp8_e5m2", direction="both", amax=True)
        back = block_scale_dequantize(out["row_codes"], out["row_scales"], "mxfp8_e5m2", dtype="bfloat16")
        packed, scales = nvfp4_block_scale_quantize(x[None], encode)
        return *out, back, nvfp4_block_scale_dequantize(packed, scales, encode)

    traced = jax.jit(there_and_back).trace(jnp.ones((128, 64), jnp.bfloat16), jnp.ones((1, 1, 1), jnp.float32))
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("custom_call @CuteDSL") == 4
