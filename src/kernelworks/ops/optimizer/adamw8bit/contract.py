"""What adamw8bit_ promises."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Generator, Tensor

from kernelworks.contract import FLOATS, UNIT_ROUNDOFF, Case, Contract, Cost, Request, rounding
from kernelworks.contract.arguments import Arguments, Flag, check_of, errors_of
from kernelworks.contract.cases import draw, normal
from kernelworks.contract.numbers import Ordinal, Real
from kernelworks.contract.results import Equations, Result
from kernelworks.contract.tensor_argument import T
from kernelworks.ops.optimizer.adamw8bit.codes import AVERAGE, ROOT, decode, encode, in_blocks, scales_of, spread

__all__ = ["ARGUMENTS", "CONTRACT", "STATES", "reference", "step_values"]

U = UNIT_ROUNDOFF[torch.float32]
BYTES, F32 = (torch.uint8,), (torch.float32,)
SCALES = T("S", dtypes=F32, contiguous=True, where=("S == (N + 255) // 256",))
ARGUMENTS: Arguments = {
    "param": T("N", contiguous=True), "grad": T("N", like="param", contiguous=True),
    "exp_avg": T("N", dtypes=BYTES, contiguous=True), "exp_avg_scale": SCALES,
    "rms": T("N", dtypes=BYTES, contiguous=True), "rms_scale": SCALES,
    "step": Ordinal(), "lr": Real(1e-3, least=0.0), "beta1": Real(0.9, least=0.0, below=1.0),
    "beta2": Real(0.999, least=0.0, below=1.0), "eps": Real(1e-8, least=0.0), "weight_decay": Real(0.01, least=0.0),
    "maximize": Flag(),
}  # fmt: skip
STATES = ("exp_avg", "exp_avg_scale", "rms", "rms_scale")
MUTATES = ("param", *STATES)
USUAL = {"step": 3, "lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.01, "maximize": False}


def step_values(
    param: Tensor, grad: Tensor, exp_avg: Tensor, exp_avg_scale: Tensor, rms: Tensor, rms_scale: Tensor, *, step: int,
    lr: float, beta1: float, beta2: float, eps: float, weight_decay: float, maximize: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """In float64 the parameter after the step, and m and r before they are rounded to codes."""
    p, g, n = param.double(), grad.double() * (-1 if maximize else 1), param.shape[0]
    m = beta1 * decode(exp_avg, AVERAGE) * spread(exp_avg_scale.double(), n) + (1 - beta1) * g
    v = beta2 * (decode(rms, ROOT) * spread(rms_scale.double(), n)).square() + (1 - beta2) * g.square()
    r = v.sqrt()
    update = m / (1 - beta1**step) / (r / (1 - beta2**step) ** 0.5 + eps)
    return p - lr * weight_decay * p - lr * update, m, r


def reference(**call: Any) -> tuple[Tensor, ...]:
    p, m, r = step_values(**call)
    scales = (scales_of(m, AVERAGE), scales_of(r, ROOT))
    codes = [encode(x / spread(s, len(x)), k) for x, s, k in zip((m, r), scales, (AVERAGE, ROOT), strict=True)]
    return p, codes[0], scales[0], codes[1], scales[1]


# ---------------------------------------------------------------- bounds


def _errors(args: Mapping[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
    """How far off the parameter, m and r may be in float32. See README.md."""
    (p, m, r), n = step_values(**args), args["param"].shape[0]
    before = (decode(args["exp_avg"], AVERAGE) * spread(args["exp_avg_scale"].double(), n)).abs()
    terms = args["beta1"] * before + (1 - args["beta1"]) * args["grad"].double().abs()
    correction = (1 - args["beta2"] ** args["step"]) ** 0.5
    rate = args["lr"] * correction / (1 - args["beta1"] ** args["step"])
    under = r + args["eps"] * correction
    moved = torch.where(under > 0, rate * (4 * terms + 8 * m.abs()) / under, 0.0)
    return U * (2 * args["param"].double().abs() + moved + p.abs()), 4 * U * terms + 2.0**-148, 4 * U * r + 2.0**-148


def bound(
    args: dict[str, Any], outputs: tuple[Tensor, ...], dtype: torch.dtype, given: Mapping[str, Any]
) -> tuple[Tensor, ...]:
    errors = _errors({**args, "exp_avg": given["exp_avg"], "rms": given["rms"]})
    scales = []
    for scale, error, k in ((outputs[2], errors[1], AVERAGE), (outputs[4], errors[2], ROOT)):
        most = in_blocks(error).amax(1) if len(error) else scale
        scales.append(2 * rounding(scale, torch.float32) + most / (2 - 2.0**-k))
    none = [torch.zeros(o.shape, dtype=torch.float64) for o in (outputs[1], outputs[3])]
    p = rounding(outputs[0].abs() + errors[0], dtype) + errors[0]
    return p, none[0], scales[0], none[1], scales[1]


def nearest(name: str, mantissa: int) -> Equations:
    """A code is the nearest one to the exact number beside the scale that was returned, or as near but for what float32
    may have been off."""

    def residuals(args: Mapping[str, Any], outputs: Mapping[str, Any]) -> dict[str, tuple[Tensor, Tensor]]:
        place = 1 if name == "exp_avg" else 2
        exact, off = step_values(**args)[place], _errors(args)[place]
        codes, scale = outputs[name], spread(outputs[f"{name}_scale"], len(exact))
        some = (scale > 0) & scale.isfinite()
        unit = torch.where(some, scale, 1.0)
        far, least = (
            (decode(c, mantissa) * unit - exact).abs() for c in (codes, encode(exact / unit, mantissa))
        )  # fmt: skip
        limit = least + 2 * (off + 2 * U * exact.abs())
        no_zero = torch.where(some & (codes != 128 if mantissa == AVERAGE else True), 0, codes).double()
        return {
            f"{name} is the nearest code": (torch.where(some, far, 0.0), torch.where(some, limit, 0.0)),
            f"no code of {name} where it is 0": (no_zero, torch.zeros_like(no_zero)),
        }

    return Equations(residuals)


# ---------------------------------------------------------------- cost and cases


def cost(request: Request) -> Cost:
    args = request.args
    states = sum(args[name].nbytes for name in STATES)
    n = args["param"].numel
    return Cost(40.0 * n, 0.0, args["param"].nbytes + args["grad"].nbytes + states, args["param"].nbytes + states)


def dims(request: Request) -> dict[str, int]:
    return {"N": request.args["param"].numel}


def _make(
    generator: Generator, dtype: torch.dtype, n: int, *, kind: str = "normal", fresh: bool = False, **numbers: Any
) -> dict[str, Any]:
    made: dict[str, Any] = {"param": normal(generator, dtype, n), "grad": draw(kind, generator, dtype, n)}
    m, r = (normal(generator, torch.float32, n, scale=scale) for scale in (0.1, 0.3))
    sizes = 0.0 if fresh else 10.0 ** -torch.randint(0, 6, (n,), generator=generator).float()  # some near 0
    for name, k, state in (("exp_avg", AVERAGE, m * sizes), ("rms", ROOT, (r * sizes).abs())):
        scale = scales_of(state, k)
        made |= {name: encode(state / spread(scale, n), k), f"{name}_scale": scale}
    return made | USUAL | ({"step": 1} if fresh else {}) | numbers


def _case(name: str, n: int, **how: Any) -> Case:
    return Case(name, lambda g, d: _make(g, d, n, **how))


TRIES: dict[str, dict[str, Any]] = {
    "first step": {"fresh": True}, "late step": {"step": 100_000}, "no decay": {"weight_decay": 0.0},
    "strong decay": {"weight_decay": 0.5, "lr": 0.1}, "maximize": {"maximize": True}, "large eps": {"eps": 0.5},
    "other betas": {"beta1": 0.5, "beta2": 0.9}, "no memory": {"beta1": 0.0, "beta2": 0.0},
    "zeros at first": {"fresh": True, "kind": "zeros"},
}  # fmt: skip
KINDS = ("large_mean", "tiny", "huge", "subnormal", "constant", "zeros", "nan", "inf")
CASES = (
    *(_case(f"N={n}", n) for n in (0, 1, 7, 16, 17, 255, 256, 257, 511, 513, 1000, 4097)),
    *(_case(kind, 600, kind=kind) for kind in KINDS),
    *(_case(name, 600, **numbers) for name, numbers in TRIES.items()),
    _case("several threads", 70_001),
)


def _timed(*sizes: int, dtypes: tuple[torch.dtype, ...] = F32) -> tuple[Case, ...]:
    return tuple(Case(f"N={n}", lambda g, d, n=n: _make(g, d, n), dtypes=dtypes) for n in sizes)


CONTRACT = Contract(
    name="adamw8bit_", family="optimizer",
    formula="m <- b1 m + (1-b1) g, r <- sqrt(b2 r^2 + (1-b2) g^2), p <- p - lr wd p - lr/(1-b1^t) m / "
    "(r / sqrt(1-b2^t) + eps), m and r kept in 8 bits with a scale for each 256",
    source="Dettmers, Lewis, Shleifer and Zettlemoyer, 8-bit Optimizers via Block-wise Quantization, 2022; "
    "Loshchilov and Hutter, Decoupled Weight Decay Regularization, 2019",
    outputs=MUTATES, mutates=MUTATES, differentiable=(),
    results={name: Result(name, relation=nearest(name, k)) for name, k in (("exp_avg", AVERAGE), ("rms", ROOT))}
    | {f"{name}_scale": Result(f"{name}_scale") for name in ("exp_avg", "rms")},
    check=check_of(ARGUMENTS), reference=reference, bound=bound, cost=cost, dims=dims, cases=CASES,
    bench_cases=_timed(65_536, 4_194_304), device_cases=_timed(100_003, dtypes=FLOATS),
    device_bench_cases=_timed(2**22, 2**26),
    errors=errors_of(ARGUMENTS),
)  # fmt: skip
