"""The unified namespace: what importing it costs, what it lists, and what it says when something is missing."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import cudnn
from cudnn._known import PACKAGE_OF
from cudnn._vendor import VendorWheelWarning, vendor_wheel, warn_if_vendor_is_here
from cudnn_fe.core.errors import MissingPackageError
from cudnn_fe.core.registry import families


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_importing_it_imports_no_framework_and_reads_no_metadata() -> None:
    loaded = set(run("import sys, cudnn; print(*sys.modules)").split())
    assert "cudnn" in loaded
    heavy = {"torch", "jax", "numpy", "cutlass", "tvm_ffi", "cuda", "importlib.metadata", "cudnn_fe.core"}
    assert not loaded & heavy


def test_importing_it_adds_few_modules() -> None:
    """What takes time is modules: a bound on their number holds on every machine, one on time does not."""
    before = set(run("import sys; print(*sys.modules)").split())
    after = set(run("import sys, cudnn; print(*sys.modules)").split())
    assert len(after - before) <= 40


def test_dir_lists_every_export_and_every_one_resolves() -> None:
    for family in families():
        for name in family.exports:
            *path, last = name.split(".")
            place = importlib.import_module(".".join(["cudnn", *path]))
            assert last in dir(place)
            assert getattr(place, last) is not None
            assert last in vars(place)  # the second access is a plain attribute


def test_every_legacy_and_jax_name_of_an_op_is_exported() -> None:
    for family in families():
        exported = {name.split(".")[-1] for name in family.exports}
        for op in family.ops:
            if op.public:
                assert {op.name, *op.legacy, *([op.jax_name] if op.jax_name else [])} <= exported


def test_an_unknown_name_is_an_attribute_error() -> None:
    for name in ("gemm_swiglu_forwards", "no_such_op"):
        with pytest.raises(AttributeError, match=f"has no attribute '{name}'"):
            getattr(cudnn, name)


def test_a_name_of_a_missing_family_names_the_package_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cudnn._lazy.families", tuple)
    monkeypatch.setattr("cudnn._lazy._exports", dict)
    with pytest.raises(MissingPackageError, match=r"no cudnn-fe-grouped in this environment.*pip install") as caught:
        _ = cudnn.__getattr__("grouped_gemm_wrapper_sm100")
    assert isinstance(caught.value, ImportError)


def test_a_name_that_a_family_does_not_hold_yet_asks_for_a_newer_release() -> None:
    held = {name for family in families() for name in family.exports}
    absent = [name for name, package in PACKAGE_OF.items() if package == "cudnn-fe-gemm" and name not in held]
    for name in absent:
        with pytest.raises(MissingPackageError, match="a release of cudnn-fe-gemm without it"):
            getattr(cudnn, name)


def test_the_vendors_wheel_beside_ours_is_announced(tmp_path: Path) -> None:
    package = tmp_path / "cudnn"
    package.mkdir()
    file = str(package / "__init__.py")
    assert vendor_wheel(file) is None
    warn_if_vendor_is_here(file)  # says nothing
    (tmp_path / "nvidia_cudnn_frontend-1.32.0.dist-info").mkdir()
    with pytest.warns(VendorWheelWarning, match=r"nvidia_cudnn_frontend-1.32.0 is installed beside cudnn-fe"):
        warn_if_vendor_is_here(file)


def test_the_vendors_module_paths_lead_to_the_same_objects() -> None:
    from cudnn.gemm.cutedsl.dense import swiglu

    assert swiglu.GemmSwigluSm100 is cudnn.GemmSwigluSm100
    assert swiglu.gemm_swiglu_wrapper_sm100 is cudnn.gemm_swiglu_wrapper_sm100
    assert swiglu.gemm_swiglu_jax_sm100 is cudnn.gemm_swiglu_jax_sm100


MODULE_PATHS = {
    "block_sparse_attention": "BSA block_sparse_attention_backward block_sparse_attention_forward",
    "csa": "CSA CSACompressorBackward CSACompressorForward csa_compressor_backward_wrapper",
    "engram": "EngramGateSavedForward EngramGateSavedBackward engram_gate_saved_forward engram_gate_saved_backward",
    "deepseek_sparse_attention": "DSA AlignedHCABackward aligned_hca_backward_wrapper",
    "flex_attention": "FlexAttentionBwd FlexAttentionFwd create_mask_plan flex_attn_func",
    "gated_attention_block": "GatedAttentionBlockFwd GatedAttentionBlockBwd gated_attention_block_forward",
    "gemm.cutedsl.dense.proj_rope_mxfp8": "GemmProjRopeMxfp8Bf16InSm100 gemm_proj_rope_mxfp8_wrapper_sm100",
    "gemm.mhc_projection_bwd": "MhcProjectionBackward mhc_projection_backward",
    "hstu.hstu_attention": "hstu_attention_backward hstu_attention_forward",
    "hstu.hstu_lmsd": "hstu_lmsd_backward hstu_lmsd_forward",
    "native_sparse_attention": "NSA",
    "rmsnorm_rht_amax": "RmsNormRhtAmaxSm100 rmsnorm_rht_amax_wrapper_sm100",
    "rope": "RopeQDQInplace TailRoPEForward VisionRoPEBackward rope_qdq_inplace tail_rope vision_rope_backward_wrapper",
    "sdpa.bwd": "CompactGqaBackward compact_gqa_backward Nvfp4AttentionQatBackward",
    "sdpa.bwd.qat": "Nvfp4AttentionQatBackward nvfp4_attention_qat_backward",
}


@pytest.mark.parametrize("path", MODULE_PATHS)
def test_module_paths(path: str) -> None:
    module = importlib.import_module(f"cudnn.{path}")
    for name in MODULE_PATHS[path].split():
        assert getattr(module, name) is getattr(cudnn, name)
    assert all(hasattr(module, name) for name in module.__all__)
    assert getattr(cudnn, path.split(".", 1)[0]) is importlib.import_module(f"cudnn.{path.split('.', 1)[0]}")


def test_linear_attention_and_its_shims_by_their_module_paths() -> None:
    """Importing the shims imports neither flash-linear-attention nor the kernel compiler."""
    from cudnn.fla import gated_delta_rule, kda
    from cudnn.linear_attention import ops

    assert ops.gated_delta_net is cudnn.linear_attention.gated_delta_net is cudnn.gated_delta_net_forward
    assert cudnn.fla.gated_delta_rule is gated_delta_rule
    assert cudnn.fla.last_path() is None
    assert kda.last_path() is None
    assert not cudnn.fla.is_accelerated()
    loaded = set(run("import sys, cudnn.fla; print(*sys.modules)").split())
    assert not loaded & {"fla", "torch", "jax", "cutlass", "tvm_ffi"}


BLOCKED = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "{framework}":
            raise ModuleNotFoundError("No module named {framework}", name="{framework}")
sys.meta_path.insert(0, Block())
from cudnn_fe.core.errors import MissingPackageError
import numpy as np
from cudnn import gemm_swiglu_forward, gemm_swiglu_jax_forward
gemm_swiglu_forward(np.ones((2, 8, 1), np.float32), np.ones((64, 8, 1), np.float32))
try:
    gemm_swiglu_jax_forward(np.ones((2, 8, 1), np.float32), np.ones((64, 8, 1), np.float32))
    print("ran")
except MissingPackageError as error:
    print(error)
"""


def test_a_missing_framework_is_named_where_it_is_asked_for() -> None:
    assert "no JAX in this environment" in run(BLOCKED.format(framework="jax"))
    assert run(BLOCKED.format(framework="torch")).strip() == "ran"


@pytest.mark.parametrize("name", ["grouped_gemm", "discrete_grouped_gemm"])
def test_grouped_names_below_their_module_path_are_the_top_level_ones(name: str) -> None:
    module = getattr(cudnn, name)
    for member in module.__all__:
        if member not in ("PreparedGroupedGemm", "prepare_grouped_gemm"):  # below the path alone, as in the vendor's
            assert getattr(module, member) is getattr(cudnn, member)
