"""``@triton.autotune`` where there is no GPU to time a configuration on."""

from __future__ import annotations

from typing import Any

import torch
from triton.runtime.autotuner import Autotuner

__all__ = ["configured_by_inputs"]


def _run(self: Any, *given: Any, **named: Any) -> Any:
    """Stands for a launch: its configuration follows from the inputs' sizes, so that a call that is repeated is the
    same one, and the cases of an exercise come to several configurations."""
    sizes = sum(value.numel() for value in given if isinstance(value, torch.Tensor))
    config = self.configs[sizes % len(self.configs)]
    return self.fn.run(*given, **named, **config.all_kwargs())


def configured_by_inputs() -> None:
    """From now on autotuned kernels of this process run without being timed."""
    Autotuner.run = _run
