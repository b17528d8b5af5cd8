"""Transposed convolutions on the GPU."""

from kernelworks.build.triton import configs
from kernelworks.ops.convolution.conv.triton import CONVOLVED as CONVOLVED
from kernelworks.ops.convolution.conv.triton import OF_FILTERS as OF_FILTERS
from kernelworks.ops.convolution.conv.triton import Convolve
from kernelworks.ops.convolution.conv_transpose.contract import TABLE
from kernelworks.templates.convolution import triton_functions

CONVOLVE = Convolve(configs(__file__))
conv_transpose1d_forward, conv_transpose1d_backward = triton_functions(TABLE.entries["conv_transpose1d"], CONVOLVE)
conv_transpose2d_forward, conv_transpose2d_backward = triton_functions(TABLE.entries["conv_transpose2d"], CONVOLVE)
conv_transpose3d_forward, conv_transpose3d_backward = triton_functions(TABLE.entries["conv_transpose3d"], CONVOLVE)
