"""kernelworks: what every kernel of a PyTorch program waits on, and kernels proved right on this machine to swap in.

Importing this package probes no device, reads no environment variable and patches nothing.
"""

from kernelworks.machine import Machine, machine
from kernelworks.ops import (
    attention,
    gelu,
    layer_norm,
    linear,
    rms_norm,
    silu_mul,
    softmax,
)

__version__ = "0.1.0"

__all__ = [
    "Machine",
    "__version__",
    "attention",
    "gelu",
    "layer_norm",
    "linear",
    "machine",
    "rms_norm",
    "silu_mul",
    "softmax",
]
