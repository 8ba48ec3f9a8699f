"""What this family announces to ``cudnn``: its ops and public names; a dot puts a name into a submodule."""

from __future__ import annotations

from cudnn_fe.core.registry import Family

__all__ = ["FAMILY"]

FAMILY = Family(
    name="conv",
    package="cudnn-fe-conv",
    op_targets=(
        "cudnn_fe.conv.causal_conv1d.op:FORWARD",
        "cudnn_fe.conv.causal_conv1d.op:BACKWARD",
        "cudnn_fe.conv.causal_conv1d_update.op:UPDATE",
    ),
    exports={
        "ops.causal_conv1d": "cudnn_fe.conv.causal_conv1d:causal_conv1d",
        "ops.causal_conv1d_update": "cudnn_fe.conv.causal_conv1d_update:causal_conv1d_update",
    },
)
