"""linear_attention on the GPU, by chunks of steps."""

from typing import Any

import torch
from torch import Tensor

from kernelworks.build.triton import configs
from kernelworks.ops.scan.linear_attention.contract import scale_of, state_shape
from kernelworks.templates.linear_state.sequence import new_gradients
from kernelworks.tile.linear_state.linear_state import LinearLaunch

LAUNCH = LinearLaunch(configs(__file__))


def _given(q: Tensor, scale: float | None, initial_state: Tensor | None) -> tuple[Any, ...]:
    first = None if initial_state is None else initial_state.contiguous()
    return None, None, None, None, first, scale_of(scale, q.shape[3]), False


def forward(
    q: Tensor, k: Tensor, v: Tensor, scale: float | None, initial_state: Tensor | None, output_final_state: bool,
    out: Any = None,
) -> Any:  # fmt: skip
    output, last = out if output_final_state and out is not None else (out, None)
    if output is None:
        output = torch.empty(v.shape, dtype=v.dtype, device=v.device)
        shape = state_shape(q, v)
        last = torch.empty(shape, dtype=torch.float32, device=v.device) if output_final_state else None
    LAUNCH.forward(output, last, q, k, v, *_given(q, scale, initial_state))
    return (output, last) if output_final_state else output


def backward(
    grad: Tensor, grad_state: Tensor | None, q: Tensor, k: Tensor, v: Tensor, scale: float | None,
    initial_state: Tensor | None, output_final_state: bool, needs: list[bool], out: Any = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    given = (q, k, v, initial_state)
    made = tuple(out) if out is not None else new_gradients(given, needs)
    wanted = tuple(to if need and t is not None else None for to, need, t in zip(made, needs, given, strict=True))
    LAUNCH.backward(wanted, (False, False), grad, grad_state, q, k, v, *_given(q, scale, initial_state))
    return made
