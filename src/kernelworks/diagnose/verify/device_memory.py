"""What memory a verification may take, for what it computes in float64 and for copies of a program's state."""

from __future__ import annotations

import torch

from kernelworks.machine import memory

__all__ = ["SHARE_OF_MEMORY", "available_bytes"]

SHARE_OF_MEMORY = 0.6  # of what is free


def available_bytes(device: torch.device) -> int:
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else memory.available_bytes()
