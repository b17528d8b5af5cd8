"""argmin down columns on the GPU: argmax's kernel on elements with the other sign."""

import torch

from kernelworks.build.triton import configs
from kernelworks.ops.reduction.argmax.triton_columns import Columns
from kernelworks.ops.reduction.argmin.triton import _met
from kernelworks.templates.reduction import triton_forward

forward = triton_forward(Columns(configs(__file__), _met), torch.int64)
