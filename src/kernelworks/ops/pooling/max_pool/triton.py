"""Poolings on the GPU."""

from kernelworks.build.triton import configs
from kernelworks.ops.pooling.max_pool.contract import TABLE
from kernelworks.templates.pooling import triton_functions
from kernelworks.tile.window import Pooling

POOLING = Pooling(configs(__file__))
max_pool1d_forward, max_pool1d_backward = triton_functions(TABLE.entries["max_pool1d"], POOLING)
max_pool2d_forward, max_pool2d_backward = triton_functions(TABLE.entries["max_pool2d"], POOLING)
max_pool3d_forward, max_pool3d_backward = triton_functions(TABLE.entries["max_pool3d"], POOLING)
