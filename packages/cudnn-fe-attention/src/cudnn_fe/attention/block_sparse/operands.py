"""What forward and backward of block-sparse attention share: layouts, lists of blocks, and their checks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from cudnn_fe.attention.operands import require_groups
from cudnn_fe.core.device import device
from cudnn_fe.core.errors import NotYetSupportedError, OptionError, ShapeError
from cudnn_fe.core.require import require_dtype, require_one_of, require_same_device, require_shape
from cudnn_fe.core.tensor import TensorSpec

__all__ = ["BlockLists", "Extents", "bind_lists", "extents_of", "physical"]

Layout = Literal["bhsd", "bshd"]


@dataclass(frozen=True)
class Extents:
    """The extents of one call."""

    batch: int
    query_heads: int
    key_heads: int
    queries: int
    keys: int
    channels: int
    value_channels: int


@dataclass(frozen=True)
class BlockLists:
    """How the lists of blocks are to be read.

    Attributes:
        block: Tokens of a block.
        count: Blocks of every list, None where a tensor says.
        packed: Whether a list belongs to ``block`` rows of a key head's group, query heads innermost.
    """

    block: int
    count: int | None
    packed: bool


def physical(shape: tuple[int, int, int, int], layout: Layout) -> tuple[int, ...]:
    """A (B, H, S, D) shape in the layout."""
    return shape if layout == "bhsd" else (shape[0], shape[2], shape[1], shape[3])


def extents_of(q: TensorSpec, k: TensorSpec, v: TensorSpec, layout: Any) -> Extents:
    """Validates the shapes of Q, K and V."""
    require_one_of(layout, "layout", ("bhsd", "bshd"))
    words = "(B, H, S, D)" if layout == "bhsd" else "(B, S, H, D)"
    for spec in (q, k, v):
        spec.require_rank(4, words)
    (batch, heads, rows, channels), key, value = (physical(s.shape, layout) for s in (q, k, v))  # type: ignore[arg-type]
    require_shape(k, physical((batch, key[1], key[2], channels), layout), words)
    require_shape(v, physical((batch, key[1], key[2], value[3]), layout), words)
    require_groups(heads, key[1], q.name)
    return Extents(batch, heads, key[1], rows, key[2], channels, value[3])


def _default_block(place: str) -> int:
    """The vendor's default: 64 but for data-center Blackwell."""
    on_blackwell = place.startswith("cuda") and device(place).capability[0] in (10, 11)
    return 128 if on_blackwell else 64


def bind_lists(
    extents: Extents, index: TensorSpec, nums: TensorSpec | None, sizes: TensorSpec | None, **options: Any
) -> BlockLists:
    """Validates the lists of blocks. Options: ``sparse_block_size``, ``block_sparse_num``, ``pack_gqa``."""
    block = options["sparse_block_size"]
    block = _default_block(index.device) if block is None else block
    require_one_of(block, "sparse_block_size", (64, 128))
    require_dtype(index, "int32")
    index.require_rank(4, "(B, heads, query blocks, capacity)")
    group = extents.query_heads // max(extents.key_heads, 1)
    plain = (extents.batch, extents.query_heads, -(-extents.queries // block))
    dense = (extents.batch, extents.key_heads, -(-extents.queries * group // block))
    packable = block == 128 and group > 1 and block % group == 0
    pack = options.get("pack_gqa")
    if pack and not packable:
        raise NotYetSupportedError(
            "pack_gqa",
            got=f"True with {group} query heads per key head and blocks of {block}",
            wanted="blocks of 128, and a group size above 1 that divides 128",
            remedy="leave pack_gqa unset and give one list per query head",
        )
    packed = bool(pack) or (pack is None and packable and index.shape[:3] == dense)
    prefix = dense if packed else plain
    if index.shape[:3] != prefix or index.shape[3] < 1:
        raise ShapeError(
            index.name,
            got=str(index.shape),
            wanted=f"(B, heads, query blocks, capacity) = {prefix} and at least 1",
            remedy="give one list of key blocks per query block",
        )
    require_same_device(index, nums, sizes)
    if nums is not None:
        require_dtype(nums, "int32")
        require_shape(nums, prefix, "(B, heads, query blocks)")
    if sizes is not None:
        require_dtype(sizes, "int32")
        blocks = -(-extents.keys // block)
        known = ((blocks,), (extents.batch, blocks), (*prefix[:2], blocks))
        if sizes.shape not in known:
            raise ShapeError(
                sizes.name,
                got=str(sizes.shape),
                wanted=f"one of {known}",
                remedy="give the valid tokens of every key block",
            )
    return BlockLists(block, None if nums is not None else _fixed_count(options["block_sparse_num"], index), packed)


def _fixed_count(given: Any, index: TensorSpec) -> int:
    capacity = index.shape[3]
    count = capacity if given is None else given
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= capacity:
        raise OptionError(
            "block_sparse_num", got=repr(given), wanted=f"an int in 1..{capacity}", remedy="count the listed blocks"
        )
    return count
