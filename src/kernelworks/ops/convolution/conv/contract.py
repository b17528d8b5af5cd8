"""What conv1d and conv3d promise: an entry each."""

from kernelworks.templates.convolution import Convolution
from kernelworks.templates.op_package import OpTable

__all__ = ["TABLE"]

TABLE = OpTable.of([Convolution(op_package=__file__, dims=dims) for dims in (1, 3)])
