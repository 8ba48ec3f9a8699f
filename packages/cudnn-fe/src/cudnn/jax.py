"""JAX interoperability: kernels of one's own as XLA custom calls, and the layouts that they see."""

from cudnn._below import names_below
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

__getattr__, __dir__ = names_below("jax", globals())
