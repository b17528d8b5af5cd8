"""How the GPU kernels of gated_delta_rule are launched: a program holds some columns of a head's state."""

from typing import Any

import torch
import triton
from torch import Tensor

from kernelworks.build.triton import Kernel, configs
from kernelworks.ops.scan.gated_delta_rule.contract import EPS, scale_of, state_shape

LOWEST = -1e4  # of a gate: its exponential is 0


class ColumnLaunch:
    """A kernel in the configurations of its op kernel; ``least``: of keys and columns that its products take."""

    def __init__(self, kernel: Kernel, name: str, op_kernel: str, least: int = 1) -> None:
        self.configs = configs(__file__)
        self.kernel, self.name, self.op_kernel, self.least = kernel, name, op_kernel, least

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, scale: float | None,
        initial_state: Tensor | None, output_final_state: bool, use_qk_l2norm_in_kernel: bool, out: Any = None,
    ) -> Any:  # fmt: skip
        output, last = out if output_final_state and out is not None else (out, None)
        if output is None:
            output = torch.empty(v.shape, dtype=v.dtype, device=v.device)
            shape = state_shape(q, v)
            last = torch.empty(shape, dtype=torch.float32, device=v.device) if output_final_state else None
        first = None if initial_state is None else initial_state.contiguous()
        q, k, v = (t if t.stride(-1) == 1 else t.contiguous() for t in (q, k, v))
        batch, steps, heads, dim = q.shape
        value_heads, value_dim = v.shape[2:]
        settings = self.configs.pick(self.name, op_kernel=self.op_kernel, K=dim, V=value_dim, dtype=q.dtype)
        keys = max(self.least, triton.next_power_of_2(dim))
        columns = min(settings.pop("COLUMNS"), max(self.least, triton.next_power_of_2(value_dim)))
        if batch * value_heads:
            strides = (s for t in (q, k, v, g, beta) for s in t.stride()[:3])
            launch = self.kernel.at(
                NORMAL=use_qk_l2norm_in_kernel, EPS=EPS, LOWEST=LOWEST, KEYS=keys, COLUMNS=columns, **settings
            )
            launch(
                (batch * value_heads * triton.cdiv(value_dim, columns), 1, 1), q, k, v, g, beta, first, last, output,
                steps, heads, value_heads, dim, value_dim, scale_of(scale, dim), *strides,
            )  # fmt: skip
        return (output, last) if output_final_state else output
