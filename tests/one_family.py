"""Calls one op on NumPy input from installed packages alone and checks its values; run as a script.

python tests/one_family.py gemm            # through cudnn_fe.gemm
python tests/one_family.py cudnn           # through the unified namespace
python tests/one_family.py conv            # through cudnn_fe.conv
python tests/one_family.py norm_rope       # another family: imports everything that it exports
python tests/one_family.py gemm --bare     # and insists that no framework or kernel compiler is installed
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
from typing import Any

import numpy as np

HEAVY = ("torch", "jax", "cutlass", "tvm_ffi")
HALF_ULP = 2.0**-11
SUBNORMAL_HALF_ULP = 2.0**-25


def main() -> None:
    """Runs the check; raises on the first thing that is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("module", help="cudnn, or a family")
    parser.add_argument("--bare", action="store_true")
    chosen = parser.parse_args()
    if chosen.bare:
        installed = [name for name in HEAVY if importlib.util.find_spec(name) is not None]
        assert not installed, f"installed, so nothing is shown by this run: {installed}"
    module = importlib.import_module("cudnn" if chosen.module == "cudnn" else f"cudnn_fe.{chosen.module}")
    check = {"conv": check_conv, "gemm": check_gemm, "cudnn": check_gemm}.get(chosen.module, check_exports)
    name, count = check(module)
    imported = [name for name in HEAVY if name in sys.modules]
    assert not imported, f"a NumPy call imported {imported}"
    print(f"{module.__name__}.{name}: {count} values checked")


def check_exports(module: Any) -> tuple[str, int]:
    """Every public name and op of a family resolves; returns how many."""
    from cudnn_fe.core.op import resolve

    family = importlib.import_module(f"{module.__name__}.exports").FAMILY
    found = [resolve(target) for target in (*family.exports.values(), *family.op_targets)]
    assert None not in found
    return "exports", len(found)


def check_gemm(module: Any) -> tuple[str, int]:
    """GEMM + SwiGLU; returns the op's name and how many values were checked."""
    m, n, k = 5, 128, 48
    # Quarters of small integers: every product and sum is exact in float32, in whatever order it is taken.
    random = np.random.default_rng(0)
    a = random.integers(-4, 5, (m, k, 1)).astype(np.float32) / 4
    b = random.integers(-4, 5, (n, k, 1)).astype(np.float32) / 4
    result = module.gemm_swiglu_forward(a, b)

    product = np.einsum("mkl,nkl->mnl", a.astype(np.float64), b.astype(np.float64))
    value, gate = np.moveaxis(product.reshape(m, n // 64, 2, 32, 1), 2, 0)
    activation = (value * gate / (1 + np.exp(-gate))).reshape(m, n // 2, 1)

    assert list(result.keys())[:2] == ["ab12_tensor", "c_tensor"], list(result.keys())
    ab12, c = result["ab12_tensor"], result["c_tensor"]
    assert isinstance(ab12, np.ndarray)
    assert isinstance(c, np.ndarray)
    assert (ab12.shape, ab12.dtype.name) == ((m, n, 1), "float32"), (ab12.shape, ab12.dtype)
    assert (c.shape, c.dtype.name) == ((m, n // 2, 1), "float16"), (c.shape, c.dtype)
    assert np.array_equal(ab12, product)
    # One rounding to float16, and float32's own error on the way to it.
    bound = HALF_ULP * (1 + 2.0**-8) * np.abs(activation) + SUBNORMAL_HALF_ULP
    assert np.all(np.abs(c.astype(np.float64) - activation) <= bound)
    return "gemm_swiglu_forward", ab12.size + c.size


def check_conv(module: Any) -> tuple[str, int]:
    """The causal convolution and one decoding step."""
    # Quarters of small integers: every product and sum is exact in float32.
    random = np.random.default_rng(0)
    x = random.integers(-4, 5, (2, 6, 10)).astype(np.float32) / 4
    weight = random.integers(-4, 5, (6, 4)).astype(np.float32) / 4
    padded = np.concatenate([np.zeros((2, 6, 3)), x], axis=2)
    wanted = sum(weight[:, tap, None] * padded[:, :, tap : tap + 10] for tap in range(4))

    y, states = module.causal_conv1d(x[..., :9], weight, return_final_states=True)
    assert np.array_equal(y, wanted[..., :9])
    assert np.array_equal(states, x[..., 6:9])
    following = module.causal_conv1d_update(x[..., 9], states, weight)
    assert np.array_equal(following, wanted[..., 9])
    assert np.array_equal(states, x[..., 7:])
    return "causal_conv1d", y.size + following.size + states.size


if __name__ == "__main__":
    main()
