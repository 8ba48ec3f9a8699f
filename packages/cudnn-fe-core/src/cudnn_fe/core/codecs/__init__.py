"""The low-precision formats as this project defines them, bit-exact under NumPy, torch and JAX, eager or traced.

`formats` holds the facts and the exact value of every code, `encode` and `decode` convert, `views` exchanges codes with
the frameworks' own dtypes, `pack` packs FP4 pairs, `narrow` rounds to bfloat16, float16 and TF32, and `bits` is the
integer ground they stand on.
"""

from cudnn_fe.core.codecs.decode import decode
from cudnn_fe.core.codecs.encode import encode
from cudnn_fe.core.codecs.formats import (
    E2M1,
    E4M3,
    E5M2,
    E8M0,
    FORMATS,
    UE5M3,
    Format,
    Rounding,
    decode_table,
    format_of,
)
from cudnn_fe.core.codecs.narrow import round_to_tf32, to_bfloat16, to_float16
from cudnn_fe.core.codecs.pack import pack_fp4, unpack_fp4
from cudnn_fe.core.codecs.views import from_codes, packed_pairs, to_codes

__all__ = [
    "E2M1",
    "E4M3",
    "E5M2",
    "E8M0",
    "FORMATS",
    "UE5M3",
    "Format",
    "Rounding",
    "decode",
    "decode_table",
    "encode",
    "format_of",
    "from_codes",
    "pack_fp4",
    "packed_pairs",
    "round_to_tf32",
    "to_bfloat16",
    "to_codes",
    "to_float16",
    "unpack_fp4",
]
