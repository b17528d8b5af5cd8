"""Convolutions on the GPU."""

from kernelworks.build.triton import configs
from kernelworks.ops.convolution.conv.contract import TABLE
from kernelworks.templates.convolution import triton_functions
from kernelworks.tile.window import Convolve

CONVOLVE = Convolve(configs(__file__))
conv1d_forward, conv1d_backward = triton_functions(TABLE.entries["conv1d"], CONVOLVE)
conv3d_forward, conv3d_backward = triton_functions(TABLE.entries["conv3d"], CONVOLVE)
