"""Poolings on the GPU."""

from kernelworks.build.triton import configs
from kernelworks.ops.pooling.avg_pool.contract import TABLE
from kernelworks.templates.pooling import triton_functions
from kernelworks.tile.window import Pooling

POOLING = Pooling(configs(__file__))
avg_pool1d_forward, avg_pool1d_backward = triton_functions(TABLE.entries["avg_pool1d"], POOLING)
avg_pool3d_forward, avg_pool3d_backward = triton_functions(TABLE.entries["avg_pool3d"], POOLING)
