"""causal_conv1d_update on the GPU: causal_conv1d's kernel, then one that moves the state on."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernelworks.build.triton import Kernel
from kernelworks.ops.convolution.causal_conv1d import triton as chunk_kernels
from kernelworks.ops.convolution.causal_conv1d_update.contract import in_chunk

CHANNELS = 64  # of a program


@triton.jit
def _shift(
    state, x, D, L, S, state_b, state_d, state_s, x_b, x_d, x_l, CHANNELS: tl.constexpr, STATES: tl.constexpr
):  # fmt: skip
    b = tl.program_id(1).to(tl.int64)
    d = tl.program_id(0).to(tl.int64) * CHANNELS + tl.arange(0, CHANNELS)[:, None]
    j = tl.arange(0, STATES)[None, :]
    line, from_x = state + b * state_b + d * state_d, x + b * x_b + d * x_d
    there = (d < D) & (j < S)
    old = tl.load(line + (j + L) * state_s, mask=there & (j + L < S), other=0.0)
    new = tl.load(from_x + (j + L - S) * x_l, mask=there & (j + L >= S), other=0.0)
    tl.debug_barrier()  # all of the line is read before any of it is written
    tl.store(line + j * state_s, tl.where(j + L < S, old, new), mask=there)


SHIFT = Kernel(_shift)


def forward(
    x: Tensor, conv_state: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None, out: Any = None
) -> Tensor:  # fmt: skip
    output: Tensor = torch.empty_like(x) if out is None else out
    chunk, states = in_chunk(x, conv_state, weight)
    to = output if output.dim() == 3 else output.unsqueeze(-1)
    chunk_kernels.forward(chunk, weight, bias, states, activation, False, out=to)
    B, D, S = conv_state.shape
    if B and S:
        SHIFT.at(CHANNELS=CHANNELS, STATES=triton.next_power_of_2(S), num_warps=4)(
            (-(-D // CHANNELS), B, 1), conv_state, chunk, D, chunk.shape[2], S, *conv_state.stride(), *chunk.stride()
        )
    return output
