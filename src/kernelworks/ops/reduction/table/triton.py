"""The table of reductions on the GPU. Written by `make docs`: changes are lost."""

import triton.language as tl

from kernelworks.build.triton import configs, kernel
from kernelworks.templates.reduction_triton import reduction_functions
from kernelworks.tile.stage_reduction import Stages


@kernel
def _amax_term_0(operand, found, n, number):
    x = operand[0]
    return x


@kernel
def _amax_finish_0(s, found, n, number):
    return s


@kernel
def _amax_back_term_0(operand, found, n, number):
    x = operand[0]
    return x


@kernel
def _amax_back_finish_0(s, found, n, number):
    return s


@kernel
def _amax_back_term_1(operand, found, n, number):
    x = operand[0]
    top = found[0]
    return tl.where(x == top, 1.0, 0.0)


@kernel
def _amax_back_finish_1(s, found, n, number):
    return s


@kernel
def _amax_back_coefficient(grad, found, n, number):
    ties = found[1]
    return grad / ties


@kernel
def _amax_back_element(operand, found, n, coefficient, number):
    x = operand[0]
    top = found[0]
    return (tl.where(x == top, coefficient, 0.0 * coefficient),)


amax_forward, amax_backward = reduction_functions(
    configs(__file__),
    float("0.0"),
    {
        "": Stages(((_amax_term_0, "max", _amax_finish_0),)),
    },
    {
        "": Stages(
            (
                (_amax_back_term_0, "max", _amax_back_finish_0),
                (_amax_back_term_1, "sum", _amax_back_finish_1),
            ),
            _amax_back_coefficient,
            _amax_back_element,
        ),
    },
    {},
)


@kernel
def _amin_term_0(operand, found, n, number):
    x = operand[0]
    return x


@kernel
def _amin_finish_0(s, found, n, number):
    return s


@kernel
def _amin_back_term_0(operand, found, n, number):
    x = operand[0]
    return x


@kernel
def _amin_back_finish_0(s, found, n, number):
    return s


@kernel
def _amin_back_term_1(operand, found, n, number):
    x = operand[0]
    top = found[0]
    return tl.where(x == top, 1.0, 0.0)


@kernel
def _amin_back_finish_1(s, found, n, number):
    return s


@kernel
def _amin_back_coefficient(grad, found, n, number):
    ties = found[1]
    return grad / ties


@kernel
def _amin_back_element(operand, found, n, coefficient, number):
    x = operand[0]
    top = found[0]
    return (tl.where(x == top, coefficient, 0.0 * coefficient),)


amin_forward, amin_backward = reduction_functions(
    configs(__file__),
    float("0.0"),
    {
        "": Stages(((_amin_term_0, "min", _amin_finish_0),)),
    },
    {
        "": Stages(
            (
                (_amin_back_term_0, "min", _amin_back_finish_0),
                (_amin_back_term_1, "sum", _amin_back_finish_1),
            ),
            _amin_back_coefficient,
            _amin_back_element,
        ),
    },
    {},
)


@kernel
def _mean_term_0(operand, found, n, number):
    x = operand[0]
    return x


@kernel
def _mean_finish_0(s, found, n, number):
    return s / n


mean_forward, mean_backward = reduction_functions(
    configs(__file__),
    float("nan"),
    {
        "": Stages(((_mean_term_0, "sum", _mean_finish_0),)),
    },
    {},
    {},
)
