"""The table of reductions on the GPU. Written by `make docs`: changes are lost."""

import triton.language as tl

from kernelworks.build.triton import configs, kernel
from kernelworks.templates.reduction_stages.triton_launches import reduction_functions
from kernelworks.tile.reduction_stages.line_functions import (
    element_exponential,
)
from kernelworks.tile.reduction_stages.line_launches import LineStage, LineStages
from kernelworks.tile.reduction_stages.stage_reduction import logarithm, root


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
        "": LineStages((LineStage(_amax_term_0, "max", _amax_finish_0, True),)),
    },
    {
        "": LineStages(
            (
                LineStage(_amax_back_term_0, "max", _amax_back_finish_0, True),
                LineStage(_amax_back_term_1, "sum", _amax_back_finish_1, True),
            ),
            _amax_back_coefficient,
            _amax_back_element,
            True,
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
        "": LineStages((LineStage(_amin_term_0, "min", _amin_finish_0, True),)),
    },
    {
        "": LineStages(
            (
                LineStage(_amin_back_term_0, "min", _amin_back_finish_0, True),
                LineStage(_amin_back_term_1, "sum", _amin_back_finish_1, True),
            ),
            _amin_back_coefficient,
            _amin_back_element,
            True,
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
        "": LineStages((LineStage(_mean_term_0, "sum", _mean_finish_0, False),)),
    },
    {},
    {},
)


@kernel
def _var_term_0(operand, found, n, number):
    x = operand[0]
    return x


@kernel
def _var_finish_0(s, found, n, number):
    return s / n


@kernel
def _var_term_1(operand, found, n, number):
    x = operand[0]
    mean = found[0]
    return (x - mean) * (x - mean)


@kernel
def _var_finish_1(s, found, n, number):
    correction = number[0]
    return s / tl.where(n > correction, n - correction, 0.0)


@kernel
def _var_back_term_0(operand, found, n, number):
    x = operand[0]
    return x


@kernel
def _var_back_finish_0(s, found, n, number):
    return s / n


@kernel
def _var_back_coefficient(grad, found, n, number):
    correction = number[0]
    return 2.0 / (n - correction) * grad


@kernel
def _var_back_element(operand, found, n, coefficient, number):
    x = operand[0]
    mean = found[0]
    return (coefficient * (x - mean),)


var_forward, var_backward = reduction_functions(
    configs(__file__),
    float("nan"),
    {
        "": LineStages(
            (
                LineStage(_var_term_0, "sum", _var_finish_0, False),
                LineStage(_var_term_1, "sum", _var_finish_1, False),
            )
        ),
    },
    {
        "": LineStages(
            (LineStage(_var_back_term_0, "sum", _var_back_finish_0, False),),
            _var_back_coefficient,
            _var_back_element,
            False,
        ),
    },
    {},
)


@kernel
def _std_term_0(operand, found, n, number):
    x = operand[0]
    return x


@kernel
def _std_finish_0(s, found, n, number):
    return s / n


@kernel
def _std_term_1(operand, found, n, number):
    x = operand[0]
    mean = found[0]
    return (x - mean) * (x - mean)


@kernel
def _std_finish_1(s, found, n, number):
    correction = number[0]
    return root(s / tl.where(n > correction, n - correction, 0.0))


@kernel
def _std_back_term_0(operand, found, n, number):
    x = operand[0]
    return x


@kernel
def _std_back_finish_0(s, found, n, number):
    return s / n


@kernel
def _std_back_term_1(operand, found, n, number):
    x = operand[0]
    mean = found[0]
    return (x - mean) * (x - mean)


@kernel
def _std_back_finish_1(s, found, n, number):
    correction = number[0]
    return root(s / tl.where(n > correction, n - correction, 0.0))


@kernel
def _std_back_coefficient(grad, found, n, number):
    std = found[1]
    correction = number[0]
    return tl.where(std == 0.0, 0.0, grad / (std * (n - correction)))


@kernel
def _std_back_element(operand, found, n, coefficient, number):
    x = operand[0]
    mean = found[0]
    return (coefficient * (x - mean),)


std_forward, std_backward = reduction_functions(
    configs(__file__),
    float("nan"),
    {
        "": LineStages(
            (
                LineStage(_std_term_0, "sum", _std_finish_0, False),
                LineStage(_std_term_1, "sum", _std_finish_1, False),
            )
        ),
    },
    {
        "": LineStages(
            (
                LineStage(_std_back_term_0, "sum", _std_back_finish_0, False),
                LineStage(_std_back_term_1, "sum", _std_back_finish_1, False),
            ),
            _std_back_coefficient,
            _std_back_element,
            False,
        ),
    },
    {},
)


@kernel
def _logsumexp_term_0(operand, found, n, number):
    x = operand[0]
    return x


@kernel
def _logsumexp_finish_0(s, found, n, number):
    return tl.where(tl.abs(s) == float("inf"), 0.0, s)


@kernel
def _logsumexp_term_1(operand, found, n, number):
    x = operand[0]
    top = found[0]
    return element_exponential(x - top)


@kernel
def _logsumexp_finish_1(s, found, n, number):
    top = found[0]
    return logarithm(s) + top


@kernel
def _logsumexp_back_term_0(operand, found, n, number):
    x = operand[0]
    return x


@kernel
def _logsumexp_back_finish_0(s, found, n, number):
    return tl.where(tl.abs(s) == float("inf"), 0.0, s)


@kernel
def _logsumexp_back_term_1(operand, found, n, number):
    x = operand[0]
    top = found[0]
    return element_exponential(x - top)


@kernel
def _logsumexp_back_finish_1(s, found, n, number):
    return s


@kernel
def _logsumexp_back_coefficient(grad, found, n, number):
    sum = found[1]
    return grad / sum


@kernel
def _logsumexp_back_element(operand, found, n, coefficient, number):
    x = operand[0]
    top = found[0]
    return (coefficient * element_exponential(x - top),)


logsumexp_forward, logsumexp_backward = reduction_functions(
    configs(__file__),
    float("-inf"),
    {
        "": LineStages(
            (
                LineStage(_logsumexp_term_0, "max", _logsumexp_finish_0, True),
                LineStage(_logsumexp_term_1, "sum", _logsumexp_finish_1, False),
            )
        ),
    },
    {
        "": LineStages(
            (
                LineStage(_logsumexp_back_term_0, "max", _logsumexp_back_finish_0, True),
                LineStage(_logsumexp_back_term_1, "sum", _logsumexp_back_finish_1, False),
            ),
            _logsumexp_back_coefficient,
            _logsumexp_back_element,
            False,
        ),
    },
    {},
)


@kernel
def _norm_one_term_0(operand, found, n, number):
    x = operand[0]
    return tl.abs(x)


@kernel
def _norm_one_finish_0(s, found, n, number):
    return s


@kernel
def _norm_one_back_coefficient(grad, found, n, number):
    return grad


@kernel
def _norm_one_back_element(operand, found, n, coefficient, number):
    x = operand[0]
    return (tl.where(x > 0.0, coefficient, tl.where(x < 0.0, -coefficient, 0.0 * x)),)


@kernel
def _norm_two_term_0(operand, found, n, number):
    x = operand[0]
    return x * x


@kernel
def _norm_two_finish_0(s, found, n, number):
    return root(s)


@kernel
def _norm_two_back_term_0(operand, found, n, number):
    x = operand[0]
    return x * x


@kernel
def _norm_two_back_finish_0(s, found, n, number):
    return root(s)


@kernel
def _norm_two_back_coefficient(grad, found, n, number):
    length = found[0]
    return tl.where(length == 0.0, 0.0, grad / length)


@kernel
def _norm_two_back_element(operand, found, n, coefficient, number):
    x = operand[0]
    return (coefficient * x,)


@kernel
def _norm_inf_term_0(operand, found, n, number):
    x = operand[0]
    return tl.abs(x)


@kernel
def _norm_inf_finish_0(s, found, n, number):
    return s


@kernel
def _norm_inf_back_term_0(operand, found, n, number):
    x = operand[0]
    return tl.abs(x)


@kernel
def _norm_inf_back_finish_0(s, found, n, number):
    return s


@kernel
def _norm_inf_back_term_1(operand, found, n, number):
    x = operand[0]
    top = found[0]
    return tl.where(tl.abs(x) == top, 1.0, 0.0)


@kernel
def _norm_inf_back_finish_1(s, found, n, number):
    return s


@kernel
def _norm_inf_back_coefficient(grad, found, n, number):
    ties = found[1]
    return grad / ties


@kernel
def _norm_inf_back_element(operand, found, n, coefficient, number):
    x = operand[0]
    top = found[0]
    return (tl.where(tl.abs(x) == top, tl.where(x > 0.0, coefficient, tl.where(x < 0.0, -coefficient, 0.0 * x)), 0.0),)


norm_forward, norm_backward = reduction_functions(
    configs(__file__),
    float("0.0"),
    {
        "one": LineStages((LineStage(_norm_one_term_0, "sum", _norm_one_finish_0, False),)),
        "two": LineStages((LineStage(_norm_two_term_0, "sum", _norm_two_finish_0, False),)),
        "inf": LineStages((LineStage(_norm_inf_term_0, "max", _norm_inf_finish_0, True),)),
    },
    {
        "one": LineStages((), _norm_one_back_coefficient, _norm_one_back_element, True),
        "two": LineStages(
            (LineStage(_norm_two_back_term_0, "sum", _norm_two_back_finish_0, False),),
            _norm_two_back_coefficient,
            _norm_two_back_element,
            False,
        ),
        "inf": LineStages(
            (
                LineStage(_norm_inf_back_term_0, "max", _norm_inf_back_finish_0, True),
                LineStage(_norm_inf_back_term_1, "sum", _norm_inf_back_finish_1, True),
            ),
            _norm_inf_back_coefficient,
            _norm_inf_back_element,
            True,
        ),
    },
    {float("1.0"): "one", float("2.0"): "two", float("inf"): "inf"},
)
