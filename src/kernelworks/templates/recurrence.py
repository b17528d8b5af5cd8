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

__all__ = ["CHUNK", "U32", "added_up", "state_error"]

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
