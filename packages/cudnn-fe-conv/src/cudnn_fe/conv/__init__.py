"""Causal depthwise 1-D convolution for torch, JAX and NumPy: whole sequences and decoding steps."""

from cudnn_fe.conv._version import __version__
from cudnn_fe.conv.causal_conv1d import causal_conv1d, causal_conv1d_backward
from cudnn_fe.conv.causal_conv1d_update import causal_conv1d_update

__all__ = ["__version__", "causal_conv1d", "causal_conv1d_backward", "causal_conv1d_update"]
