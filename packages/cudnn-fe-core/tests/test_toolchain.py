"""What is said of the kernel compiler's packages without importing them."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from importlib import metadata

import pytest

from cudnn_fe.core.toolchain import missing_toolchain, toolchain_versions


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    toolchain_versions.cache_clear()
    missing_toolchain.cache_clear()
    yield
    toolchain_versions.cache_clear()
    missing_toolchain.cache_clear()


def _installed(monkeypatch: pytest.MonkeyPatch, versions: dict[str, str]) -> None:
    def version(package: str) -> str:
        if package not in versions:
            raise metadata.PackageNotFoundError(package)
        return versions[package]

    monkeypatch.setattr(metadata, "version", version)


def test_here_it_is_complete() -> None:
    assert missing_toolchain() is None
    assert [name for name, _ in toolchain_versions()] == ["nvidia-cutlass-dsl", "apache-tvm-ffi"]


def test_an_absent_package_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    _installed(monkeypatch, {"nvidia-cutlass-dsl": "4.8.1"})
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert missing_toolchain() == "apache-tvm-ffi is not installed (pip install apache-tvm-ffi)"


@pytest.mark.parametrize(("version", "fits"), [("4.7.9", False), ("4.8.0", True), ("4.8.0rc1", True), ("5.0", True)])
def test_the_oldest_version_that_serves(monkeypatch: pytest.MonkeyPatch, version: str, fits: bool) -> None:
    _installed(monkeypatch, {"nvidia-cutlass-dsl": version, "apache-tvm-ffi": "0.1.11"})
    reason = missing_toolchain()
    assert (reason is None) is fits
    assert fits or reason == f"nvidia-cutlass-dsl {version} is older than 4.8 (pip install -U nvidia-cutlass-dsl)"


def test_packages_without_metadata_serve_as_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    _installed(monkeypatch, {})
    assert dict(toolchain_versions()) == {"nvidia-cutlass-dsl": "unknown", "apache-tvm-ffi": "unknown"}
    assert missing_toolchain() is None
