"""Models that exist: swap kernelworks' ops in and out, and check what that did to the answers."""

from kernelworks.models.swap import Left, Replaced, Swap, swap
from kernelworks.models.validate import Greedy, Training, Validation, validate

__all__ = ["Greedy", "Left", "Replaced", "Swap", "Training", "Validation", "swap", "validate"]
