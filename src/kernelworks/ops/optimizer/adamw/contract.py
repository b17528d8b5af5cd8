"""What adamw_ promises. A step has no gradient: the op changes its arguments, and nothing flows back through it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Generator, Tensor

from kernelworks.contract import (  # fmt: skip
    UNIT_ROUNDOFF,
    Case,
    Contract,
    Cost,
    Request,
    need_64_bits,
    need_dtype,
    need_same,
    need_tensor,
    rounding,
)
from kernelworks.contract.cases import LENGTHS, draw, normal
from kernelworks.contract.results import Result

__all__ = ["CONTRACT", "adamw_step"]

U32 = UNIT_ROUNDOFF[torch.float32]
SMALLEST = 2.0**-149  # of float32
USUAL = {"step": 3, "lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.01, "maximize": False}
LISTS = ("params", "grads", "exp_avgs", "exp_avg_sqs")


def _check_tensors(lists: dict[str, Any]) -> None:
    for name, tensors in lists.items():
        if not isinstance(tensors, (list, tuple)):
            raise TypeError(f"{name} must be a list of tensors, got {type(tensors).__name__}")
        if len(tensors) != len(lists["params"]):
            raise ValueError(f"{name} must hold one tensor a parameter, {len(lists['params'])}; got {len(tensors)}")
    for i, param in enumerate(lists["params"]):
        need_tensor(f"params[{i}]", param)
        need_dtype(f"params[{i}]", param)
        for name in LISTS:
            tensor, called = lists[name][i], f"{name}[{i}]"
            need_tensor(called, tensor)
            if tuple(tensor.shape) != tuple(param.shape):
                raise ValueError(
                    f"{called} must have params[{i}]'s shape {list(param.shape)}, got {list(tensor.shape)}"
                )
            if name == "grads":
                need_same(called, tensor, f"params[{i}]", param)
            else:
                need_dtype(called, tensor, (param.dtype, torch.float32))
                strides = tensor.stride() if isinstance(tensor, Tensor) else tensor.stride
                if any(step == 0 and size > 1 for size, step in zip(tensor.shape, strides, strict=True)):
                    raise ValueError(f"{called} is written to and must not be expanded: strides {list(strides)}")
        if lists["exp_avgs"][i].dtype != lists["exp_avg_sqs"][i].dtype:
            raise TypeError(f"exp_avg_sqs[{i}] must have exp_avgs[{i}]'s dtype {lists['exp_avgs'][i].dtype}")


def check(
    params: Any, grads: Any, exp_avgs: Any, exp_avg_sqs: Any, step: Any, lr: Any, beta1: Any, beta2: Any, eps: Any,
    weight_decay: Any, maximize: Any,
) -> None:  # fmt: skip
    _check_tensors(dict(zip(LISTS, (params, grads, exp_avgs, exp_avg_sqs), strict=True)))
    if isinstance(step, bool) or not isinstance(step, int):
        raise TypeError(f"step must be an int, got {type(step).__name__}")
    if step < 1:
        raise ValueError(f"step must be at least 1, got {step}")
    scalars = {"lr": lr, "beta1": beta1, "beta2": beta2, "eps": eps, "weight_decay": weight_decay}
    for name, value in scalars.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(f"{name} must be a float, got {type(value).__name__}")
        need_64_bits(name, value)
        if not 0.0 <= value < math.inf:
            raise ValueError(f"{name} must be at least 0 and finite, got {value}")
        if name.startswith("beta") and value >= 1.0:
            raise ValueError(f"{name} must be below 1, got {value}")
    if not isinstance(maximize, bool):
        raise TypeError(f"maximize must be a bool, got {type(maximize).__name__}")


def adamw_step(
    p: Tensor, g: Tensor, m: Tensor, v: Tensor, step: int, lr: float, beta1: float, beta2: float, eps: float,
    weight_decay: float, maximize: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Parameter and state after one step: the definition."""
    g = -g if maximize else g
    m = beta1 * m + (1.0 - beta1) * g
    v = beta2 * v + (1.0 - beta2) * g * g
    root = torch.sqrt(v / (1.0 - beta2**step))
    return p * (1.0 - lr * weight_decay) - lr / (1.0 - beta1**step) * m / (root + eps), m, v


def reference(
    params: Sequence[Tensor], grads: Sequence[Tensor], exp_avgs: Sequence[Tensor], exp_avg_sqs: Sequence[Tensor],
    *scalars: Any, **named: Any,
) -> tuple[Any, ...]:  # fmt: skip
    lists = zip(params, grads, exp_avgs, exp_avg_sqs, strict=True)
    made = [adamw_step(*tensors, *scalars, **named) for tensors in lists]
    return tuple(tuple(one[i] for one in made) for i in range(3))


def _bounds(
    p: Tensor, g: Tensor, m: Tensor, v: Tensor, after: tuple[Tensor, ...], dtypes: tuple[torch.dtype, torch.dtype],
    args: dict[str, Any],
) -> tuple[Tensor, ...]:  # fmt: skip
    step, lr, beta1, beta2 = args["step"], args["lr"], args["beta1"], args["beta2"]
    new_p, new_m, new_v = after
    terms_m = beta1 * m.abs() + (1.0 - beta1) * g.abs()
    error_m = 4.0 * U32 * terms_m + SMALLEST
    error_v = 5.0 * U32 * new_v + 3.0 * SMALLEST
    # The root of v: relative to itself where v is not tiny, else at most the root of the error.
    scale = 1.0 / math.sqrt(1.0 - beta2**step)
    root = torch.sqrt(new_v)
    error_root = torch.minimum(error_v.sqrt(), torch.where(root > 0.0, error_v / (2.0 * root), math.inf))
    below = root * scale + args["eps"]
    error_below = error_root * scale + 6.0 * U32 * below
    rate = lr / (1.0 - beta1**step)
    update = rate * new_m / below
    smallest_below = (below - error_below).clamp(min=0.0)
    error_update = (rate * error_m + SMALLEST + update.abs() * error_below) / smallest_below + 4.0 * U32 * update.abs()
    decayed = p * (1.0 - lr * args["weight_decay"])
    error_p = U32 * (3.0 * decayed.abs() + new_p.abs() + update.abs()) + error_update + SMALLEST
    own, state = dtypes  # the state may be float32 beside 16-bit parameters: it is rounded to its own dtype
    return rounding(new_p, own) + error_p, rounding(new_m, state) + error_m, rounding(new_v, state) + error_v


def bound(
    args: dict[str, Any], outputs: tuple[Tensor, ...], dtype: torch.dtype, *, given: dict[str, Any]
) -> tuple[Any, ...]:
    n = len(args["params"])
    made = []
    for i in range(n):
        p, g, m, v = (args[name][i] for name in LISTS)
        dtypes = dtype, given["exp_avgs"][i].dtype
        made.append(_bounds(p, g, m, v, (outputs[i], outputs[n + i], outputs[2 * n + i]), dtypes, args))
    return tuple(tuple(one[i] for one in made) for i in range(3))


def cost(request: Request) -> Cost:
    lists = [request.args[name] for name in LISTS]
    n = sum(t.numel for t in lists[0])
    read = sum(t.nbytes for tensors in lists for t in tensors)
    return Cost(14.0 * n, 2.0 * n, read, read - sum(t.nbytes for t in lists[1]))


def dims(request: Request) -> dict[str, int]:
    params = request.args["params"]
    return {"tensors": len(params), "elements": sum(t.numel for t in params)}


def _make(
    generator: Generator,
    dtype: torch.dtype,
    shapes: Sequence[tuple[int, ...]],
    *,
    kind: str = "normal",
    state_dtype: torch.dtype | None = None,
    fresh: bool = False,
    **scalars: Any,
) -> dict[str, Any]:
    state = state_dtype or dtype
    made: dict[str, Any] = {
        "params": [normal(generator, dtype, *s) for s in shapes],
        "grads": [draw(kind, generator, dtype, *s) for s in shapes],
        "exp_avgs": [normal(generator, state, *s, scale=0.0 if fresh else 0.1) for s in shapes],
        "exp_avg_sqs": [normal(generator, state, *s, scale=0.0 if fresh else 0.1).square() for s in shapes],
    }
    return made | USUAL | scalars


def _case(name: str, *shapes: tuple[int, ...], layouts: bool = False, **how: Any) -> Case:
    return Case(name, lambda g, d: _make(g, d, shapes, **how), layouts=layouts)


CASES = (
    *(_case(f"N={n}", (n,), (3, n), layouts=n in (17, 128)) for n in LENGTHS),
    *(
        _case(kind, (33,), (5, 103), kind=kind)
        for kind in ("large_mean", "tiny", "huge", "subnormal", "constant", "zeros", "inf", "negative_inf", "nan")
    ),
    _case("no tensors"),
    _case("three tensors", (7,), (4, 9, 5), (2, 3, 4, 5), layouts=True),
    _case("first step", (67,), fresh=True, step=1),
    _case("late step", (67,), step=100_000),
    _case("float32 state", (67,), (5, 40), state_dtype=torch.float32),
    _case("large eps", (67,), eps=0.5),
    _case("strong decay", (67,), weight_decay=0.5, lr=0.1),
    _case("no decay", (67,), weight_decay=0.0),
    _case("maximize", (67,), maximize=True),
    _case("other betas", (67,), beta1=0.5, beta2=0.9),
    _case("no memory", (67,), beta1=0.0, beta2=0.0),
    _case("several threads", (1031, 67)),
)

DEVICE_CASES = (
    _case("many tensors", *((16 * i, 40) for i in range(1, 300)), (7,), (3, 5)),
    _case("large tensors, float32 state", (2048, 1024), (4099, 513), state_dtype=torch.float32),
)

BENCH_CASES = tuple(
    Case(f"{count} x {m}x{n}", lambda g, d, s=((m, n),) * count: _make(g, d, s), dtypes=(torch.float32,))
    for count, m, n in ((1, 2048, 2048), (16, 384, 384))
)

# On a GPU: sizes that fill one, and one that only its host time limits.
DEVICE_BENCH_CASES = tuple(
    Case(f"{count} x {m}x{n}", lambda g, d, s=((m, n),) * count: _make(g, d, s), dtypes=(torch.float32,))
    for count, m, n in ((16, 4096, 4096), (64, 1024, 1024))
)


def _with(**changed: Any) -> Callable[[], dict[str, Any]]:
    def make() -> dict[str, Any]:
        return {name: [torch.ones(4)] for name in LISTS} | USUAL | changed

    return make


ERRORS = (
    ("params is a tensor", _with(params=torch.ones(1, 4)), TypeError, "params must be a list"),
    ("a gradient is missing", _with(grads=[]), ValueError, "grads must hold one tensor a parameter, 1; got 0"),
    ("a gradient is None", _with(grads=[None]), TypeError, "grads[0] must be a torch.Tensor"),
    ("a gradient of another shape", _with(grads=[torch.ones(5)]), ValueError, "grads[0] must have params[0]'s shape"),
    ("a gradient of another dtype", _with(grads=[torch.ones(4).half()]), TypeError, "grads[0] must have params[0]'s"),
    ("state of integers", _with(exp_avgs=[torch.ones(4).long()]), TypeError, "exp_avgs[0] must have dtype"),
    ("expanded state", _with(exp_avgs=[torch.ones(1).expand(4)]), ValueError, "must not be expanded"),
    ("step 0", _with(step=0), ValueError, "step must be at least 1"),
    ("step is a float", _with(step=1.5), TypeError, "step must be an int"),
    ("negative lr", _with(lr=-1.0), ValueError, "lr must be at least 0"),
    ("beta2 of 1", _with(beta2=1.0), ValueError, "beta2 must be below 1"),
    ("eps is a string", _with(eps="1e-8"), TypeError, "eps must be a float"),
)

CONTRACT = Contract(
    name="adamw_",
    family="optimizer",
    formula="m <- b1 m + (1-b1) g, v <- b2 v + (1-b2) g^2, p <- p (1-lr wd) - lr/(1-b1^t) m / (sqrt(v/(1-b2^t)) + eps)",
    source="Loshchilov and Hutter, Decoupled Weight Decay Regularization, 2019 (arXiv:1711.05101)",
    outputs=("params", "exp_avgs", "exp_avg_sqs"),
    results={name: Result(name) for name in ("exp_avgs", "exp_avg_sqs")},
    differentiable=(),
    check=check,
    reference=reference,
    bound=bound,
    cost=cost,
    dims=dims,
    cases=CASES,
    bench_cases=BENCH_CASES,
    device_cases=DEVICE_CASES,
    device_bench_cases=DEVICE_BENCH_CASES,
    mutates=("params", "exp_avgs", "exp_avg_sqs"),
    errors=ERRORS,
)
