"""log_softmax on the GPU: the functions that ``tile/lines.py`` puts into its kernels."""

import triton
import triton.language as tl

from kernelworks.tile.exp import exp
from kernelworks.tile.lines import Lines


@triton.jit
def _log_sum(total):
    return tl.log(total)


@triton.jit
def _value(d, log_sum):
    return d - log_sum


@triton.jit
def _term(g, y):
    return g


@triton.jit
def _gradient(g, y, total):
    return g - exp(y) * total


_LINES = Lines(
    __file__, {"OF_EXP": False, "OF": _log_sum, "VALUE": _value}, {"TERM": _term, "GRADIENT": _gradient}
)  # fmt: skip
forward, backward, prepare_forward = _LINES.forward, _LINES.backward, _LINES.prepare_forward
