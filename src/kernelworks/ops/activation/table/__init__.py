"""Activations, the ops of the table in ``contract.py``. Written by `make docs`: changes are lost."""

from typing import Any, overload

from kernelworks.dispatch.signature import ABSENT, Array, two_names
from kernelworks.ops.activation.table.contract import TABLE

__all__ = [
    "CELU",
    "ELU",
    "HARDSHRINK",
    "HARDSIGMOID",
    "HARDSWISH",
    "HARDTANH",
    "LEAKY_RELU",
    "LOGSIGMOID",
    "MISH",
    "QUICK_GELU",
    "RELU6",
    "SELU",
    "SIGMOID",
    "SILU",
    "SOFTPLUS",
    "SOFTSHRINK",
    "SOFTSIGN",
    "TANH",
    "TANHSHRINK",
    "THRESHOLD",
    "celu",
    "elu",
    "hardshrink",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "leaky_relu",
    "logsigmoid",
    "mish",
    "quick_gelu",
    "relu6",
    "selu",
    "sigmoid",
    "silu",
    "softplus",
    "softshrink",
    "softsign",
    "tanh",
    "tanhshrink",
    "threshold",
]


@overload
def celu(x: Array, alpha: float = 1.0, *, out: Array | None = None, kernel: str | None = None) -> Array: ...
@overload
def celu(
    input: Array, alpha: float = 1.0, inplace: bool = False, *, out: Array | None = None, kernel: str | None = None
) -> Array: ...
@two_names
def celu(
    x: Any = ABSENT,
    alpha: Any = 1.0,
    inplace: Any = False,
    *,
    out: Any = None,
    kernel: str | None = None,
    **torchs: Any,
) -> Any:
    """``output = x where x > 0, else alpha (e^(x / alpha) - 1)``.

    Args:
        x: any shape and strides, float32, bfloat16 or float16.
        alpha: a number above 0, finite in float32.
        out: where to write: a contiguous tensor of x's shape and dtype.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` like x.

    Error bound: a running error analysis of the expression in float32, and ``u |output|``, u the unit roundoff of the
    dtype; nothing where the result is a number that x, 0 or an argument holds.
    Cost: 20 operations an element; reads x once and writes output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: Barron, Continuously Differentiable Exponential Linear Units, 2017 (arXiv:1704.07483).
    """
    if torchs or inplace is not False:
        return CELU.torch_signature(
            (
                x,
                alpha,
            ),
            torchs,
            {"inplace": inplace},
            out,
            kernel,
        )
    return CELU.call(x, alpha, out, kernel)


CELU = TABLE.op("celu")


@overload
def elu(x: Array, alpha: float = 1.0, *, out: Array | None = None, kernel: str | None = None) -> Array: ...
@overload
def elu(
    input: Array, alpha: float = 1.0, inplace: bool = False, *, out: Array | None = None, kernel: str | None = None
) -> Array: ...
@two_names
def elu(
    x: Any = ABSENT,
    alpha: Any = 1.0,
    inplace: Any = False,
    *,
    out: Any = None,
    kernel: str | None = None,
    **torchs: Any,
) -> Any:
    """``output = x where x > 0, else alpha (e^x - 1)``.

    Args:
        x: any shape and strides, float32, bfloat16 or float16.
        alpha: a number, finite in float32.
        out: where to write: a contiguous tensor of x's shape and dtype.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` like x.

    Error bound: a running error analysis of the expression in float32, and ``u |output|``, u the unit roundoff of the
    dtype; nothing where the result is a number that x, 0 or an argument holds.
    Cost: 19 operations an element; reads x once and writes output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: Clevert, Unterthiner and Hochreiter, Exponential Linear Units, ICLR 2016 (arXiv:1511.07289).
    """
    if torchs or inplace is not False:
        return ELU.torch_signature(
            (
                x,
                alpha,
            ),
            torchs,
            {"inplace": inplace},
            out,
            kernel,
        )
    return ELU.call(x, alpha, out, kernel)


ELU = TABLE.op("elu")


@overload
def hardshrink(x: Array, lambd: float = 0.5, *, out: Array | None = None, kernel: str | None = None) -> Array: ...
@overload
def hardshrink(*, input: Array, lambd: float = 0.5, out: Array | None = None, kernel: str | None = None) -> Array: ...
@two_names
def hardshrink(x: Any = ABSENT, lambd: Any = 0.5, *, out: Any = None, kernel: str | None = None, **torchs: Any) -> Any:
    """``output = 0 where -lambd <= x <= lambd, else x``.

    Args:
        x: any shape and strides, float32, bfloat16 or float16.
        lambd: a number, finite in float32.
        out: where to write: a contiguous tensor of x's shape and dtype.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` like x.

    Error bound: a running error analysis of the expression in float32, and ``u |output|``, u the unit roundoff of the
    dtype; nothing where the result is a number that x, 0 or an argument holds.
    Cost: 5 operations an element; reads x once and writes output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: torch.nn.functional.hardshrink.
    """
    if torchs:
        return HARDSHRINK.torch_signature(
            (
                x,
                lambd,
            ),
            torchs,
            {},
            out,
            kernel,
        )
    return HARDSHRINK.call(x, lambd, out, kernel)


HARDSHRINK = TABLE.op("hardshrink")


@overload
def hardsigmoid(x: Array, *, out: Array | None = None, kernel: str | None = None) -> Array: ...
@overload
def hardsigmoid(
    input: Array, inplace: bool = False, *, out: Array | None = None, kernel: str | None = None
) -> Array: ...
@two_names
def hardsigmoid(
    x: Any = ABSENT, inplace: Any = False, *, out: Any = None, kernel: str | None = None, **torchs: Any
) -> Any:
    """``output = min(max(x + 3, 0), 6) / 6``.

    Args:
        x: any shape and strides, float32, bfloat16 or float16.
        out: where to write: a contiguous tensor of x's shape and dtype.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` like x.

    Error bound: a running error analysis of the expression in float32, and ``u |output|``, u the unit roundoff of the
    dtype; nothing where the result is a number that x, 0 or an argument holds.
    Cost: 7 operations an element; reads x once and writes output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: Howard et al., Searching for MobileNetV3, ICCV 2019 (arXiv:1905.02244).
    """
    if torchs or inplace is not False:
        return HARDSIGMOID.torch_signature((x,), torchs, {"inplace": inplace}, out, kernel)
    return HARDSIGMOID.call(x, out, kernel)


HARDSIGMOID = TABLE.op("hardsigmoid")


@overload
def hardswish(x: Array, *, out: Array | None = None, kernel: str | None = None) -> Array: ...
@overload
def hardswish(input: Array, inplace: bool = False, *, out: Array | None = None, kernel: str | None = None) -> Array: ...
@two_names
def hardswish(
    x: Any = ABSENT, inplace: Any = False, *, out: Any = None, kernel: str | None = None, **torchs: Any
) -> Any:
    """``output = x min(max(x + 3, 0), 6) / 6``.

    Args:
        x: any shape and strides, float32, bfloat16 or float16.
        out: where to write: a contiguous tensor of x's shape and dtype.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` like x.

    Error bound: a running error analysis of the expression in float32, and ``u |output|``, u the unit roundoff of the
    dtype; nothing where the result is a number that x, 0 or an argument holds.
    Cost: 8 operations an element; reads x once and writes output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: Howard et al., Searching for MobileNetV3, ICCV 2019 (arXiv:1905.02244).
    """
    if torchs or inplace is not False:
        return HARDSWISH.torch_signature((x,), torchs, {"inplace": inplace}, out, kernel)
    return HARDSWISH.call(x, out, kernel)


HARDSWISH = TABLE.op("hardswish")


@overload
def hardtanh(
    x: Array, min_val: float = -1.0, max_val: float = 1.0, *, out: Array | None = None, kernel: str | None = None
) -> Array: ...
@overload
def hardtanh(
    input: Array,
    min_val: float = -1.0,
    max_val: float = 1.0,
    inplace: bool = False,
    *,
    out: Array | None = None,
    kernel: str | None = None,
) -> Array: ...
@two_names
def hardtanh(
    x: Any = ABSENT,
    min_val: Any = -1.0,
    max_val: Any = 1.0,
    inplace: Any = False,
    *,
    out: Any = None,
    kernel: str | None = None,
    **torchs: Any,
) -> Any:
    """``output = min(max(x, min_val), max_val)``.

    Args:
        x: any shape and strides, float32, bfloat16 or float16.
        min_val: a number, finite in float32.
        max_val: a number of at least min_val, finite in float32.
        out: where to write: a contiguous tensor of x's shape and dtype.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` like x.

    Error bound: a running error analysis of the expression in float32, and ``u |output|``, u the unit roundoff of the
    dtype; nothing where the result is a number that x, 0 or an argument holds.
    Cost: 4 operations an element; reads x once and writes output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: torch.nn.functional.hardtanh.
    """
    if torchs or inplace is not False:
        return HARDTANH.torch_signature(
            (
                x,
                min_val,
                max_val,
            ),
            torchs,
            {"inplace": inplace},
            out,
            kernel,
        )
    return HARDTANH.call(x, min_val, max_val, out, kernel)


HARDTANH = TABLE.op("hardtanh")


@overload
def leaky_relu(
    x: Array, negative_slope: float = 0.01, *, out: Array | None = None, kernel: str | None = None
) -> Array: ...
@overload
def leaky_relu(
    input: Array,
    negative_slope: float = 0.01,
    inplace: bool = False,
    *,
    out: Array | None = None,
    kernel: str | None = None,
) -> Array: ...
@two_names
def leaky_relu(
    x: Any = ABSENT,
    negative_slope: Any = 0.01,
    inplace: Any = False,
    *,
    out: Any = None,
    kernel: str | None = None,
    **torchs: Any,
) -> Any:
    """``output = x where x > 0, else negative_slope x``.

    Args:
        x: any shape and strides, float32, bfloat16 or float16.
        negative_slope: a number, finite in float32.
        out: where to write: a contiguous tensor of x's shape and dtype.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` like x.

    Error bound: a running error analysis of the expression in float32, and ``u |output|``, u the unit roundoff of the
    dtype; nothing where the result is a number that x, 0 or an argument holds.
    Cost: 3 operations an element; reads x once and writes output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: Maas, Hannun and Ng, Rectifier Nonlinearities Improve Neural Network Acoustic Models, ICML 2013.
    """
    if torchs or inplace is not False:
        return LEAKY_RELU.torch_signature(
            (
                x,
                negative_slope,
            ),
            torchs,
            {"inplace": inplace},
            out,
            kernel,
        )
    return LEAKY_RELU.call(x, negative_slope, out, kernel)


LEAKY_RELU = TABLE.op("leaky_relu")


@overload
def logsigmoid(x: Array, *, out: Array | None = None, kernel: str | None = None) -> Array: ...
@overload
def logsigmoid(*, input: Array, out: Array | None = None, kernel: str | None = None) -> Array: ...
@two_names
def logsigmoid(x: Any = ABSENT, *, out: Any = None, kernel: str | None = None, **torchs: Any) -> Any:
    """``output = log(1 / (1 + e^-x))``.

    Args:
        x: any shape and strides, float32, bfloat16 or float16.
        out: where to write: a contiguous tensor of x's shape and dtype.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` like x.

    Error bound: a running error analysis of the expression in float32, and ``u |output|``, u the unit roundoff of the
    dtype; nothing where the result is a number that x, 0 or an argument holds.
    Cost: 30 operations an element; reads x once and writes output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: torch.nn.functional.logsigmoid.
    """
    if torchs:
        return LOGSIGMOID.torch_signature((x,), torchs, {}, out, kernel)
    return LOGSIGMOID.call(x, out, kernel)


LOGSIGMOID = TABLE.op("logsigmoid")


@overload
def mish(x: Array, *, out: Array | None = None, kernel: str | None = None) -> Array: ...
@overload
def mish(input: Array, inplace: bool = False, *, out: Array | None = None, kernel: str | None = None) -> Array: ...
@two_names
def mish(x: Any = ABSENT, inplace: Any = False, *, out: Any = None, kernel: str | None = None, **torchs: Any) -> Any:
    """``output = x tanh(log(1 + e^x))``.

    Args:
        x: any shape and strides, float32, bfloat16 or float16.
        out: where to write: a contiguous tensor of x's shape and dtype.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` like x.

    Error bound: a running error analysis of the expression in float32, and ``u |output|``, u the unit roundoff of the
    dtype; nothing where the result is a number that x, 0 or an argument holds.
    Cost: 61 operations an element; reads x once and writes output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: Misra, Mish: A Self Regularized Non-Monotonic Activation Function, BMVC 2020 (arXiv:1908.08681).
    """
    if torchs or inplace is not False:
        return MISH.torch_signature((x,), torchs, {"inplace": inplace}, out, kernel)
    return MISH.call(x, out, kernel)


MISH = TABLE.op("mish")


def quick_gelu(x: Array, *, out: Array | None = None, kernel: str | None = None) -> Array:
    """``output = x / (1 + e^(-1.702 x))``.

    Args:
        x: any shape and strides, float32, bfloat16 or float16.
        out: where to write: a contiguous tensor of x's shape and dtype.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` like x.

    Error bound: a running error analysis of the expression in float32, and ``u |output|``, u the unit roundoff of the
    dtype; nothing where the result is a number that x, 0 or an argument holds.
    Cost: 17 operations an element; reads x once and writes output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: Hendrycks and Gimpel, Gaussian Error Linear Units (GELUs), 2016 (arXiv:1606.08415), section 2.
    """
    result: Array = QUICK_GELU.call(x, out, kernel)
    return result


QUICK_GELU = TABLE.op("quick_gelu")


@overload
def relu6(x: Array, *, out: Array | None = None, kernel: str | None = None) -> Array: ...
@overload
def relu6(input: Array, inplace: bool = False, *, out: Array | None = None, kernel: str | None = None) -> Array: ...
@two_names
def relu6(x: Any = ABSENT, inplace: Any = False, *, out: Any = None, kernel: str | None = None, **torchs: Any) -> Any:
    """``output = min(max(x, 0), 6)``.

    Args:
        x: any shape and strides, float32, bfloat16 or float16.
        out: where to write: a contiguous tensor of x's shape and dtype.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` like x.

    Error bound: a running error analysis of the expression in float32, and ``u |output|``, u the unit roundoff of the
    dtype; nothing where the result is a number that x, 0 or an argument holds.
    Cost: 4 operations an element; reads x once and writes output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: Krizhevsky, Convolutional Deep Belief Networks on CIFAR-10, 2010.
    """
    if torchs or inplace is not False:
        return RELU6.torch_signature((x,), torchs, {"inplace": inplace}, out, kernel)
    return RELU6.call(x, out, kernel)


RELU6 = TABLE.op("relu6")


@overload
def selu(x: Array, *, out: Array | None = None, kernel: str | None = None) -> Array: ...
@overload
def selu(input: Array, inplace: bool = False, *, out: Array | None = None, kernel: str | None = None) -> Array: ...
@two_names
def selu(x: Any = ABSENT, inplace: Any = False, *, out: Any = None, kernel: str | None = None, **torchs: Any) -> Any:
    """``output = scale (x where x > 0, else alpha (e^x - 1))``.

    Args:
        x: any shape and strides, float32, bfloat16 or float16.
        out: where to write: a contiguous tensor of x's shape and dtype.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` like x.

    Error bound: a running error analysis of the expression in float32, and ``u |output|``, u the unit roundoff of the
    dtype; nothing where the result is a number that x, 0 or an argument holds.
    Cost: 20 operations an element; reads x once and writes output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: Klambauer et al., Self-Normalizing Neural Networks, NeurIPS 2017 (arXiv:1706.02515).
    """
    if torchs or inplace is not False:
        return SELU.torch_signature((x,), torchs, {"inplace": inplace}, out, kernel)
    return SELU.call(x, out, kernel)


SELU = TABLE.op("selu")


@overload
def sigmoid(x: Array, *, out: Array | None = None, kernel: str | None = None) -> Array: ...
@overload
def sigmoid(*, input: Array, out: Array | None = None, kernel: str | None = None) -> Array: ...
@two_names
def sigmoid(x: Any = ABSENT, *, out: Any = None, kernel: str | None = None, **torchs: Any) -> Any:
    """``output = 1 / (1 + e^-x)``.

    Args:
        x: any shape and strides, float32, bfloat16 or float16.
        out: where to write: a contiguous tensor of x's shape and dtype.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` like x.

    Error bound: a running error analysis of the expression in float32, and ``u |output|``, u the unit roundoff of the
    dtype; nothing where the result is a number that x, 0 or an argument holds.
    Cost: 15 operations an element; reads x once and writes output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: torch.sigmoid.
    """
    if torchs:
        return SIGMOID.torch_signature((x,), torchs, {}, out, kernel)
    return SIGMOID.call(x, out, kernel)


SIGMOID = TABLE.op("sigmoid")


@overload
def silu(x: Array, *, out: Array | None = None, kernel: str | None = None) -> Array: ...
@overload
def silu(input: Array, inplace: bool = False, *, out: Array | None = None, kernel: str | None = None) -> Array: ...
@two_names
def silu(x: Any = ABSENT, inplace: Any = False, *, out: Any = None, kernel: str | None = None, **torchs: Any) -> Any:
    """``output = x / (1 + e^-x)``.

    Args:
        x: any shape and strides, float32, bfloat16 or float16.
        out: where to write: a contiguous tensor of x's shape and dtype.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` like x.

    Error bound: a running error analysis of the expression in float32, and ``u |output|``, u the unit roundoff of the
    dtype; nothing where the result is a number that x, 0 or an argument holds.
    Cost: 16 operations an element; reads x once and writes output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: Elfwing, Uchibe and Doya, Sigmoid-Weighted Linear Units, 2017 (arXiv:1702.03118).
    """
    if torchs or inplace is not False:
        return SILU.torch_signature((x,), torchs, {"inplace": inplace}, out, kernel)
    return SILU.call(x, out, kernel)


SILU = TABLE.op("silu")


@overload
def softplus(
    x: Array, beta: float = 1.0, threshold: float = 20.0, *, out: Array | None = None, kernel: str | None = None
) -> Array: ...
@overload
def softplus(
    *, input: Array, beta: float = 1.0, threshold: float = 20.0, out: Array | None = None, kernel: str | None = None
) -> Array: ...
@two_names
def softplus(
    x: Any = ABSENT,
    beta: Any = 1.0,
    threshold: Any = 20.0,
    *,
    out: Any = None,
    kernel: str | None = None,
    **torchs: Any,
) -> Any:
    """``output = log(1 + e^(beta x)) / beta, and x where beta x > threshold``.

    Args:
        x: any shape and strides, float32, bfloat16 or float16.
        beta: a number above 0, finite in float32.
        threshold: a number, finite in float32.
        out: where to write: a contiguous tensor of x's shape and dtype.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` like x.

    Error bound: a running error analysis of the expression in float32, and ``u |output|``, u the unit roundoff of the
    dtype; nothing where the result is a number that x, 0 or an argument holds.
    Cost: 34 operations an element; reads x once and writes output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: torch.nn.functional.softplus.
    """
    if torchs:
        return SOFTPLUS.torch_signature(
            (
                x,
                beta,
                threshold,
            ),
            torchs,
            {},
            out,
            kernel,
        )
    return SOFTPLUS.call(x, beta, threshold, out, kernel)


SOFTPLUS = TABLE.op("softplus")


@overload
def softshrink(x: Array, lambd: float = 0.5, *, out: Array | None = None, kernel: str | None = None) -> Array: ...
@overload
def softshrink(*, input: Array, lambd: float = 0.5, out: Array | None = None, kernel: str | None = None) -> Array: ...
@two_names
def softshrink(x: Any = ABSENT, lambd: Any = 0.5, *, out: Any = None, kernel: str | None = None, **torchs: Any) -> Any:
    """``output = x - lambd where x > lambd, x + lambd where x < -lambd, else 0``.

    Args:
        x: any shape and strides, float32, bfloat16 or float16.
        lambd: a number of at least 0, finite in float32.
        out: where to write: a contiguous tensor of x's shape and dtype.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` like x.

    Error bound: a running error analysis of the expression in float32, and ``u |output|``, u the unit roundoff of the
    dtype; nothing where the result is a number that x, 0 or an argument holds.
    Cost: 8 operations an element; reads x once and writes output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: torch.nn.functional.softshrink.
    """
    if torchs:
        return SOFTSHRINK.torch_signature(
            (
                x,
                lambd,
            ),
            torchs,
            {},
            out,
            kernel,
        )
    return SOFTSHRINK.call(x, lambd, out, kernel)


SOFTSHRINK = TABLE.op("softshrink")


@overload
def softsign(x: Array, *, out: Array | None = None, kernel: str | None = None) -> Array: ...
@overload
def softsign(*, input: Array, out: Array | None = None, kernel: str | None = None) -> Array: ...
@two_names
def softsign(x: Any = ABSENT, *, out: Any = None, kernel: str | None = None, **torchs: Any) -> Any:
    """``output = x / (1 + |x|)``.

    Args:
        x: any shape and strides, float32, bfloat16 or float16.
        out: where to write: a contiguous tensor of x's shape and dtype.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` like x.

    Error bound: a running error analysis of the expression in float32, and ``u |output|``, u the unit roundoff of the
    dtype; nothing where the result is a number that x, 0 or an argument holds.
    Cost: 3 operations an element; reads x once and writes output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: Glorot and Bengio, Understanding the Difficulty of Training Deep Feedforward Networks, AISTATS 2010.
    """
    if torchs:
        return SOFTSIGN.torch_signature((x,), torchs, {}, out, kernel)
    return SOFTSIGN.call(x, out, kernel)


SOFTSIGN = TABLE.op("softsign")


@overload
def tanh(x: Array, *, out: Array | None = None, kernel: str | None = None) -> Array: ...
@overload
def tanh(*, input: Array, out: Array | None = None, kernel: str | None = None) -> Array: ...
@two_names
def tanh(x: Any = ABSENT, *, out: Any = None, kernel: str | None = None, **torchs: Any) -> Any:
    """``output = (e^x - e^-x) / (e^x + e^-x)``.

    Args:
        x: any shape and strides, float32, bfloat16 or float16.
        out: where to write: a contiguous tensor of x's shape and dtype.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` like x.

    Error bound: a running error analysis of the expression in float32, and ``u |output|``, u the unit roundoff of the
    dtype; nothing where the result is a number that x, 0 or an argument holds.
    Cost: 20 operations an element; reads x once and writes output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: torch.tanh.
    """
    if torchs:
        return TANH.torch_signature((x,), torchs, {}, out, kernel)
    return TANH.call(x, out, kernel)


TANH = TABLE.op("tanh")


@overload
def tanhshrink(x: Array, *, out: Array | None = None, kernel: str | None = None) -> Array: ...
@overload
def tanhshrink(*, input: Array, out: Array | None = None, kernel: str | None = None) -> Array: ...
@two_names
def tanhshrink(x: Any = ABSENT, *, out: Any = None, kernel: str | None = None, **torchs: Any) -> Any:
    """``output = x - tanh(x)``.

    Args:
        x: any shape and strides, float32, bfloat16 or float16.
        out: where to write: a contiguous tensor of x's shape and dtype.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` like x.

    Error bound: a running error analysis of the expression in float32, and ``u |output|``, u the unit roundoff of the
    dtype; nothing where the result is a number that x, 0 or an argument holds.
    Cost: 21 operations an element; reads x once and writes output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: torch.nn.functional.tanhshrink.
    """
    if torchs:
        return TANHSHRINK.torch_signature((x,), torchs, {}, out, kernel)
    return TANHSHRINK.call(x, out, kernel)


TANHSHRINK = TABLE.op("tanhshrink")


@overload
def threshold(
    x: Array, threshold: float, value: float, *, out: Array | None = None, kernel: str | None = None
) -> Array: ...
@overload
def threshold(
    input: Array,
    threshold: float,
    value: float,
    inplace: bool = False,
    *,
    out: Array | None = None,
    kernel: str | None = None,
) -> Array: ...
@two_names
def threshold(
    x: Any = ABSENT,
    threshold: Any = ABSENT,
    value: Any = ABSENT,
    inplace: Any = False,
    *,
    out: Any = None,
    kernel: str | None = None,
    **torchs: Any,
) -> Any:
    """``output = x where x > threshold, else value``.

    Args:
        x: any shape and strides, float32, bfloat16 or float16.
        threshold: a number, finite in float32.
        value: a number, finite in float32.
        out: where to write: a contiguous tensor of x's shape and dtype.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` like x.

    Error bound: a running error analysis of the expression in float32, and ``u |output|``, u the unit roundoff of the
    dtype; nothing where the result is a number that x, 0 or an argument holds.
    Cost: 2 operations an element; reads x once and writes output once.
    Raises: TypeError, ValueError naming the argument; RuntimeError where ``kernel`` cannot run.
    Source: torch.nn.functional.threshold.
    """
    if torchs or inplace is not False:
        return THRESHOLD.torch_signature(
            (
                x,
                threshold,
                value,
            ),
            torchs,
            {"inplace": inplace},
            out,
            kernel,
        )
    return THRESHOLD.call(x, threshold, value, out, kernel)


THRESHOLD = TABLE.op("threshold")
