"""Packed scale factors as operands: their two forms, checked, without data."""

from __future__ import annotations

from cudnn_fe.core.block_scale.layouts import TO_ATOM, TO_PHYSICAL, scale_shape
from cudnn_fe.core.errors import ShapeError, StrideError
from cudnn_fe.core.tensor import TensorSpec, contiguous_strides

__all__ = ["PACKED_LAYOUT", "atom_spec", "is_atom_form", "require_packed"]

PACKED_LAYOUT = "(L, ceil(R/128), K', 32, 4, 4), or its atom view (32, 4, ceil(R/128), 4, K', L) with R rows"


def atom_spec(spec: TensorSpec) -> TensorSpec:
    """The atom view of a physical form."""
    return spec.permute(TO_ATOM)


def _permuted(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The atom view's shape of a physical one."""
    return tuple(shape[dim] for dim in TO_ATOM)


def is_atom_form(spec: TensorSpec) -> bool:
    """Whether packed scale factors are given as the atom view; the physical form ends in (32, 4, 4)."""
    return spec.ndim == 6 and (spec.shape[0], spec.shape[1], spec.shape[3]) == (32, 4, 4)


def require_packed(spec: TensorSpec, rows: int, columns: int, batch: int) -> None:
    """Raises ShapeError or StrideError unless ``spec`` is one of the two packed forms, compact."""
    spec.require_rank(6, PACKED_LAYOUT)
    physical = spec.permute(TO_PHYSICAL) if is_atom_form(spec) else spec
    shape = scale_shape(rows, columns, batch)
    if physical.shape != shape:
        raise ShapeError(
            spec.name,
            got=str(spec.shape),
            wanted=f"{shape} or {_permuted(shape)} for {rows} rows of {columns} scales",
            remedy="pack plain scales with cudnn_fe.core.block_scale.swizzle_scales",
        )
    if spec.size and physical.strides != contiguous_strides(shape):
        raise StrideError(
            spec.name,
            got=f"strides {spec.strides}",
            wanted="one compact buffer in the order of the physical form",
            remedy="copy the physical form, then take its atom view",
        )
