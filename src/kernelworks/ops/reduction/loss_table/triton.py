"""The table of losses on the GPU. Written by `make docs`: changes are lost."""

import triton.language as tl

from kernelworks.build.triton import configs, kernel
from kernelworks.templates.reduction_stages.launches import LossArguments
from kernelworks.templates.reduction_stages.triton_launches import loss_functions
from kernelworks.tile.reduction_stages.line_functions import (
    element_exponential,
    element_log_one_more,
    element_logarithm,
)
from kernelworks.tile.reduction_stages.line_launches import LineStage, LineStages


@kernel
def _mse_loss_term_0(operand, found, n, number):
    x = operand[0]
    target = operand[1]
    return (x - target) * (x - target)


@kernel
def _mse_loss_finish_0(s, found, n, number):
    divisor = number[0]
    return s / divisor


@kernel
def _mse_loss_back_coefficient(grad, found, n, number):
    divisor = number[0]
    return grad / divisor


@kernel
def _mse_loss_back_element(operand, found, n, coefficient, number):
    x = operand[0]
    target = operand[1]
    return (
        coefficient * (2.0 * (x - target)),
        coefficient * (-(2.0 * (x - target))),
    )


mse_loss_forward, mse_loss_backward = loss_functions(
    configs(__file__),
    LossArguments(names=("x", "target", "reduction"), weights=(), flags=(), numbers=(), operands={"": ("x", "target")}),
    {
        "": LineStages((LineStage(_mse_loss_term_0, "sum", _mse_loss_finish_0, False),)),
    },
    {
        "": LineStages((), _mse_loss_back_coefficient, _mse_loss_back_element, False),
    },
)


@kernel
def _l1_loss_term_0(operand, found, n, number):
    x = operand[0]
    target = operand[1]
    return tl.abs(x - target)


@kernel
def _l1_loss_finish_0(s, found, n, number):
    divisor = number[0]
    return s / divisor


@kernel
def _l1_loss_back_coefficient(grad, found, n, number):
    divisor = number[0]
    return grad / divisor


@kernel
def _l1_loss_back_element(operand, found, n, coefficient, number):
    x = operand[0]
    target = operand[1]
    return (
        coefficient * (tl.where(x - target > 0.0, 1.0, tl.where(x - target < 0.0, -1.0, 0.0 * (x - target)))),
        coefficient * (-(tl.where(x - target > 0.0, 1.0, tl.where(x - target < 0.0, -1.0, 0.0 * (x - target))))),
    )


l1_loss_forward, l1_loss_backward = loss_functions(
    configs(__file__),
    LossArguments(names=("x", "target", "reduction"), weights=(), flags=(), numbers=(), operands={"": ("x", "target")}),
    {
        "": LineStages((LineStage(_l1_loss_term_0, "sum", _l1_loss_finish_0, False),)),
    },
    {
        "": LineStages((), _l1_loss_back_coefficient, _l1_loss_back_element, True),
    },
)


@kernel
def _smooth_l1_loss_term_0(operand, found, n, number):
    x = operand[0]
    target = operand[1]
    beta = number[0]
    return tl.where(
        tl.abs(x - target) < beta, 0.5 * (x - target) * (x - target) * (1.0 / beta), tl.abs(x - target) - 0.5 * beta
    )


@kernel
def _smooth_l1_loss_finish_0(s, found, n, number):
    divisor = number[1]
    return s / divisor


@kernel
def _smooth_l1_loss_back_coefficient(grad, found, n, number):
    divisor = number[1]
    return grad / divisor


@kernel
def _smooth_l1_loss_back_element(operand, found, n, coefficient, number):
    x = operand[0]
    target = operand[1]
    beta = number[0]
    return (
        coefficient
        * (
            tl.where(
                x == target,
                0.0,
                tl.where(x - target <= -beta, -1.0, tl.where(x - target >= beta, 1.0, (x - target) * (1.0 / beta))),
            )
        ),
        coefficient
        * (
            -(
                tl.where(
                    x == target,
                    0.0,
                    tl.where(x - target <= -beta, -1.0, tl.where(x - target >= beta, 1.0, (x - target) * (1.0 / beta))),
                )
            )
        ),
    )


smooth_l1_loss_forward, smooth_l1_loss_backward = loss_functions(
    configs(__file__),
    LossArguments(
        names=("x", "target", "reduction", "beta"),
        weights=(),
        flags=(),
        numbers=("beta",),
        operands={"": ("x", "target")},
    ),
    {
        "": LineStages((LineStage(_smooth_l1_loss_term_0, "sum", _smooth_l1_loss_finish_0, False),)),
    },
    {
        "": LineStages((), _smooth_l1_loss_back_coefficient, _smooth_l1_loss_back_element, False),
    },
)


@kernel
def _huber_loss_term_0(operand, found, n, number):
    x = operand[0]
    target = operand[1]
    delta = number[0]
    return tl.where(
        tl.abs(x - target) <= delta, 0.5 * (x - target) * (x - target), delta * (tl.abs(x - target) - 0.5 * delta)
    )


@kernel
def _huber_loss_finish_0(s, found, n, number):
    divisor = number[1]
    return s / divisor


@kernel
def _huber_loss_back_coefficient(grad, found, n, number):
    divisor = number[1]
    return grad / divisor


@kernel
def _huber_loss_back_element(operand, found, n, coefficient, number):
    x = operand[0]
    target = operand[1]
    delta = number[0]
    return (
        coefficient * (tl.where(x - target <= -delta, -delta, tl.where(x - target >= delta, delta, x - target))),
        coefficient * (-(tl.where(x - target <= -delta, -delta, tl.where(x - target >= delta, delta, x - target)))),
    )


huber_loss_forward, huber_loss_backward = loss_functions(
    configs(__file__),
    LossArguments(
        names=("x", "target", "reduction", "delta"),
        weights=(),
        flags=(),
        numbers=("delta",),
        operands={"": ("x", "target")},
    ),
    {
        "": LineStages((LineStage(_huber_loss_term_0, "sum", _huber_loss_finish_0, False),)),
    },
    {
        "": LineStages((), _huber_loss_back_coefficient, _huber_loss_back_element, False),
    },
)


@kernel
def _kl_div_term_0(operand, found, n, number):
    x = operand[0]
    target = operand[1]
    return tl.where(target == 0.0, 0.0, target * element_logarithm(target)) - target * x


@kernel
def _kl_div_finish_0(s, found, n, number):
    divisor = number[0]
    return s / divisor


@kernel
def _kl_div_back_coefficient(grad, found, n, number):
    divisor = number[0]
    return grad / divisor


@kernel
def _kl_div_back_element(operand, found, n, coefficient, number):
    x = operand[0]
    target = operand[1]
    return (
        coefficient * (-target),
        coefficient * (tl.where(target == 0.0, float("nan"), element_logarithm(target) + 1.0 - x)),
    )


@kernel
def _kl_div_log_target_term_0(operand, found, n, number):
    x = operand[0]
    target = operand[1]
    return element_exponential(target) * (target - x)


@kernel
def _kl_div_log_target_finish_0(s, found, n, number):
    divisor = number[0]
    return s / divisor


@kernel
def _kl_div_log_target_back_coefficient(grad, found, n, number):
    divisor = number[0]
    return grad / divisor


@kernel
def _kl_div_log_target_back_element(operand, found, n, coefficient, number):
    x = operand[0]
    target = operand[1]
    return (
        coefficient * (-element_exponential(target)),
        coefficient * (element_exponential(target) * (target - x + 1.0)),
    )


kl_div_forward, kl_div_backward = loss_functions(
    configs(__file__),
    LossArguments(
        names=("x", "target", "reduction", "log_target"),
        weights=(),
        flags=("log_target",),
        numbers=(),
        operands={"": ("x", "target"), "log_target": ("x", "target")},
    ),
    {
        "": LineStages((LineStage(_kl_div_term_0, "sum", _kl_div_finish_0, False),)),
        "log_target": LineStages((LineStage(_kl_div_log_target_term_0, "sum", _kl_div_log_target_finish_0, False),)),
    },
    {
        "": LineStages((), _kl_div_back_coefficient, _kl_div_back_element, False),
        "log_target": LineStages((), _kl_div_log_target_back_coefficient, _kl_div_log_target_back_element, False),
    },
)


@kernel
def _binary_cross_entropy_with_logits_term_0(operand, found, n, number):
    x = operand[0]
    target = operand[1]
    return (1.0 - target) * x + (element_log_one_more(element_exponential(-tl.abs(x))) + tl.where(x < 0.0, -x, 0.0))


@kernel
def _binary_cross_entropy_with_logits_finish_0(s, found, n, number):
    divisor = number[0]
    return s / divisor


@kernel
def _binary_cross_entropy_with_logits_back_coefficient(grad, found, n, number):
    divisor = number[0]
    return grad / divisor


@kernel
def _binary_cross_entropy_with_logits_back_element(operand, found, n, coefficient, number):
    x = operand[0]
    target = operand[1]
    return (
        coefficient
        * (tl.where(x < 0.0, element_exponential(-tl.abs(x)), 1.0) / (1.0 + element_exponential(-tl.abs(x))) - target),
        coefficient * (-x),
    )


@kernel
def _binary_cross_entropy_with_logits_weighted_term_0(operand, found, n, number):
    x = operand[0]
    target = operand[1]
    weight = operand[2]
    pos_weight = operand[3]
    return weight * (
        (1.0 - target) * x
        + (1.0 + (pos_weight - 1.0) * target)
        * (element_log_one_more(element_exponential(-tl.abs(x))) + tl.where(x < 0.0, -x, 0.0))
    )


@kernel
def _binary_cross_entropy_with_logits_weighted_finish_0(s, found, n, number):
    divisor = number[0]
    return s / divisor


@kernel
def _binary_cross_entropy_with_logits_weighted_back_coefficient(grad, found, n, number):
    divisor = number[0]
    return grad / divisor


@kernel
def _binary_cross_entropy_with_logits_weighted_back_element(operand, found, n, coefficient, number):
    x = operand[0]
    target = operand[1]
    weight = operand[2]
    pos_weight = operand[3]
    return (
        coefficient
        * (
            weight
            * (
                1.0
                - target
                - (1.0 + (pos_weight - 1.0) * target)
                * (tl.where(x < 0.0, 1.0, element_exponential(-tl.abs(x))) / (1.0 + element_exponential(-tl.abs(x))))
            )
        ),
        coefficient
        * (
            weight
            * (
                (pos_weight - 1.0)
                * (element_log_one_more(element_exponential(-tl.abs(x))) + tl.where(x < 0.0, -x, 0.0))
                - x
            )
        ),
    )


binary_cross_entropy_with_logits_forward, binary_cross_entropy_with_logits_backward = loss_functions(
    configs(__file__),
    LossArguments(
        names=("x", "target", "weight", "pos_weight", "reduction"),
        weights=("weight", "pos_weight"),
        flags=(),
        numbers=(),
        operands={"": ("x", "target"), "weighted": ("x", "target", "weight", "pos_weight")},
    ),
    {
        "": LineStages(
            (
                LineStage(
                    _binary_cross_entropy_with_logits_term_0, "sum", _binary_cross_entropy_with_logits_finish_0, False
                ),
            )
        ),
        "weighted": LineStages(
            (
                LineStage(
                    _binary_cross_entropy_with_logits_weighted_term_0,
                    "sum",
                    _binary_cross_entropy_with_logits_weighted_finish_0,
                    False,
                ),
            )
        ),
    },
    {
        "": LineStages(
            (),
            _binary_cross_entropy_with_logits_back_coefficient,
            _binary_cross_entropy_with_logits_back_element,
            False,
        ),
        "weighted": LineStages(
            (),
            _binary_cross_entropy_with_logits_weighted_back_coefficient,
            _binary_cross_entropy_with_logits_weighted_back_element,
            False,
        ),
    },
)


@kernel
def _hinge_embedding_loss_term_0(operand, found, n, number):
    x = operand[0]
    target = operand[1]
    margin = number[0]
    return tl.where(target == -1.0, 0.0, x) + tl.where((target == 1.0) | (x > margin), 0.0, margin - x)


@kernel
def _hinge_embedding_loss_finish_0(s, found, n, number):
    divisor = number[1]
    return s / divisor


@kernel
def _hinge_embedding_loss_back_coefficient(grad, found, n, number):
    divisor = number[1]
    return grad / divisor


@kernel
def _hinge_embedding_loss_back_element(operand, found, n, coefficient, number):
    x = operand[0]
    target = operand[1]
    margin = number[0]
    return (
        coefficient * (tl.where(target == -1.0, 0.0, 1.0) - tl.where((target != 1.0) & (x <= margin), 1.0, 0.0)),
        coefficient * (0.0 * x),
    )


hinge_embedding_loss_forward, hinge_embedding_loss_backward = loss_functions(
    configs(__file__),
    LossArguments(
        names=("x", "target", "reduction", "margin"),
        weights=(),
        flags=(),
        numbers=("margin",),
        operands={"": ("x", "target")},
    ),
    {
        "": LineStages((LineStage(_hinge_embedding_loss_term_0, "sum", _hinge_embedding_loss_finish_0, False),)),
    },
    {
        "": LineStages((), _hinge_embedding_loss_back_coefficient, _hinge_embedding_loss_back_element, True),
    },
)
