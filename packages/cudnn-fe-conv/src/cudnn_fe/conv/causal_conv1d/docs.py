"""What the documentation says of the causal convolution: operands, a worked layer, deviations."""

from __future__ import annotations

from cudnn_fe.conv.operands import ANY_LAYOUT, FLOATS
from cudnn_fe.core.op import TensorRule

__all__ = ["EXAMPLE", "NOTES", "TENSORS"]

_PARAMETER = "x's dtype, or float32 beside a half-precision x"

TENSORS = (
    TensorRule("x", '(B, D, T); (B, T, D) with layout="BTD"', ANY_LAYOUT, FLOATS, "samples of D channels"),
    TensorRule("weight", "(D, W), W in 1..256", ANY_LAYOUT, FLOATS, f"taps, the newest sample's last; {_PARAMETER}"),
    TensorRule("bias", "(D,)", ANY_LAYOUT, FLOATS, f"added before the activation; {_PARAMETER}"),
    TensorRule("cu_seqlens", "(N + 1,)", "contiguous", ("int32",), "offsets of packed sequences, empty ones allowed"),
    TensorRule("initial_states", "(S, D, W - 1)", ANY_LAYOUT, FLOATS, "samples before each sequence; x's dtype"),
    TensorRule("final_states_out", "(S, D, W - 1)", ANY_LAYOUT, FLOATS, "the caller's buffer for final_states"),
    TensorRule("output", "as x", "as x, made compact", FLOATS, "x's dtype"),
    TensorRule("final_states", "(S, D, W - 1)", "contiguous along D", FLOATS, "last samples of each sequence, copied"),
)

EXAMPLE = """\
# The convolution of a Mamba-style layer: project, filter each channel over time, gate, project back. Training sees
# whole sequences; decoding continues from the states that a prompt leaves.
import torch
from cudnn_fe.conv import causal_conv1d, causal_conv1d_update


class GatedConvolution(torch.nn.Module):
    def __init__(self, model: int, inner: int, width: int = 4) -> None:
        super().__init__()
        self.enter = torch.nn.Linear(model, 2 * inner)
        self.taps = torch.nn.Parameter(torch.randn(inner, width) / width**0.5)
        self.bias = torch.nn.Parameter(torch.zeros(inner))
        self.leave = torch.nn.Linear(inner, model)

    def forward(self, tokens, states=None):  # (B, T, model), and (B, inner, width - 1) of what came before
        samples, gate = self.enter(tokens).chunk(2, dim=-1)
        # (B, T, inner) seen as (B, inner, T): channels-last memory is read as it lies.
        mixed, states = causal_conv1d(
            samples.transpose(1, 2), self.taps, self.bias, "silu", initial_states=states, return_final_states=True
        )
        return self.leave(mixed.transpose(1, 2) * torch.nn.functional.silu(gate)), states

    @torch.no_grad()
    def step(self, token, states):  # (B, model); states change in place
        samples, gate = self.enter(token).chunk(2, dim=-1)
        mixed = causal_conv1d_update(samples, states, self.taps, self.bias, "silu")
        return self.leave(mixed * torch.nn.functional.silu(gate))


torch.manual_seed(0)
layer = GatedConvolution(model=16, inner=32)
tokens = torch.randn(2, 12, 16)
whole, _ = layer(tokens)
whole.square().mean().backward()
assert layer.taps.grad.abs().sum() > 0

with torch.no_grad():
    prompt, states = layer(tokens[:, :7])  # prefill, then one token at a time
    steps = [layer.step(tokens[:, t], states) for t in range(7, 12)]
torch.testing.assert_close(torch.cat([prompt, torch.stack(steps, dim=1)], dim=1), whole)
"""

NOTES = (
    "Sums are float32 (float64 for float64), the oldest tap first; the definition adds the bias last, the kernels "
    "begin with it; one rounding at the end. Final states are copies, bit for bit. SiLU is `z * sigmoid(z)`; minus "
    "infinity gives NaN.",
    "Gradients, those of weight and bias included, are bit-equal from run to run: fixed-order sums, no atomics. The "
    "gradient of a final state is added to dx before its one rounding.",
    "Accepted beyond the vendor: states and packed sequences with any activation, width and dtype, and under "
    "torch.compile; empty sequences; float32 taps beside any half-precision x; empty B and T; "
    'JAX and NumPy arrays; `layout="BTD"`.',
    "Offsets that do not run from 0 to T without decreasing raise on the CPU; on a GPU they trap, which ends the "
    "process's use of the device, and no memory outside the operands is touched. JAX reads no values: on a CPU such "
    "offsets give results without meaning there.",
    'Under JAX, arrays are row-major: give channels-last samples as (B, T, D) with `layout="BTD"`, and they are read '
    "without a transposed copy.",
)
