"""ssd on the GPU, by chunks of steps."""

from typing import Any

import torch
from torch import Tensor

from kernelworks.build.triton import configs
from kernelworks.ops.scan.ssd.contract import state_shape
from kernelworks.ops.scan.ssd.numbers import NumberGradients
from kernelworks.templates.linear_state.sequence import new_gradients
from kernelworks.tile.linear_state.linear_state import LinearLaunch

LAUNCH = LinearLaunch(configs(__file__))


def forward(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, initial_states: Tensor | None,
    seq_idx: Tensor | None, return_final_states: bool, out: Any = None,
) -> Any:  # fmt: skip
    output, last = out if return_final_states and out is not None else (out, None)
    if output is None:
        output = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        shape = state_shape(x, B)
        last = torch.empty(shape, dtype=torch.float32, device=x.device) if return_final_states else None
    first = None if initial_states is None else initial_states.contiguous()
    LAUNCH.forward(output, last, C, B, x, dt, A, D, seq_idx, first, 1.0, True)
    return (output, last) if return_final_states else output


def backward(
    grad: Tensor, grad_states: Tensor | None, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None,
    initial_states: Tensor | None, seq_idx: Tensor | None, return_final_states: bool, needs: list[bool],
    out: Any = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    given = (x, dt, A, B, C, D, initial_states)
    made = tuple(out) if out is not None else new_gradients(given, needs)
    numbers = NumberGradients(made, needs, given)
    first = None if initial_states is None else initial_states.contiguous()
    gate, factor = LAUNCH.backward(
        numbers.tensors, numbers.wanted_numbers, grad, grad_states, C, B, x, dt, A, D, seq_idx, first, 1.0, True
    )  # fmt: skip
    numbers.write(grad, gate, factor)
    return made
