"""`cudnn.gemm.cutedsl.discrete_grouped` under its other name in cudnn-frontend 1.32."""

from cudnn.gemm.cutedsl.discrete_grouped import *  # noqa: F403
from cudnn.gemm.cutedsl.discrete_grouped import __all__ as __all__
