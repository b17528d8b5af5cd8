"""Reductions of the table down columns on the GPU, a thread a column (``tile/reduction_stages/column_stage.py``)."""

import math

from kernelworks.build.triton import configs
from kernelworks.ops.reduction.reduction_table import triton as written
from kernelworks.tile.reduction_stages.column_stage import column_function
from kernelworks.tile.reduction_stages.line_launches import LineStage

CONFIGS = configs(__file__)
amax_forward = column_function(CONFIGS, LineStage(written._amax_term_0, "max", written._amax_finish_0, True), 0.0)
amin_forward = column_function(CONFIGS, LineStage(written._amin_term_0, "min", written._amin_finish_0, True), 0.0)
mean_forward = column_function(CONFIGS, LineStage(written._mean_term_0, "sum", written._mean_finish_0), math.nan)
