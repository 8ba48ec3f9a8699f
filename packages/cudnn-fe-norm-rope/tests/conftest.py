"""One call of every op, as data, for what holds for all of them."""

# Operands are spread from made cases, whose number a type checker cannot know.
# mypy: disable-error-code="misc"

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

BF16 = ml_dtypes.bfloat16


@dataclass(frozen=True)
class Case:
    """A call.

    Attributes:
        function: Public name.
        arrays: Operands by parameter, from a generator and a number of rows.
        options: Other arguments.
        jax: Public name of the JAX entry; its array parameters come in the same order.
        rows: Rows of the sample.
        stored: Dims of operands that the JAX entry takes as they lie in memory.
        unit: Relative RMS by which frameworks may differ: the roundings of the narrowest result.
    """

    function: str
    arrays: Callable[[np.random.Generator, int], Mapping[str, NDArray[Any]]]
    options: Mapping[str, Any] = field(default_factory=dict)
    jax: str | None = None
    rows: int = 6
    unit: float = 2.0**-8
    stored: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def for_jax(self, rows: int | None = None) -> list[NDArray[Any]]:
        arrays = self.make(rows)
        return [x.transpose(self.stored.get(name, tuple(range(x.ndim)))) for name, x in arrays.items()]

    def make(self, rows: int | None = None) -> Mapping[str, NDArray[Any]]:
        return self.arrays(np.random.default_rng(7), self.rows if rows is None else rows)


def normal(rng: np.random.Generator, *shape: int, dtype: Any = BF16) -> NDArray[Any]:
    return rng.normal(size=shape).astype(np.float32).astype(dtype)


def angles(rng: np.random.Generator, *shape: int) -> NDArray[Any]:
    return np.cos(rng.uniform(0, 7, size=shape)).astype(np.float32)


def gate(rng: np.random.Generator, tokens: int) -> dict[str, NDArray[Any]]:
    return {
        "x": normal(rng, tokens, 4, 5120),
        "kv": normal(rng, tokens, 25600),
        "weight": normal(rng, 4, 5120, dtype=np.float32),
    }


def lmsd(rng: np.random.Generator, rows: int, columns: int) -> dict[str, NDArray[Any]]:
    return {
        "x_tensor": normal(rng, rows, columns),
        "u_tensor": normal(rng, rows, columns),
        "weight_tensor": normal(rng, columns),
        "bias_tensor": normal(rng, columns),
    }


CASES = (
    Case(
        "rmsnorm_rht_amax_forward",
        lambda rng, m: {"x_tensor": normal(rng, m, 64), "w_tensor": normal(rng, 64)},
        {"rows_per_cta": 2},
        "rmsnorm_rht_amax_jax_forward",
    ),
    *(
        Case(
            "rmsnorm_silu_forward",
            lambda rng, m: {"x": normal(rng, m, 96), "weight": normal(rng, 96)},
            {"eps": 1e-6, "out_dtype": kind},
            "rmsnorm_silu_jax_forward",
            # A value at a tie may go either way where frameworks sum in another order: a step of the format, rarely.
            unit=unit,
        )
        for kind, unit in (("bfloat16", 2.0**-8), ("float8_e4m3fn", 2.0**-4), ("float4_e2m1fn", 2.0**-4))
    ),
    Case(
        "engram_gate_saved_forward",
        lambda rng, m: {**gate(rng, m), "token_mask": np.arange(m) % 3 > 0},
        {"eps": 1e-20},
        "engram_gate_saved_jax_forward",
        rows=2,
    ),
    Case(
        "engram_gate_saved_backward",
        lambda rng, m: {
            **gate(rng, m),
            "saved": rng.uniform(0.1, 1, size=(m, 4, 4)).astype(np.float32),
            "grad_out": normal(rng, m, 4, 5120),
        },
        jax="engram_gate_saved_jax_backward",
        rows=2,
    ),
    *(
        Case(
            "hstu_lmsd_forward",
            lambda rng, m: lmsd(rng, m, 24),
            {"dropout_ratio": ratio, "apply_u_silu": silu, "concat_u": True, "concat_x": silu},
            "hstu_lmsd_jax_forward",
        )
        for ratio, silu in ((0.25, True), (0.0, False))
    ),
    *(
        Case(
            "hstu_lmsd_backward",
            lambda rng, m, ratio=ratio, silu=silu: {
                "dy_tensor": normal(rng, m, 24 * (2 + silu)),
                **lmsd(rng, m, 24),
                "mean_tensor": normal(rng, m, dtype=np.float32) / 8,
                "rstd_tensor": rng.uniform(0.5, 2, size=m).astype(np.float32),
                **({"mask_tensor": rng.integers(0, 8, size=(m, 24)).astype(np.int8)} if ratio else {}),
            },
            {
                **({} if ratio else {"mask_tensor": None}),
                "dropout_ratio": ratio,
                "apply_u_silu": silu,
                "concat_u": True,
                "concat_x": silu,
                "compute_dweight": silu,
            },
            "hstu_lmsd_jax_backward",
        )
        for ratio, silu in ((0.25, True), (0.0, False))
    ),
    Case(
        "tail_rope_forward",
        lambda rng, m: {"x": normal(rng, m, 3, 128), "cosine": angles(rng, m, 32), "sine": angles(rng, m, 32)},
        jax="tail_rope_jax_forward",
        unit=0.0,
    ),
    *(
        Case(
            "rope_qdq_inplace_forward",
            lambda rng, m, shape=shape: {
                "x": normal(rng, m, *shape),
                "cache": angles(rng, 40, 64),
                "positions": rng.integers(0, 40, size=m).astype(np.int32),
            },
            {"quantization": kind, "group_size": group, "scale_format": scale},
            "rope_qdq_jax_forward",
            unit=0.0,
        )
        for kind, group, scale, shape in (
            ("fp4", 32, "ue8m0", (4, 128)),
            ("fp8", 32, "ue8m0", (512,)),
            ("fp4", 16, "e4m3", (512,)),
        )
    ),
    Case(
        "vision_rope_backward",
        lambda rng, m: {
            "grad_q": normal(rng, 16, m, 64).transpose(1, 0, 2),
            "grad_k": normal(rng, 16, 64, m).transpose(2, 0, 1),
            "grad_v": normal(rng, 16, m, 64).transpose(1, 0, 2),
            "cosine": angles(rng, m, 1, 32),
            "sine": angles(rng, m, 1, 32),
        },
        jax="vision_rope_jax_backward",
        stored={"grad_q": (1, 0, 2), "grad_k": (1, 2, 0), "grad_v": (1, 0, 2)},
        unit=0.0,
    ),
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        names = [
            f"{case.function}{'-' * bool(case.options)}{'-'.join(map(str, case.options.values()))}" for case in CASES
        ]
        metafunc.parametrize("case", CASES, ids=names)
