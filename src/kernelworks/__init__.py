"""kernelworks: what every kernel of a PyTorch program waits on, and kernels proved right on this machine to swap in.

Importing this package probes no device, reads no environment variable and patches nothing.
"""

from kernelworks.bench import bench
from kernelworks.diagnose import diagnose
from kernelworks.explanation import explain
from kernelworks.machine import Machine, machine
from kernelworks.models import Swap, swap
from kernelworks.ops import (
    adamw_,
    attention,
    cross_entropy,
    embedding,
    gelu,
    layer_norm,
    linear,
    linear_cross_entropy,
    rms_norm,
    rope,
    silu_mul,
    softmax,
)  # fmt: skip
from kernelworks.prove import prove

__version__ = "0.1.0"

# The verbs have the names of their folders. The folders are imported above, so from here on the package's attribute is
# the function; `from kernelworks.bench import ...` reaches the folder as ever.
__all__ = [
    "Machine", "Swap", "__version__", "adamw_", "attention", "bench", "cross_entropy", "diagnose", "embedding",
    "explain", "gelu", "layer_norm", "linear", "linear_cross_entropy", "machine", "prove", "rms_norm", "rope",
    "silu_mul", "softmax", "swap",
]  # fmt: skip
