"""`TensorSpec`: what an operand looks like, whichever framework it comes from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cudnn_fe.core.dtypes import DType, dtype
from cudnn_fe.core.errors import AliasError, AlignmentError, FrameworkError, ShapeError, StrideError
from cudnn_fe.core.frameworks import framework_of

__all__ = ["TensorSpec", "byte_range", "contiguous_strides", "pointer_of", "refuse_overlap", "spec_of"]

_DLPACK_CUDA = (2, 13)  # device memory, managed memory
TRACED = "traced"  # the device of a JAX tracer, which is not known before lowering


def contiguous_strides(shape: Sequence[int], order: Sequence[int] | None = None) -> tuple[int, ...]:
    """Element strides of a compact array.

    Args:
        shape: Extents.
        order: Dims from the innermost to the outermost; row-major when None.

    Example:
        >>> contiguous_strides((2, 3, 4)), contiguous_strides((2, 3, 4), order=(0, 1, 2))
        ((12, 4, 1), (1, 2, 6))
    """
    strides = [0] * len(shape)
    step = 1
    for dim in order if order is not None else range(len(shape) - 1, -1, -1):
        strides[dim] = step
        step *= max(shape[dim], 1)
    return tuple(strides)


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape, strides, element type and place of an operand.

    Two specs are equal when they describe the same memory: strides of dims of extent 1 never matter.

    Attributes:
        shape: Extents.
        strides: Strides in elements.
        dtype: Element type.
        device: ``"cpu"``, ``"cuda:<index>"``, or ``"traced"`` for a JAX tracer.
        alignment: Largest power of two up to 16 that divides the data pointer; 16 where there is no pointer yet.
        name: The operand's name in messages; not part of equality.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType
    device: str = "cpu"
    alignment: int = 16
    name: str = field(default="tensor", compare=False)

    def __post_init__(self) -> None:
        if len(self.shape) != len(self.strides):
            raise StrideError(
                self.name,
                got=f"{len(self.strides)} strides for shape {self.shape}",
                wanted="one stride per dim",
                remedy="give matching shape and strides",
            )
        canonical = contiguous_strides(self.shape)
        merged = tuple(c if n == 1 else s for n, s, c in zip(self.shape, self.strides, canonical, strict=True))
        object.__setattr__(self, "strides", merged)

    @property
    def ndim(self) -> int:
        """Number of dims."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        count = 1
        for extent in self.shape:
            count *= extent
        return count

    @property
    def nbytes(self) -> int:
        """Bytes of the elements, each counted once."""
        return self.size * self.dtype.bits // 8

    @property
    def is_cuda(self) -> bool:
        """Whether it lives on a CUDA device."""
        return self.device.startswith("cuda")

    def dense_in(self, dim: int) -> bool:
        """Whether neighbours along ``dim`` are neighbours in memory (always so for extents below 2)."""
        return self.shape[dim] <= 1 or self.strides[dim] == 1

    def permute(self, dims: Sequence[int]) -> TensorSpec:
        """The same memory with its dims in another order."""
        return TensorSpec(
            tuple(self.shape[d] for d in dims),
            tuple(self.strides[d] for d in dims),
            self.dtype,
            self.device,
            self.alignment,
            self.name,
        )

    def require_rank(self, rank: int, layout: str) -> None:
        """Raises ShapeError unless there are ``rank`` dims; ``layout`` names them, e.g. ``"(M, K, L)"``."""
        if len(self.shape) != rank:
            raise ShapeError(
                self.name,
                got=f"shape {self.shape} with {len(self.shape)} dims",
                wanted=f"{rank} dims {layout}",
                remedy="reshape or unsqueeze the operand to the documented rank",
            )


def _alignment(pointer: int) -> int:
    return min(pointer & -pointer, 16) if pointer else 16


def spec_of(array: Any, name: str = "tensor") -> TensorSpec:
    """Describe an array, a tracer, a meta or fake tensor, a TensorSpec, or anything with shape, dtype and strides.

    Raises:
        FrameworkError: It has no shape and dtype.
        AlignmentError: A data pointer is not a multiple of the element size.
    """
    if isinstance(array, TensorSpec):
        return TensorSpec(array.shape, array.strides, array.dtype, array.device, array.alignment, name)
    try:
        framework = framework_of(array, operand=name)
    except FrameworkError:
        return _described(array, name)
    if framework == "torch":
        spec, pointer = _torch_spec(array, name)
    elif framework == "jax":
        return _jax_spec(array, name)
    elif framework == "numpy":
        spec, pointer = _numpy_spec(array, name)
    else:
        spec, pointer = _dlpack_spec(array, name)
    if pointer % spec.dtype.itemsize:
        raise AlignmentError(
            name,
            got=f"a data pointer {pointer:#x} that is not a multiple of {spec.dtype.itemsize} bytes",
            wanted=f"{spec.dtype} elements at their natural alignment",
            remedy="copy the operand into a fresh allocation",
        )
    return spec


def _is_strided(tensor: Any) -> bool:
    return str(tensor.layout) == "torch.strided"


def _torch_spec(array: Any, name: str) -> tuple[TensorSpec, int]:
    device = array.device
    place = device.type if device.index is None or device.type == "cpu" else str(device)
    if not _is_strided(array):
        raise StrideError(
            name,
            got=f"a {array.layout} tensor",
            wanted="a strided tensor",
            remedy="call to_dense() on the operand",
        )
    try:
        fake = getattr(array, "fake_mode", None) is not None  # asking these for a pointer warns
        pointer = array.data_ptr() if device.type in ("cuda", "cpu") and not fake else 0
    except RuntimeError:  # functional and batched tensors have no storage of their own
        pointer = 0
    shape = tuple(array.shape)  # symbolic extents stay so, else torch.compile would compile every M anew
    spec = TensorSpec(shape, tuple(array.stride()), dtype(array.dtype, operand=name), place, _alignment(pointer), name)
    return spec, pointer


def _numpy_spec(array: Any, name: str) -> tuple[TensorSpec, int]:
    kind = dtype(array.dtype, operand=name)
    size = array.dtype.itemsize
    if any(step % size for step, extent in zip(array.strides, array.shape, strict=True) if extent > 1):
        raise StrideError(
            name,
            got=f"byte strides {array.strides}",
            wanted=f"multiples of the element size {size}",
            remedy="copy the operand with numpy.ascontiguousarray",
        )
    pointer = array.__array_interface__["data"][0] if array.size else 0
    strides = tuple(step // size for step in array.strides)
    return TensorSpec(array.shape, strides, kind, "cpu", _alignment(pointer), name), pointer


def _jax_spec(array: Any, name: str) -> TensorSpec:
    place = TRACED
    try:
        device = next(iter(array.devices()))
    except Exception:  # tracers raise their own error type, which differs between releases
        pass
    else:
        index = device.local_hardware_id or 0
        place = {"cpu": "cpu", "gpu": f"cuda:{index}"}.get(device.platform, f"{device.platform}:{index}")
    shape = tuple(array.shape)
    return TensorSpec(shape, contiguous_strides(shape), dtype(array.dtype, operand=name), place, 16, name)


def _dlpack_spec(array: Any, name: str) -> tuple[TensorSpec, int]:
    """Of an array that only DLPack knows; its own attributes may count strides in bytes."""
    try:
        import tvm_ffi  # light: it imports no framework
    except ImportError:
        return _described(array, name), 0
    view = tvm_ffi.from_dlpack(array)
    kind, index = array.__dlpack_device__()
    place = f"cuda:{index}" if int(kind) in _DLPACK_CUDA else "cpu"
    spec = TensorSpec(tuple(view.shape), tuple(view.strides), dtype(str(view.dtype), operand=name), place, 16, name)
    pointer = view.data_ptr()
    return replace(spec, alignment=_alignment(pointer)), pointer


def _described(array: Any, name: str) -> TensorSpec:
    shape, kind = getattr(array, "shape", None), getattr(array, "dtype", None)
    if shape is None or kind is None:
        raise FrameworkError(
            name,
            got=f"{type(array).__module__}.{type(array).__qualname__}",
            wanted="an array, or an object with shape and dtype",
            remedy="pass a torch tensor, a JAX or NumPy array, or a TensorSpec",
        )
    shape = tuple(int(extent) for extent in shape)
    given = getattr(array, "stride", None)
    if given is None:
        given = getattr(array, "strides", None)
    strides = tuple(given() if callable(given) else given) if given is not None else contiguous_strides(shape)
    device = str(getattr(array, "device", "cpu"))
    return TensorSpec(shape, strides, dtype(kind, operand=name), "cuda:0" if device == "cuda" else device, 16, name)


def pointer_of(array: Any) -> int:
    """The address of a strided torch tensor's, NumPy array's or DLPack object's first element; 0 where it has none."""
    framework = framework_of(array)
    if framework == "torch":
        return int(array.data_ptr())
    if framework == "numpy":
        return int(array.__array_interface__["data"][0]) if array.size else 0
    return _dlpack_spec(array, "tensor")[1]


def byte_range(spec: TensorSpec, pointer: int) -> tuple[int, int]:
    """First byte and one past the last byte that the operand touches; an empty range when it has no elements."""
    if spec.size == 0:
        return pointer, pointer
    reach = [(extent - 1) * step * spec.dtype.bits // 8 for extent, step in zip(spec.shape, spec.strides, strict=True)]
    low = sum(step for step in reach if step < 0)
    high = sum(step for step in reach if step > 0)
    return pointer + low, pointer + high + spec.dtype.itemsize


def refuse_overlap(inputs: Sequence[tuple[TensorSpec, int]], outputs: Sequence[tuple[TensorSpec, int]]) -> None:
    """Raises AliasError when an output's bytes overlap an input's or another output's.

    Args:
        inputs: Specs with data pointers. Inputs may overlap one another.
        outputs: Likewise.
    """
    written = [(spec.name, *byte_range(spec, pointer)) for spec, pointer in outputs]
    read = [(spec.name, *byte_range(spec, pointer)) for spec, pointer in inputs]
    for position, (name, low, high) in enumerate(written):
        for other, other_low, other_high in read + written[position + 1 :]:
            if low < other_high and other_low < high:
                raise AliasError(
                    name,
                    got=f"bytes that overlap those of {other}",
                    wanted="outputs apart from inputs and from one another",
                    remedy=f"allocate a buffer of its own for {name}",
                )
