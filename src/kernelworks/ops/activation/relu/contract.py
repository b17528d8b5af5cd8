"""What relu promises."""

import torch

from kernelworks.contract.cases import VALUES
from kernelworks.contract.tensor_argument import T
from kernelworks.templates.pointwise import Pointwise, Work

__all__ = ["CONTRACT", "TEMPLATE"]

TEMPLATE = Pointwise(
    op_package=__file__,
    formula="output = max(x, 0)",
    source="Nair and Hinton, Rectified Linear Units Improve Restricted Boltzmann Machines, ICML 2010",
    arguments={"x": T("...")},
    reference=torch.relu,
    work=Work(forward=1, backward=2),
    sweeps={"around 0": 1.0},
    gradient_kinds=tuple(VALUES),  # at 0, of infinities and of NaN too
)
CONTRACT = TEMPLATE.contract
