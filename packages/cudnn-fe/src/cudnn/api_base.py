"""`TupleDict`, and `TensorDesc` under its name in cudnn-frontend 1.32."""

from cudnn_fe.core.tensor import TensorSpec as TensorDesc
from cudnn_fe.core.tuple_dict import TupleDict

__all__ = ["TensorDesc", "TupleDict"]
