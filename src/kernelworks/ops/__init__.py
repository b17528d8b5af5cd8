"""The kernel map: families, each a folder of rooms, one op one room."""

from kernelworks.op import OPS
from kernelworks.ops.activation.gelu import gelu
from kernelworks.ops.activation.silu_mul import silu_mul
from kernelworks.ops.attention.attention import attention
from kernelworks.ops.linear.linear import linear
from kernelworks.ops.lookup.embedding import embedding
from kernelworks.ops.norm.layer_norm import layer_norm
from kernelworks.ops.norm.rms_norm import rms_norm
from kernelworks.ops.optimizer.adamw import adamw_
from kernelworks.ops.position.rope import rope
from kernelworks.ops.reduction.cross_entropy import cross_entropy
from kernelworks.ops.reduction.linear_cross_entropy import linear_cross_entropy
from kernelworks.ops.reduction.softmax import softmax
from kernelworks.spelling import ABSENT, SPELLINGS, shown

__all__ = [
    "adamw_", "attention", "cross_entropy", "embedding", "gelu", "layer_norm", "linear", "linear_cross_entropy",
    "rms_norm", "rope", "silu_mul", "softmax",
]  # fmt: skip

for _name in SPELLINGS:
    shown(globals()[_name])

for _function in (
    attention, cross_entropy, embedding, gelu, layer_norm, linear, linear_cross_entropy, rms_norm, rope, silu_mul,
    softmax,
):  # fmt: skip
    OPS[_function.__name__].entry.face(_function, ABSENT)
