"""Linear attention by its module path in cudnn-frontend 1.32: the names of `cudnn.linear_attention.ops`."""

from cudnn.linear_attention.ops import *  # noqa: F403
from cudnn.linear_attention.ops import __all__ as __all__
