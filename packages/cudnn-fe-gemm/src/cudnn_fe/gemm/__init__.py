"""Fused dense GEMMs."""

from cudnn_fe.gemm._version import __version__ as __version__
