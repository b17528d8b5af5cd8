"""What avg_pool1d and avg_pool3d promise: an entry each."""

from kernelworks.templates.op_table import OpTable
from kernelworks.templates.pooling import Pool

__all__ = ["TABLE"]

TABLE = OpTable.of([Pool(op_package=__file__, dims=dims, fold="mean", keeps_format=False) for dims in (1, 3)])
