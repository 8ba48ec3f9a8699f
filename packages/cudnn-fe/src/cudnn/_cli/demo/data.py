"""The text: the running Python's standard library, cut into batches the same way on every run."""

from __future__ import annotations

import sysconfig
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cudnn_fe.core.errors import OptionError

__all__ = ["Corpus", "batch", "read_corpus"]


@dataclass(frozen=True, slots=True)
class Corpus:
    """Source text as bytes.

    Attributes:
        text: (length,) uint8.
        files: How many files it came from.
    """

    text: NDArray[np.uint8]
    files: int


def read_corpus(folder: Path | None = None) -> Corpus:
    """The top-level modules of the standard library, in the order of their names.

    Raises:
        OptionError: The folder holds no Python source (a zipped or stripped installation).
    """
    folder = folder or Path(sysconfig.get_path("stdlib"))
    sources = [path.read_bytes() for path in sorted(folder.glob("*.py"))]
    text = b"".join(sources)
    if len(text) < 100_000:
        raise OptionError(
            "the standard library's source",
            got=f"{len(text)} bytes in {folder}",
            wanted="at least 100000 bytes of *.py",
            remedy="run the demo with a Python that ships its library as source files",
        )
    return Corpus(np.frombuffer(text, np.uint8), len(sources))


def batch(corpus: Corpus, *, seed: int, step: int, size: int, context: int) -> NDArray[np.int32]:
    """``size`` windows of ``context + 1`` bytes for one step: a function of the seed and the step alone."""
    generator = np.random.default_rng([seed, step])
    starts = generator.integers(0, corpus.text.size - context - 1, size)
    windows: NDArray[np.int32] = corpus.text[starts[:, None] + np.arange(context + 1)].astype(np.int32)
    return windows
