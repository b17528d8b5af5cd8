"""Ops along an index on the GPU."""

from kernelworks.build.triton import configs
from kernelworks.ops.lookup.along_index.contract import TABLE
from kernelworks.templates.along_index import triton_functions
from kernelworks.tile.along_index import IndexLaunches

LAUNCHES = IndexLaunches(configs(__file__))
gather_forward, gather_backward = triton_functions(TABLE.entries["gather"], LAUNCHES)
index_select_forward, index_select_backward = triton_functions(TABLE.entries["index_select"], LAUNCHES)
scatter_add_forward, scatter_add_backward = triton_functions(TABLE.entries["scatter_add"], LAUNCHES)
index_add_forward, index_add_backward = triton_functions(TABLE.entries["index_add"], LAUNCHES)
