"""What conv_transpose1d, conv_transpose2d and conv_transpose3d promise: an entry each."""

from kernelworks.templates.convolution import Convolution
from kernelworks.templates.op_package import OpTable

__all__ = ["TABLE"]

TABLE = OpTable.of([Convolution(op_package=__file__, dims=dims, transposed=True) for dims in (1, 2, 3)])
