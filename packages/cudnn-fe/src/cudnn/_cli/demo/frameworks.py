"""Finding the framework and the device, and making the two models on it."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cudnn._cli.demo.config import DemoConfig
from cudnn._cli.demo.trainer import Trainer
from cudnn._cli.demo.weights import Weights
from cudnn_fe.core.errors import DeviceError, MissingPackageError, OptionError

__all__ = ["Device", "find_device", "trainers"]

FRAMEWORKS = ("torch", "jax")


@dataclass(frozen=True, slots=True)
class Device:
    """Where the demo runs.

    Attributes:
        framework: ``"torch"`` or ``"jax"``.
        kind: ``"cpu"`` or ``"cuda"``.
        description: For people: the GPU's name, or CPU.
    """

    framework: str
    kind: str
    description: str


def find_device(framework: str, wanted: str) -> Device:
    """Import the framework and pick its device.

    Args:
        framework: ``"torch"`` or ``"jax"``.
        wanted: ``"auto"``, ``"cpu"`` or ``"cuda"``.

    Raises:
        OptionError: Unknown framework or device.
        MissingPackageError: The framework is not installed.
        DeviceError: A GPU is asked for and the framework sees none.
    """
    if framework not in FRAMEWORKS:
        raise OptionError("--framework", got=repr(framework), wanted=" or ".join(FRAMEWORKS), remedy="choose one")
    if wanted not in ("auto", "cpu", "cuda"):
        raise OptionError("--device", got=repr(wanted), wanted="auto, cpu or cuda", remedy="choose one")
    if importlib.util.find_spec(framework) is None:
        raise MissingPackageError(
            f"--framework {framework}",
            got=f"no {framework}",
            wanted=framework,
            remedy=f'pip install "cudnn-fe[{framework}]"',
        )
    device = _torch_device(wanted) if framework == "torch" else _jax_device(wanted)
    if wanted == "cuda" and device.kind != "cuda":
        raise DeviceError("--device", got="cuda", wanted=f"a GPU that {framework} sees", remedy="use --device cpu")
    return device


def _torch_device(wanted: str) -> Device:
    import torch

    if wanted != "cpu" and torch.cuda.is_available():
        return Device("torch", "cuda", torch.cuda.get_device_name())
    return Device("torch", "cpu", "CPU")


def _jax_device(wanted: str) -> Device:
    import jax

    if wanted == "cpu":
        settings: Any = jax.config
        settings.update("jax_platforms", "cpu")
    device = jax.devices()[0]
    if device.platform == "gpu":
        return Device("jax", "cuda", device.device_kind)
    return Device("jax", "cpu", "CPU")


def trainers(device: Device, config: DemoConfig, initial: Weights[NDArray[np.float32]]) -> tuple[Trainer, Trainer]:
    """The model through the op and the same model in plain framework ops, both starting from ``initial``."""
    if device.framework == "torch":
        import torch

        from cudnn._cli.demo import torch_model

        if device.kind == "cpu":
            # Matrices this small gain nothing from threads, and lose tenfold where the cores have other work.
            torch.set_num_threads(1)
        return (
            torch_model.TorchTrainer(config, initial, device.kind, through_op=True),
            torch_model.TorchTrainer(config, initial, device.kind, through_op=False),
        )
    from cudnn._cli.demo import jax_model

    return (
        jax_model.JaxTrainer(config, initial, through_op=True),
        jax_model.JaxTrainer(config, initial, through_op=False),
    )
