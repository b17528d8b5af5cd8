"""topk on the GPU."""

from kernelworks.build.triton import configs
from kernelworks.ops.selection.topk.contract import selection_of
from kernelworks.templates.select import LONGEST, triton_forward
from kernelworks.templates.select import backward as backward
from kernelworks.tile.select import Selection

forward = triton_forward(Selection(configs(__file__), LONGEST), selection_of)
