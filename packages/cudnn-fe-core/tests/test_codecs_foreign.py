"""Where the casts of ml_dtypes, torch and JAX differ from ours: exactly the rows below, which docs/codecs.md shows.

For each cast the inputs that differ must be the union of its rows' inputs, no more and no less, so an agreement that is
lost, a disagreement that ends, or one not listed fails. Casts differ from version to version: the rows hold for
`DESCRIBED`, and another version is skipped with that reason.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from cudnn_fe.core.codecs import FORMATS, Rounding, encode, to_bfloat16, to_codes, to_float16
from cudnn_fe_testkit.floats import all_bfloat16, float32_patterns, float32_with_neighbours

DESCRIBED = {"ml_dtypes": "0.6.0", "torch": "2.15.0", "jax": "0.10.2"}
DOCS = Path(__file__).parents[3] / "docs" / "codecs.md"
Floats = NDArray[np.float32]
Bools = NDArray[np.bool_]
Codes = NDArray[np.uint8]


@dataclass(frozen=True)
class Disagreement:
    """One row: a cast, the inputs where it differs, what it gives there and what we give.

    Attributes:
        cast: Package whose cast it is.
        format: Name of the format.
        inputs: The inputs, for the reader.
        gives: What the cast gives, for the reader.
        ours: What `encode` gives, for the reader.
        where: The inputs, for the test.
        holds: Whether the cast's codes are what `gives` says: (theirs, ours) to a mask.
        round: The rounding of ours that is compared; None is the format's own.
    """

    cast: str
    format: str
    inputs: str
    gives: str
    ours: str
    where: Callable[[Floats], Bools]
    holds: Callable[[Codes, Codes], Bools]
    round: Rounding | None = None

    def line(self) -> str:
        """The row of the docs' table."""
        name = self.format + (f", `round={self.round!r}`".replace("'", '"') if self.round else "")
        return f"| {self.cast} | {name} | {self.inputs} | {self.gives} | {self.ours} |"


def _between_powers(x: Floats) -> Bools:
    """2**k < |x| < 1.5 * 2**k for a normal k below 127."""
    bits = np.abs(x).view(np.uint32)
    fraction, exponent = bits & 0x7FFFFF, bits >> 23
    found: Bools = (exponent > 0) & (exponent < 254) & (fraction > 0) & (fraction < 0x400000)
    return found


def _tie_at_even_code(x: Floats) -> Bools:
    bits = np.abs(x).view(np.uint32)
    exponent = bits >> 23
    found: Bools = ((bits & 0x7FFFFF) == 0x400000) & (exponent % 2 == 0) & (exponent > 0) & (exponent < 254)
    return found


def _lowest_interval(x: Floats) -> Bools:
    return (np.abs(x) > 2.0**-127) & (np.abs(x) <= 1.5 * 2.0**-127)


def _positive(where: Callable[[Floats], Bools]) -> Callable[[Floats], Bools]:
    return lambda x: where(x) & (x > 0)


def _negative_nan(x: Floats) -> Bools:
    return np.isnan(x) & np.signbit(x)


def _past_e8m0(x: Floats) -> Bools:
    return np.abs(x) >= 1.5 * 2.0**127


def _rows() -> list[Disagreement]:
    rows = []
    for cast in DESCRIBED:
        if cast != "torch":
            rows += [
                Disagreement(cast, "float8_e4m3fn", "abs(x) > 464, infinities included", "NaN with the sign of x",
                             "±448", lambda x: np.abs(x) > 464, lambda t, o: (t == (o | 1)) & (o & 0x7F == 0x7E)),
                Disagreement(cast, "float8_e5m2", "NaN", "0x7E, or 0xFE with the sign bit", "0x7F",
                             np.isnan, lambda t, o: (t & 0x7F == 0x7E) & (o == 0x7F)),
                Disagreement(cast, "float4_e2m1fn", "NaN", "a zero", "6 (0x7)",
                             np.isnan, lambda t, o: (t & 0x7 == 0) & (o == 0x7)),
            ]  # fmt: skip
        else:
            rows.append(
                Disagreement(cast, "float8_e5m2", "NaN with the sign bit", "0xFF", "0x7F",
                             _negative_nan, lambda t, o: (t == 0xFF) & (o == 0x7F))
            )  # fmt: skip
        rows += [
            Disagreement(cast, "float8_e4m3fn", "NaN with the sign bit", "0xFF", "0x7F",
                         _negative_nan, lambda t, o: (t == 0xFF) & (o == 0x7F)),
            Disagreement(cast, "float8_e5m2", "abs(x) >= 61440, infinities included", "infinity", "±57344",
                         lambda x: np.abs(x) >= 61440, lambda t, o: (t == o + 1) & (o & 0x7F == 0x7B)),
        ]  # fmt: skip
        rounding: Rounding | None
        for rounding in (None, "nearest"):
            sign: Callable[[Any], Any] = (lambda where: where) if cast == "torch" else _positive
            size = "abs(x)" if cast == "torch" else "x"
            if cast != "torch":
                rows.append(
                    Disagreement(cast, "float8_e8m0fnu", "x <= 0, either zero included", "NaN (0xFF)", "that of abs(x)",
                                 lambda x: x <= 0, lambda t, o: (t == 0xFF) & (o <= 0xFE), rounding)
                )  # fmt: skip
            rows.append(
                Disagreement(cast, "float8_e8m0fnu", f"{size} >= 1.5 * 2**127", "NaN (0xFF)", "2**127 (0xFE)",
                             sign(_past_e8m0), lambda t, o: (t == 0xFF) & (o == 0xFE), rounding)
            )  # fmt: skip
            if rounding is None:
                rows.append(
                    Disagreement(cast, "float8_e8m0fnu", f"2**k < {size} < 1.5 * 2**k, -126 <= k <= 126", "2**k",
                                 "2**(k + 1)", sign(_between_powers), lambda t, o: t == o - 1)
                )  # fmt: skip
            else:
                rows += [
                    Disagreement(cast, "float8_e8m0fnu", f"{size} = 1.5 * 2**k, k odd, -125 <= k <= 125", "2**(k + 1)",
                                 "2**k (even code)", sign(_tie_at_even_code), lambda t, o: t == o + 1, rounding),
                    Disagreement(cast, "float8_e8m0fnu", f"2**-127 < {size} <= 1.5 * 2**-127", "2**-126", "2**-127",
                                 sign(_lowest_interval), lambda t, o: (t == 1) & (o == 0), rounding),
                ]  # fmt: skip
    return sorted(rows, key=_comparison)


def _comparison(row: Disagreement) -> tuple[str, str, str]:
    return (row.cast, row.format, row.round or "")


ROWS = _rows()


def _cast(cast: str, x: Floats, name: str) -> Codes:
    with np.errstate(all="ignore"):
        if cast == "ml_dtypes":
            return np.asarray(to_codes(x.astype(getattr(ml_dtypes, name))))
    if cast == "torch":
        return np.asarray(to_codes(torch.asarray(x).to(getattr(torch, name))))
    return np.asarray(jax.jit(lambda a: to_codes(a.astype(getattr(jnp, name))))(x))


def _need(cast: str) -> None:
    found = version(cast).split("+")[0]
    if found != DESCRIBED[cast]:
        pytest.skip(f"the rows describe {cast} {DESCRIBED[cast]}, this is {found}")


COMPARISONS = {key: list(rows) for key, rows in groupby(ROWS, key=_comparison)}


@pytest.mark.parametrize(("key", "rows"), COMPARISONS.items(), ids=["-".join(filter(None, key)) for key in COMPARISONS])
def test_the_rows_are_all_the_disagreements(key: tuple[str, str, str], rows: list[Disagreement]) -> None:
    _need(key[0])
    edges = float32_with_neighbours(
        [464.0, 480.0, 61440.0, 65536.0, 5.0, 7.0, 2.0**-127, 1.5 * 2.0**-127, 1.5 * 2.0**127]
    )
    x = np.concatenate([float32_patterns(), edges, np.asarray([np.inf, -np.inf], np.float32)])
    ours, theirs = encode(x, key[1], round=rows[0].round), _cast(key[0], x, key[1])
    listed = np.zeros(x.shape, np.bool_)
    for row in rows:
        where = row.where(x)
        assert where.any(), row.line()
        wrong = where & ~row.holds(theirs, ours)
        assert not wrong.any(), (row.line(), x[wrong][:3], theirs[wrong][:3], ours[wrong][:3])
        listed |= where
    unlisted = (theirs != ours) & ~listed
    assert not unlisted.any(), (x[unlisted][:5], theirs[unlisted][:5], ours[unlisted][:5])


def test_every_cast_and_format_is_compared() -> None:
    compared = {(row.cast, row.format) for row in ROWS}
    expected = {(cast, row.name) for cast in DESCRIBED for row in FORMATS.values() if row.has_native_dtype}
    assert compared == expected - {("torch", "float4_e2m1fn")}
    with pytest.raises((NotImplementedError, RuntimeError)):
        torch.zeros(2).to(torch.float4_e2m1fn_x2)


@pytest.mark.parametrize("cast", DESCRIBED)
@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_casts_to_16_bits_differ_in_nan_payloads_only(cast: str, name: str) -> None:
    _need(cast)
    x = float32_patterns()
    ours = (to_bfloat16 if name == "bfloat16" else to_float16)(x).view(np.uint16)
    target = np.float16 if name == "float16" else ml_dtypes.bfloat16
    with np.errstate(all="ignore"):
        if cast == "torch":
            theirs = torch.asarray(x).to(getattr(torch, name)).view(torch.int16).numpy().view(np.uint16)
        elif cast == "jax":
            theirs = np.asarray(jax.jit(lambda a: a.astype(target))(x)).view(np.uint16)
        else:
            theirs = x.astype(target).view(np.uint16)
    differ = ours != theirs
    np.testing.assert_array_equal(differ[~np.isnan(x)], False)
    assert differ.any()
    assert np.isnan(theirs.view(target)[np.isnan(x)].astype(np.float32)).all()


@pytest.mark.parametrize("cast", DESCRIBED)
@pytest.mark.parametrize("row", [row for row in FORMATS.values() if row.has_native_dtype], ids=lambda row: row.name)
def test_bfloat16_sources_are_cast_like_their_float32(cast: str, row: Any) -> None:
    _need(cast)
    if (cast, row.name) == ("torch", "float4_e2m1fn"):
        pytest.skip("torch has no such cast")
    brains = all_bfloat16()
    number = ~np.isnan(brains.astype(np.float32))
    source: Any = brains
    if cast == "torch":
        source = torch.from_numpy(brains.view(np.int16)).view(torch.bfloat16)
        theirs = np.asarray(to_codes(source.to(getattr(torch, row.name))))
    else:
        theirs = _cast(cast, source, row.name)
    np.testing.assert_array_equal(theirs[number], _cast(cast, brains.astype(np.float32), row.name)[number])


@pytest.mark.skipif(not DOCS.exists(), reason="not run from the repository")
def test_the_docs_show_the_rows() -> None:
    text = DOCS.read_text()
    shown = [line for line in text.splitlines() if line.startswith(tuple(f"| {cast} |" for cast in DESCRIBED))]
    assert shown == [row.line() for row in ROWS]
    for cast, described in DESCRIBED.items():
        assert f"{cast} {described}" in text
