"""JAX interoperability: kernels of one's own as XLA custom calls, and the layouts that they see."""

from typing import Any

from cudnn_fe.core.jax_call import (
    TensorSpec,
    call,
    gemm_operand_spec,
    neg_inf_init,
    row_major_desc,
    sf_atom_spec,
    zeros_init,
)

__all__ = ["TensorSpec", "call", "gemm_operand_spec", "neg_inf_init", "row_major_desc", "sf_atom_spec", "zeros_init"]


def __getattr__(name: str) -> Any:
    from cudnn._lazy import find

    value = find(f"jax.{name}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    from cudnn._lazy import names

    return sorted({*globals(), *(name.removeprefix("jax.") for name in names("jax."))})
