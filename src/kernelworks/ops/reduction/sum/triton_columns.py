"""sum down columns on the GPU, a thread a column, in float64 (``tile/reduction_stages/column_stage.py``)."""

import triton.language as tl

from kernelworks.build.triton import configs, kernel
from kernelworks.tile.reduction_stages.column_stage import column_function
from kernelworks.tile.reduction_stages.line_launches import LineStage


@kernel
def _term(operand, found, n, number):
    return tl.cast(operand[0], tl.float64)


@kernel
def _finish(s, found, n, number):
    return tl.cast(s, tl.float64)


forward = column_function(configs(__file__), LineStage(_term, "sum", _finish), 0.0)
