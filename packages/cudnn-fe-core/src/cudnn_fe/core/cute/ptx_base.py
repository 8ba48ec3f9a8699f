"""Instructions of the base set (SM80 and up) that need exact control over width, predicate or operands.

Global addresses are Int64, shared-memory addresses Int32, data are 32-bit words. All are volatile to the compiler's
middle end, so that none crosses a barrier.
"""

from __future__ import annotations

from typing import Any

from cutlass import Float32, Int32, Int64
from cutlass._mlir import ir
from cutlass._mlir.dialects import llvm

__all__ = [
    "assemble",
    "copy_async",
    "load_global",
    "load_matrix",
    "load_shared",
    "mma",
    "permute_bytes",
    "round_to_tf32",
    "store_shared",
]

_CONSTRAINT = {Int32: "r", Int64: "l", Float32: "f"}


def assemble(code: str, results: list[type], arguments: list[Any]) -> list[Any]:
    """Emit PTX whose operands are numbered results first, then arguments.

    Args:
        code: PTX text with ``$0``, ``$1``, ...
        results: The DSL type of each result.
        arguments: DSL values.
    """
    # Early-clobber results: the text may write one before it has read every argument.
    constraints = [f"=&{_CONSTRAINT[kind]}" for kind in results]
    constraints += [_CONSTRAINT[type(value)] for value in arguments]
    types = [kind.mlir_type for kind in results]  # type: ignore[attr-defined]
    returned = None
    if len(types) == 1:
        returned = types[0]
    elif types:
        returned = llvm.StructType.get_literal(types)
    value = llvm.inline_asm(
        returned,
        [argument.ir_value() for argument in arguments],
        code,
        ",".join(constraints),
        has_side_effects=True,
        is_align_stack=False,
        asm_dialect=llvm.AsmDialect.AD_ATT,
    )
    if len(types) <= 1:
        return [kind(value) for kind in results]
    fields = [ir.DenseI64ArrayAttr.get([index]) for index in range(len(types))]
    return [kind(llvm.extractvalue(kind.mlir_type, value, field)) for kind, field in zip(results, fields, strict=True)]  # type: ignore[attr-defined]


def copy_async(shared: Int32, address: Int64, size: int, valid: Any, *, common: bool = False) -> None:
    """Copy ``size`` (4, 8 or 16) bytes from global to shared memory; read nothing and write zeros unless ``valid``.

    They go past L1 where they can, unless they are ``common`` to several threads or blocks.
    """
    cached = "cg" if size == 16 and not common else "ca"  # only 16-byte copies can bypass L1
    copied = Int32(valid) * size
    assemble(f"cp.async.{cached}.shared.global [$0], [$1], {size}, $2;", [], [Int32(shared), Int64(address), copied])


def load_global(address: Int64, size: int, valid: Any) -> list[Int32]:
    """Read ``size`` (1, 2, 4, 8 or 16) bytes as words, the last zero-extended; zeros unless ``valid``."""
    count = max(size // 4, 1)
    names = [f"${index}" for index in range(count)]
    width = {1: ".u8 $0", 2: ".u16 $0", 4: ".b32 $0", 8: ".v2.b32 {$0,$1}", 16: ".v4.b32 {$0,$1,$2,$3}"}[size]
    clear = " ".join(f"mov.b32 {name}, 0;" for name in names)
    code = f"{{ .reg .pred p; setp.ne.s32 p, ${count + 1}, 0; {clear} @p ld.global{width}, [${count}]; }}"
    return assemble(code, [Int32] * count, [Int64(address), Int32(valid)])


def store_shared(shared: Int32, words: list[Any], size: int) -> None:
    """Write one, two or four words, or the lower half of one if ``size`` is 2 bytes."""
    kind = {Int32: "b32", Float32: "f32"}[type(words[0])]
    names = ",".join(f"${index + 1}" for index in range(len(words)))
    if size == 2:
        code = "{ .reg .b16 h; cvt.u16.u32 h, $1; st.shared.b16 [$0], h; }"
    elif len(words) == 1:
        code = f"st.shared.{kind} [$0], $1;"
    else:
        code = f"st.shared.v{len(words)}.{kind} [$0], {{{names}}};"
    assemble(code, [], [Int32(shared), *words])


def load_shared(shared: Int32, count: int, kind: type = Int32) -> list[Any]:
    """Read ``count`` (1, 2 or 4) 32-bit values."""
    suffix = {Int32: "b32", Float32: "f32"}[kind]
    if count == 1:
        return assemble(f"ld.shared.{suffix} $0, [$1];", [kind], [Int32(shared)])
    names = ",".join(f"${index}" for index in range(count))
    return assemble(f"ld.shared.v{count}.{suffix} {{{names}}}, [${count}];", [kind] * count, [Int32(shared)])


def load_matrix(shared: Int32, *, transpose: bool) -> list[Int32]:
    """Read four 8 x 8 matrices of 16-bit elements; lane ``8i + r`` gives the address of row r of matrix i."""
    form = ".trans" if transpose else ""
    code = f"ldmatrix.sync.aligned.m8n8.x4{form}.shared.b16 {{$0,$1,$2,$3}}, [$4];"
    return assemble(code, [Int32] * 4, [Int32(shared)])


def mma(kind: str, a: list[Any], b: list[Any], c: list[Any]) -> list[Float32]:
    """One 16 x 8 product over 32 bytes of K with fp32 accumulators.

    Args:
        kind: ``"f16"``, ``"bf16"`` (K = 16) or ``"tf32"`` (K = 8).
        a: Four words of A.
        b: Two words of B.
        c: The four accumulators to add to.
    """
    depth = 8 if kind == "tf32" else 16
    code = (
        f"mma.sync.aligned.m16n8k{depth}.row.col.f32.{kind}.{kind}.f32 "
        "{$0,$1,$2,$3}, {$4,$5,$6,$7}, {$8,$9}, {$10,$11,$12,$13};"
    )
    return assemble(code, [Float32] * 4, [*a, *b, *c])


def round_to_tf32(word: Any) -> Int32:
    """An fp32 bit pattern rounded to TF32, to nearest with ties away from zero.

    The instruction cuts a NaN's low bits off, which may leave infinity: NaN is put back.
    """
    code = (
        "{ .reg .f32 f; .reg .b32 r; .reg .pred nan; mov.b32 f, $1; cvt.rna.tf32.f32 r, f; "
        "setp.nan.f32 nan, f, f; selp.b32 $0, 0x7fffffff, r, nan; }"
    )
    (rounded,) = assemble(code, [Int32], [word])
    return rounded


def permute_bytes(first: Any, second: Any, selector: int) -> Int32:
    """Four bytes chosen from ``first`` (numbers 0-3) and ``second`` (4-7), one selector digit for each."""
    (permuted,) = assemble(f"prmt.b32 $0, $1, $2, {selector};", [Int32], [Int32(first), Int32(second)])
    return permuted
