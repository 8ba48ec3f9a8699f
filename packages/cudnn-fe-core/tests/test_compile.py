"""Compilation happens once: memory, then disk, then the compiler, whoever asks at the same time."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cudnn_fe.core import compile as module
from cudnn_fe.core.compile import cache_key, compile_counts, compile_now, compiled, forget_compiled
from cudnn_fe.core.settings import override
from cudnn_fe_testkit.toy import KERNEL_MODULE, ToySpec

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the kernel compiler has wheels for Linux only")
ARCH = "sm_90a"
SPEC = ToySpec("float32")
IN_A_PROCESS = """
import sys
from cudnn_fe.core.compile import compile_counts, compiled
from cudnn_fe_testkit.toy import KERNEL_MODULE, ToySpec
compiled(KERNEL_MODULE, ToySpec("float32"), "sm_90a")
print(compile_counts.compiled, compile_counts.loaded, int("cutlass" in sys.modules))
"""


@dataclasses.dataclass
class Counter:
    """Compilations and loads since the last question."""

    folder: Path
    before: tuple[int, int]

    def since(self) -> tuple[int, int]:
        now = compile_counts.compiled, compile_counts.loaded
        counted = now[0] - self.before[0], now[1] - self.before[1]
        self.before = now
        return counted

    def files(self, suffix: str) -> list[Path]:
        return sorted(self.folder.glob(f"*{suffix}"))


@pytest.fixture
def counter(tmp_path: Path) -> Iterator[Counter]:
    forget_compiled()
    with override(cache_dir=str(tmp_path / "cache"), disable_cache=False, cache_max_bytes=0):
        yield Counter(tmp_path / "cache", (compile_counts.compiled, compile_counts.loaded))
    forget_compiled()


def get() -> Callable[..., None]:
    return compiled(KERNEL_MODULE, SPEC, ARCH)


def test_compiles_once_then_memory_then_disk(counter: Counter) -> None:
    first = get()
    assert counter.since() == (1, 0)
    assert "ToySpec(x_dtype='float32', alignment=16) sm_90a" in compile_counts.log[-1]
    assert get() is first
    assert counter.since() == (0, 0)
    forget_compiled()
    assert callable(get())
    assert counter.since() == (0, 1)
    (record,) = counter.files(".json")
    labels = json.loads(record.read_text())["labels"]
    assert (labels["module"], labels["arch"]) == (KERNEL_MODULE, ARCH)
    assert labels["nvidia-cutlass-dsl"]


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def _garbage_with_a_matching_record(path: Path) -> None:
    path.write_bytes(b"not a library")
    record = path.with_suffix(".json")
    entry = json.loads(record.read_text())
    record.write_text(json.dumps({**entry, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}))


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes()[:1000]),
        _flip,
        lambda path: path.unlink(),
        lambda path: path.with_suffix(".json").write_text("{"),
        lambda path: path.with_suffix(".json").unlink(),
        _garbage_with_a_matching_record,
    ],
    ids=["truncated", "flipped byte", "missing object", "corrupt record", "missing record", "does not load"],
)
def test_a_damaged_entry_is_compiled_anew_and_then_serves(counter: Counter, damage: Callable[[Path], Any]) -> None:
    get()
    damage(counter.files(".so")[0])
    forget_compiled()
    counter.since()
    assert callable(get())
    assert counter.since() == (1, 0)
    forget_compiled()
    get()
    assert counter.since() == (0, 1)


def test_an_unwritable_folder_costs_one_warning_and_no_function(
    counter: Counter, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    with override(cache_dir=str(tmp_path / "file" / "cache")), caplog.at_level(logging.WARNING, "cudnn_fe"):
        for _ in range(2):
            assert callable(get())
            forget_compiled()
    assert counter.since() == (2, 0)
    assert ["are not kept" in record.getMessage() for record in caplog.records] == [True]


def test_a_disabled_cache_neither_reads_nor_writes(counter: Counter) -> None:
    get()
    before = counter.files("")
    with override(disable_cache=True):
        forget_compiled()
        get()
    assert counter.since() == (2, 0)
    assert counter.files("") == before


def test_without_a_linker_the_object_is_kept_and_loaded_by_the_compiler(
    counter: Counter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda tool: None)
    get()
    assert [len(counter.files(suffix)) for suffix in (".o", ".so")] == [1, 0]
    forget_compiled()
    assert callable(get())
    assert counter.since() == (1, 1)


def test_a_linker_that_fails_leaves_the_object(counter: Counter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda tool: "false")
    get()
    assert [len(counter.files(suffix)) for suffix in (".o", ".so")] == [1, 0]


def test_threads_that_ask_at_once_share_one_compilation(counter: Counter) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: get(), range(8)))
    assert counter.since() == (1, 0)
    assert all(function is found[0] for function in found)


def test_threads_with_different_kernels_get_their_own(counter: Counter) -> None:
    specs = [ToySpec(kind, alignment) for kind in ("float16", "float32") for alignment in (4, 16)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda spec: compiled(KERNEL_MODULE, spec, ARCH), specs))
    assert counter.since() == (4, 0)
    assert len({id(function) for function in found}) == 4


def test_processes_share_one_compilation_and_a_warm_one_does_not_import_the_compiler(counter: Counter) -> None:
    environment = {"CUDNN_FRONTEND_COMPILED_CACHE": str(counter.folder), "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-c", IN_A_PROCESS]
    started = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    counts = sorted(tuple(map(int, process.communicate(timeout=300)[0].split())) for process in started)
    assert [count[:2] for count in counts] == [(0, 1), (1, 0)]
    warm = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout.split()
    assert warm == ["0", "1", "0"]


def test_the_key_names_everything_that_code_depends_on(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {cache_key(KERNEL_MODULE, SPEC, ARCH)}
    assert {cache_key(KERNEL_MODULE, ToySpec("float32"), ARCH)} == keys
    keys.add(cache_key(KERNEL_MODULE, ToySpec("float16"), ARCH))
    keys.add(cache_key(KERNEL_MODULE, ToySpec("float32", 4), ARCH))
    keys.add(cache_key(KERNEL_MODULE, SPEC, "sm_100a"))
    keys.add(cache_key("cudnn_fe_testkit.toy", SPEC, ARCH))
    monkeypatch.setattr(module, "toolchain_versions", lambda: (("nvidia-cutlass-dsl", "99"),))
    keys.add(cache_key(KERNEL_MODULE, SPEC, ARCH))
    monkeypatch.setattr(module, "_source_digest", lambda name: "other sources")
    keys.add(cache_key(KERNEL_MODULE, SPEC, ARCH))
    assert len(keys) == 7


def test_the_digest_covers_what_the_kernel_imports_and_nothing_else() -> None:
    names = {path.name for path in module._sources("cudnn_fe.gemm.matmul.sm90")}
    assert {"sm90.py", "gemm_sm90.py", "mainloop_sm90.py", "tma.py", "gemm_spec.py", "dtypes.py"} <= names
    assert not {"torch.py", "jax.py", "portable.py", "reference.py", "swiglu.py"} & names


def test_a_changed_source_changes_the_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    kernel = tmp_path / "digested_kernel.py"
    kernel.write_text("from cudnn_fe.core import (\n    dtypes,\n)\n")
    assert {path.name for path in module._sources("digested_kernel")} >= {"digested_kernel.py", "dtypes.py"}
    before = module._source_digest("digested_kernel")
    module._source_digest.cache_clear()
    kernel.write_text(kernel.read_text() + "# changed\n")
    assert module._source_digest("digested_kernel") != before


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a", "sm_120a"])
def test_compile_now_serves_each_architecture_without_a_gpu(arch: str) -> None:
    before = compile_counts.compiled
    assert callable(compile_now(KERNEL_MODULE, SPEC, arch))
    assert compile_counts.compiled == before + 1
