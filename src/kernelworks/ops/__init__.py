"""The kernel map: families, each a folder of rooms, one op one room."""

from kernelworks.ops.activation.gelu import gelu
from kernelworks.ops.activation.silu_mul import silu_mul
from kernelworks.ops.attention.attention import attention
from kernelworks.ops.linear.linear import linear
from kernelworks.ops.norm.layer_norm import layer_norm
from kernelworks.ops.norm.rms_norm import rms_norm
from kernelworks.ops.reduction.softmax import softmax

__all__ = ["attention", "gelu", "layer_norm", "linear", "rms_norm", "silu_mul", "softmax"]
