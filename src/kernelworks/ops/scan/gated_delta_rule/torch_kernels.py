"""gated_delta_rule in torch's own functions: by chunks, as its users write it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kernelworks.ops.scan.gated_delta_rule.contract import normalised_vectors, scale_of, state_shape
from kernelworks.templates.recurrence import CHUNK

__all__ = ["composite"]


def composite(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, scale: float | None = None,
    initial_state: Tensor | None = None, output_final_state: bool = False, use_qk_l2norm_in_kernel: bool = False,
) -> Any:  # fmt: skip
    """By chunks of up to 64 steps, in float32; differentiable, twice too. Within a chunk what each step writes solves a
    triangular system, whose right sides are the values and what the state at the chunk's start knows of the keys."""
    dtype, heads, count = q.dtype, v.shape[2], q.shape[1]
    wide = torch.promote_types(dtype, torch.float32)
    state = v.new_zeros(state_shape(q, v), dtype=wide) if initial_state is None else initial_state
    if not count or not v.numel():
        output = torch.zeros_like(v, memory_format=torch.contiguous_format) * v
        return (output, (state * 1).contiguous()) if output_final_state else output
    repeat = heads // q.shape[2]
    q, k, v, g, beta = (t.to(wide).transpose(1, 2) for t in (q, k, v, g, beta))
    if use_qk_l2norm_in_kernel:
        q, k = normalised_vectors(q), normalised_vectors(k)
    q, k = (t.repeat_interleave(repeat, 1) for t in (q * scale_of(scale, q.shape[3]), k))
    outputs = []
    for begin in range(0, count, CHUNK):
        qc, kc, vc, gc, bc = (t[:, :, begin : begin + CHUNK] for t in (q, k, v, g, beta))
        n = qc.shape[2]
        until = gc.double().clamp_min(-1e4).cumsum(-1)  # so that differences of long gates are exact
        between = (until.unsqueeze(-1) - until.unsqueeze(-2)).to(wide)
        later = torch.ones(n, n, dtype=torch.bool, device=q.device).triu(1)
        decay = between.masked_fill(later, -torch.inf).exp()
        rate, since = bc.unsqueeze(-1), until.to(wide).exp().unsqueeze(-1)
        system = rate * (kc @ kc.mT) * decay
        right = rate * (vc - since * (kc @ state))
        written = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
        outputs.append(since * (qc @ state) + ((qc @ kc.mT) * decay) @ written)
        rest = (until[..., -1:] - until).to(wide).exp().unsqueeze(-1)
        state = since[:, :, -1:] * state + (rest * kc).mT @ written
    made = torch.cat(outputs, 2).transpose(1, 2)
    output = made.to(dtype, copy=True, memory_format=torch.contiguous_format)  # of one step, too
    return (output, state.contiguous()) if output_final_state else output
