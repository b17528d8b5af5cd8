"""What max_pool1d, max_pool2d and max_pool3d promise: an entry each."""

from kernelworks.templates.op_table import OpTable
from kernelworks.templates.pooling import Pool

__all__ = ["TABLE"]

TABLE = OpTable.of([Pool(op_package=__file__, dims=dims, fold="max") for dims in (1, 2, 3)])
