"""Losses, the ops of the table in ``contract.py``. Written by `make docs`: changes are lost."""

from typing import Any, overload

from kernelworks.dispatch.signature import ABSENT, Array, two_names
from kernelworks.ops.reduction.loss_table.contract import TABLE

__all__ = [
    "BINARY_CROSS_ENTROPY_WITH_LOGITS",
    "HINGE_EMBEDDING_LOSS",
    "HUBER_LOSS",
    "KL_DIV",
    "L1_LOSS",
    "MSE_LOSS",
    "SMOOTH_L1_LOSS",
    "binary_cross_entropy_with_logits",
    "hinge_embedding_loss",
    "huber_loss",
    "kl_div",
    "l1_loss",
    "mse_loss",
    "smooth_l1_loss",
]


@overload
def mse_loss(
    x: Array, target: Array, *, reduction: str = "mean", out: Array | None = None, kernel: str | None = None
) -> Array: ...
@overload
def mse_loss(
    input: Array,
    target: Array,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    weight: Array | None = None,
    *,
    out: Array | None = None,
    kernel: str | None = None,
) -> Array: ...
@two_names
def mse_loss(
    x: Any = ABSENT,
    target: Any = ABSENT,
    *rest: Any,
    reduction: Any = "mean",
    out: Any = None,
    kernel: str | None = None,
    **torchs: Any,
) -> Any:
    """The squared error of each element, their mean or their sum.

    ``loss = (x - target)^2``.

    Computed in float64 whatever the dtype, and rounded once.

    Args:
        x: any shape and strides, float32, bfloat16 or float16.
        target: like x.
        reduction: ``"none"`` or ``"mean"`` or ``"sum"``.
        out: where to write: a contiguous tensor like the output.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        The loss, of x's dtype: like x with ``"none"``, else a scalar; the mean of no elements is NaN.

    Error bound: ``u |loss|``, u the dtype's unit roundoff, 2^-53 (N + 16) times the magnitudes that are added up, and
    2^-22 of what elementary functions give.
    Cost: 3 operations an element; reads x and target once and writes the loss once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: torch.nn.functional.mse_loss.
    """
    if torchs or rest:
        return MSE_LOSS.torch_signature((x, target, *rest), torchs, {"reduction": reduction}, out, kernel)
    return MSE_LOSS.call(x, target, reduction, out, kernel)


MSE_LOSS = TABLE.op("mse_loss")


@overload
def l1_loss(
    x: Array, target: Array, *, reduction: str = "mean", out: Array | None = None, kernel: str | None = None
) -> Array: ...
@overload
def l1_loss(
    input: Array,
    target: Array,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    weight: Array | None = None,
    *,
    out: Array | None = None,
    kernel: str | None = None,
) -> Array: ...
@two_names
def l1_loss(
    x: Any = ABSENT,
    target: Any = ABSENT,
    *rest: Any,
    reduction: Any = "mean",
    out: Any = None,
    kernel: str | None = None,
    **torchs: Any,
) -> Any:
    """The absolute error of each element, their mean or their sum.

    ``loss = |x - target|``.

    Computed in float64 whatever the dtype, and rounded once.

    Args:
        x: any shape and strides, float32, bfloat16 or float16.
        target: like x.
        reduction: ``"none"`` or ``"mean"`` or ``"sum"``.
        out: where to write: a contiguous tensor like the output.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        The loss, of x's dtype: like x with ``"none"``, else a scalar; the mean of no elements is NaN.

    Error bound: ``u |loss|``, u the dtype's unit roundoff, 2^-53 (N + 16) times the magnitudes that are added up, and
    2^-22 of what elementary functions give.
    Cost: 2 operations an element; reads x and target once and writes the loss once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: torch.nn.functional.l1_loss.
    """
    if torchs or rest:
        return L1_LOSS.torch_signature((x, target, *rest), torchs, {"reduction": reduction}, out, kernel)
    return L1_LOSS.call(x, target, reduction, out, kernel)


L1_LOSS = TABLE.op("l1_loss")


@overload
def smooth_l1_loss(
    x: Array,
    target: Array,
    *,
    reduction: str = "mean",
    beta: float = 1.0,
    out: Array | None = None,
    kernel: str | None = None,
) -> Array: ...
@overload
def smooth_l1_loss(
    input: Array,
    target: Array,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    beta: float = 1.0,
    *,
    out: Array | None = None,
    kernel: str | None = None,
) -> Array: ...
@two_names
def smooth_l1_loss(
    x: Any = ABSENT,
    target: Any = ABSENT,
    *rest: Any,
    reduction: Any = "mean",
    beta: Any = 1.0,
    out: Any = None,
    kernel: str | None = None,
    **torchs: Any,
) -> Any:
    """The absolute error of each element, squared near 0; their mean or their sum.

    ``loss = d^2 / (2 beta) where d = |x - target| < beta, else d - beta / 2``.

    Computed in float64 whatever the dtype, and rounded once.

    Args:
        x: any shape and strides, float32, bfloat16 or float16.
        target: like x.
        beta: a number of at least 0, finite in float32.
        reduction: ``"none"`` or ``"mean"`` or ``"sum"``.
        out: where to write: a contiguous tensor like the output.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        The loss, of x's dtype: like x with ``"none"``, else a scalar; the mean of no elements is NaN.

    Error bound: ``u |loss|``, u the dtype's unit roundoff, 2^-53 (N + 16) times the magnitudes that are added up, and
    2^-22 of what elementary functions give.
    Cost: 6 operations an element; reads x and target once and writes the loss once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: Girshick, Fast R-CNN, ICCV 2015 (arXiv:1504.08083).
    """
    if torchs or rest:
        return SMOOTH_L1_LOSS.torch_signature(
            (x, target, *rest), torchs, {"reduction": reduction, "beta": beta}, out, kernel
        )
    return SMOOTH_L1_LOSS.call(x, target, reduction, beta, out, kernel)


SMOOTH_L1_LOSS = TABLE.op("smooth_l1_loss")


@overload
def huber_loss(
    x: Array,
    target: Array,
    *,
    reduction: str = "mean",
    delta: float = 1.0,
    out: Array | None = None,
    kernel: str | None = None,
) -> Array: ...
@overload
def huber_loss(
    input: Array,
    target: Array,
    reduction: str = "mean",
    delta: float = 1.0,
    weight: Array | None = None,
    *,
    out: Array | None = None,
    kernel: str | None = None,
) -> Array: ...
@two_names
def huber_loss(
    x: Any = ABSENT,
    target: Any = ABSENT,
    *rest: Any,
    reduction: Any = "mean",
    delta: Any = 1.0,
    out: Any = None,
    kernel: str | None = None,
    **torchs: Any,
) -> Any:
    """The squared error of each element, absolute far from 0; their mean or their sum.

    ``loss = d^2 / 2 where d = |x - target| <= delta, else delta (d - delta / 2)``.

    Computed in float64 whatever the dtype, and rounded once.

    Args:
        x: any shape and strides, float32, bfloat16 or float16.
        target: like x.
        delta: a number above 0, finite in float32.
        reduction: ``"none"`` or ``"mean"`` or ``"sum"``.
        out: where to write: a contiguous tensor like the output.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        The loss, of x's dtype: like x with ``"none"``, else a scalar; the mean of no elements is NaN.

    Error bound: ``u |loss|``, u the dtype's unit roundoff, 2^-53 (N + 16) times the magnitudes that are added up, and
    2^-22 of what elementary functions give.
    Cost: 6 operations an element; reads x and target once and writes the loss once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: Huber, Robust Estimation of a Location Parameter, Annals of Mathematical Statistics 35(1), 1964.
    """
    if torchs or rest:
        return HUBER_LOSS.torch_signature(
            (x, target, *rest), torchs, {"reduction": reduction, "delta": delta}, out, kernel
        )
    return HUBER_LOSS.call(x, target, reduction, delta, out, kernel)


HUBER_LOSS = TABLE.op("huber_loss")


@overload
def kl_div(
    x: Array,
    target: Array,
    *,
    reduction: str = "mean",
    log_target: bool = False,
    out: Array | None = None,
    kernel: str | None = None,
) -> Array: ...
@overload
def kl_div(
    input: Array,
    target: Array,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    log_target: bool = False,
    *,
    out: Array | None = None,
    kernel: str | None = None,
) -> Array: ...
@two_names
def kl_div(
    x: Any = ABSENT,
    target: Any = ABSENT,
    *rest: Any,
    reduction: Any = "mean",
    log_target: Any = False,
    out: Any = None,
    kernel: str | None = None,
    **torchs: Any,
) -> Any:
    """The divergence of target from logarithms of probabilities, of each element, their mean or their sum.

    ``loss = target (log target - x); e^target (target - x) with log_target``.

    Computed in float64 whatever the dtype, and rounded once.

    Args:
        x: any shape and strides, float32, bfloat16 or float16.
        target: like x.
        log_target: True or False.
        reduction: ``"none"`` or ``"mean"`` or ``"sum"`` or ``"batchmean"``.
        out: where to write: a contiguous tensor like the output.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        The loss, of x's dtype: like x with ``"none"``, else a scalar; the mean of no elements is NaN.

    Error bound: ``u |loss|``, u the dtype's unit roundoff, 2^-53 (N + 16) times the magnitudes that are added up, and
    2^-22 of what elementary functions give.
    Cost: 4 operations an element and 1 elementary functions; reads x and target once and writes the loss once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: Kullback and Leibler, On Information and Sufficiency, Annals of Mathematical Statistics 22(1), 1951.
    """
    if torchs or rest:
        return KL_DIV.torch_signature(
            (x, target, *rest), torchs, {"reduction": reduction, "log_target": log_target}, out, kernel
        )
    return KL_DIV.call(x, target, reduction, log_target, out, kernel)


KL_DIV = TABLE.op("kl_div")


@overload
def binary_cross_entropy_with_logits(
    x: Array,
    target: Array,
    *,
    weight: Array | None = None,
    pos_weight: Array | None = None,
    reduction: str = "mean",
    out: Array | None = None,
    kernel: str | None = None,
) -> Array: ...
@overload
def binary_cross_entropy_with_logits(
    input: Array,
    target: Array,
    weight: Array | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    pos_weight: Array | None = None,
    *,
    out: Array | None = None,
    kernel: str | None = None,
) -> Array: ...
@two_names
def binary_cross_entropy_with_logits(
    x: Any = ABSENT,
    target: Any = ABSENT,
    *rest: Any,
    weight: Any = None,
    pos_weight: Any = None,
    reduction: Any = "mean",
    out: Any = None,
    kernel: str | None = None,
    **torchs: Any,
) -> Any:
    """Cross-entropy of logits and probabilities, of each element, their mean or their sum.

    ``loss = weight ((1 - target) x + (1 + (pos_weight - 1) target) log(1 + e^-x))``.

    Computed in float64 whatever the dtype, and rounded once.

    Args:
        x: any shape and strides, float32, bfloat16 or float16.
        target: like x.
        weight: [..., C] of x's dtype, any strides, or None.
        pos_weight: [C] of x's dtype, any strides, or None.
        reduction: ``"none"`` or ``"mean"`` or ``"sum"``.
        out: where to write: a contiguous tensor like the output.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        The loss, of x's dtype: like x with ``"none"``, else a scalar; the mean of no elements is NaN.

    Error bound: ``u |loss|``, u the dtype's unit roundoff, 2^-53 (N + 16) times the magnitudes that are added up, and
    2^-22 of what elementary functions give.
    Cost: 6 operations an element and 2 elementary functions; reads x and target once and writes the loss once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: torch.nn.functional.binary_cross_entropy_with_logits.
    """
    if torchs or rest:
        return BINARY_CROSS_ENTROPY_WITH_LOGITS.torch_signature(
            (x, target, *rest),
            torchs,
            {"weight": weight, "pos_weight": pos_weight, "reduction": reduction},
            out,
            kernel,
        )
    return BINARY_CROSS_ENTROPY_WITH_LOGITS.call(x, target, weight, pos_weight, reduction, out, kernel)


BINARY_CROSS_ENTROPY_WITH_LOGITS = TABLE.op("binary_cross_entropy_with_logits")


@overload
def hinge_embedding_loss(
    x: Array,
    target: Array,
    *,
    reduction: str = "mean",
    margin: float = 1.0,
    out: Array | None = None,
    kernel: str | None = None,
) -> Array: ...
@overload
def hinge_embedding_loss(
    input: Array,
    target: Array,
    margin: float = 1.0,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    *,
    out: Array | None = None,
    kernel: str | None = None,
) -> Array: ...
@two_names
def hinge_embedding_loss(
    x: Any = ABSENT,
    target: Any = ABSENT,
    *rest: Any,
    reduction: Any = "mean",
    margin: Any = 1.0,
    out: Any = None,
    kernel: str | None = None,
    **torchs: Any,
) -> Any:
    """A distance of each pair that is alike, and how far each other one is within the margin.

    ``loss = x where target = 1, max(0, margin - x) where target = -1``.

    Computed in float64 whatever the dtype, and rounded once.

    Args:
        x: any shape and strides, float32, bfloat16 or float16.
        target: like x.
        margin: a number, finite in float32.
        reduction: ``"none"`` or ``"mean"`` or ``"sum"``.
        out: where to write: a contiguous tensor like the output.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        The loss, of x's dtype: like x with ``"none"``, else a scalar; the mean of no elements is NaN.

    Error bound: ``u |loss|``, u the dtype's unit roundoff, 2^-53 (N + 16) times the magnitudes that are added up, and
    2^-22 of what elementary functions give.
    Cost: 4 operations an element; reads x and target once and writes the loss once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: Hadsell, Chopra and LeCun, Dimensionality Reduction by Learning an Invariant Mapping, CVPR 2006.
    """
    if torchs or rest:
        return HINGE_EMBEDDING_LOSS.torch_signature(
            (x, target, *rest), torchs, {"reduction": reduction, "margin": margin}, out, kernel
        )
    return HINGE_EMBEDDING_LOSS.call(x, target, reduction, margin, out, kernel)


HINGE_EMBEDDING_LOSS = TABLE.op("hinge_embedding_loss")
