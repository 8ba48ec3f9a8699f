"""Detects NVIDIA's own wheel, which installs a package of the same import name over this one."""

from __future__ import annotations

import os
import warnings

__all__ = ["VendorWheelWarning", "vendor_wheel", "warn_if_vendor_is_here"]

_DISTRIBUTION = "nvidia_cudnn_frontend-"


class VendorWheelWarning(UserWarning):
    """NVIDIA's wheel and cudnn-fe are installed into one environment."""


def vendor_wheel(package_file: str) -> str | None:
    """Name and version of the vendor's wheel beside the package of ``package_file``, from one folder listing."""
    site = os.path.dirname(os.path.dirname(os.path.abspath(package_file)))
    try:
        entries = os.listdir(site)
    except OSError:
        return None
    return next((e.removesuffix(".dist-info") for e in entries if e.lower().startswith(_DISTRIBUTION)), None)


def warn_if_vendor_is_here(package_file: str) -> None:
    """Warn that two wheels own the import name ``cudnn``."""
    found = vendor_wheel(package_file)
    if found:
        warnings.warn(
            f"{found} is installed beside cudnn-fe, and both own the import name `cudnn`: files of one overwrite the "
            "other's. Uninstall one (pip uninstall nvidia-cudnn-frontend, then reinstall cudnn-fe), or use "
            "`import cudnn_fe.gemm`, which works beside it.",
            VendorWheelWarning,
            stacklevel=3,
        )
