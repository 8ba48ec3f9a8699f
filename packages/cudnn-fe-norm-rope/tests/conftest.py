"""One call of every op, as data, for what holds for all of them."""

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
        unit: Relative RMS by which frameworks may differ: the roundings of the narrowest result.
    """

    function: str
    arrays: Callable[[np.random.Generator, int], Mapping[str, NDArray[Any]]]
    options: Mapping[str, Any] = field(default_factory=dict)
    jax: str | None = None
    rows: int = 6
    unit: float = 2.0**-8

    def make(self, rows: int | None = None) -> Mapping[str, NDArray[Any]]:
        return self.arrays(np.random.default_rng(7), self.rows if rows is None else rows)


def normal(rng: np.random.Generator, *shape: int, dtype: Any = BF16) -> NDArray[Any]:
    return rng.normal(size=shape).astype(np.float32).astype(dtype)


CASES = (
    Case(
        "rmsnorm_rht_amax_forward",
        lambda rng, m: {"x_tensor": normal(rng, m, 64), "w_tensor": normal(rng, 64)},
        {"rows_per_cta": 2},
        "rmsnorm_rht_amax_jax_forward",
    ),
)


@pytest.fixture
def cases() -> tuple[Case, ...]:
    return CASES


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        names = [
            f"{case.function}{'-' * bool(case.options)}{'-'.join(map(str, case.options.values()))}" for case in CASES
        ]
        metafunc.parametrize("case", CASES, ids=names)
