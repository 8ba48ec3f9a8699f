"""What every family shares: conventions, adapters, caches, and building blocks for kernels."""

from cudnn_fe.core._version import __version__ as __version__
