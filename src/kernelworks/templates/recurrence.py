"""What recurrences along a sequence share: how far a right kernel's state may be off, derived once.

A state ``S`` [.., K, V] runs over a sequence; each step ``S_t = A_t S_{t-1} + k_t u_t^T`` forgets (``A_t``) and writes
(``u_t``). A kernel may step one by one, or take up to ``CHUNK`` steps at once, from the state at their first: then what
a step reads is a sum of what the steps before it wrote. Both round what they add up, and both hold a state whose error
runs over the sequence as the state itself does:

    e_t = |A_t| e_{t-1} + l_t

for each column of the state, |A_t| the spectral norm, and l_t what the step itself rounds. What is added up is at most
``m``, the sum of the norms of what was written since the last multiple of ``CHUNK``, and the state there.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernelworks.contract import UNIT_ROUNDOFF

__all__ = ["CHUNK", "U32", "added_up", "backward_sizes", "state_error"]

U32 = UNIT_ROUNDOFF[torch.float32]
CHUNK = 64  # steps that a kernel takes at once, at most, from a multiple of it on


def added_up(decay: Tensor, written: Tensor, states: Tensor) -> Tensor:
    """``m`` [.., T, V] before each step: of norms of states at the start of a step [.., T, V], decays [.., T, 1], and
    norms of what each step writes [.., T, V]."""
    found = []
    m = torch.zeros_like(written[..., :1, :]).squeeze(-2)
    for t in range(written.shape[-2]):
        if t % CHUNK == 0:
            m = states[..., t, :]
        found.append(m)
        m = decay[..., t, :] * m + written[..., t, :]
    return torch.stack(found, -2) if found else written


def state_error(norms: Tensor, local: Tensor, first: Tensor) -> Tensor:
    """``e`` [.., T + 1, V], before the first step and after each: of spectral norms [.., T, 1], what each step rounds
    [.., T, V], and how far the first state is off [.., V]."""
    found = [first]
    for t in range(local.shape[-2]):
        found.append(norms[..., t, :] * found[-1] + local[..., t, :])
    return torch.stack(found, -2)


def backward_sizes(decay: Tensor, reads: Tensor, writes: Tensor, arriving: Tensor) -> Tensor:
    """What is added up of the gradient of the state behind each step [.., T, V], with what its own step reads: of
    decays [.., T, 1], norms of what each step's output and its update send back [.., T, V], and norms of what arrives
    from the step after it [.., T, V]. As ``added_up``, from the other end: a chunk begins with what arrives at its end.
    """
    count = reads.shape[-2]
    found: list[Tensor] = []
    m = torch.zeros_like(reads[..., :1, :]).squeeze(-2)
    for t in reversed(range(count)):
        if t == count - 1 or (t + 1) % CHUNK == 0:
            m = arriving[..., t, :]
        found.append(m + reads[..., t, :])
        m = decay[..., t, :] * (found[-1] + writes[..., t, :])
    return torch.stack(found[::-1], -2) if found else reads
