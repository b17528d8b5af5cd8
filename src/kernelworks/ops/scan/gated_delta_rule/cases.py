"""Inputs of gated_delta_rule: sequences around every chunk, states in and out, gates that close, keys of any length."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Generator, Tensor

from kernelworks.contract import Case
from kernelworks.contract.cases import normal

__all__ = ["BENCH_CASES", "CASES", "DEVICE_BENCH_CASES", "DEVICE_CASES", "case", "make"]

BF16, F32 = torch.bfloat16, torch.float32
Change = Callable[[dict[str, Any], Generator], None]


def make(
    generator: Generator, dtype: torch.dtype, batch: int, steps: int, heads: int, value_heads: int, dim: int,
    value_dim: int, *, state: bool = True, final: bool = True, scale: float | None = None, raw: bool = False,
    wide_gates: bool = True,
) -> dict[str, Any]:  # fmt: skip
    """Keys of length 1 (``raw``: as they come, for the op to normalise), gates and rates as models have them, in
    float32 or in the inputs' dtype."""

    def keys() -> Tensor:
        x = torch.randn(batch, steps, heads, dim, generator=generator)
        return (x if raw else x / x.norm(dim=-1, keepdim=True)).to(dtype)

    many = (batch, steps, value_heads)
    g = -torch.rand(many, generator=generator).pow(3) * 2.0
    beta = torch.rand(many, generator=generator)
    own = F32 if wide_gates else dtype
    return {
        "q": keys(),
        "k": keys(),
        "v": normal(generator, dtype, batch, steps, value_heads, value_dim),
        "g": g.to(own),
        "beta": beta.to(dtype),
        "scale": scale,
        "initial_state": torch.randn(batch, value_heads, dim, value_dim, generator=generator) if state else None,
        "output_final_state": final,
        "use_qk_l2norm_in_kernel": raw,
    }


def case(
    batch: int, steps: int, heads: int, value_heads: int, dim: int, value_dim: int, name: str = "",
    change: Change | None = None, calls: tuple[int, ...] = (), gradients: bool = True, layouts: bool = False,
    dtypes: tuple[torch.dtype, ...] = (F32, BF16, torch.float16), **options: Any,
) -> Case:  # fmt: skip
    sizes = (batch, steps, heads, value_heads, dim, value_dim)

    def made(generator: Generator, dtype: torch.dtype) -> dict[str, Any]:
        args = make(generator, dtype, *sizes, **options)
        if change is not None:
            change(args, generator)
        return args

    said = ", ".join(filter(None, (name, " ".join(f"{n}={v}" for n, v in options.items()))))
    cut = f", in calls of {'+'.join(map(str, calls))}" if calls else ""
    shape = f"B={batch} T={steps} H={heads}/{value_heads} K={dim} V={value_dim}"
    return Case(
        f"{shape}{', ' * bool(said)}{said}{cut}", made, gradients=gradients, layouts=layouts, dtypes=dtypes, calls=calls
    )  # fmt: skip


def _put(name: str, value: float, every: int = 1) -> Change:
    def change(args: dict[str, Any], generator: Generator) -> None:
        args[name][:, ::every] = value

    return change


def _alternating(args: dict[str, Any], generator: Generator) -> None:
    """Keys that are the same or opposite: each step reads what the one before wrote."""
    args["k"][:, 1:] = args["k"][:, :1]
    args["k"][:, 1::2] *= -1.0


def _long_keys(args: dict[str, Any], generator: Generator) -> None:
    args["k"] *= 1.3
    args["q"] *= 7.0


def _cases() -> Iterator[Case]:
    for steps in (0, 1, 2, 3, 15, 16, 17, 31, 33, 63, 64, 65, 130):  # around every chunk
        yield case(1, steps, 1, 2, 16, 20, layouts=steps in (3, 65), gradients=steps < 70)
    for dim, value_dim in ((1, 1), (3, 5), (8, 15), (17, 16), (33, 64), (64, 33), (128, 65)):
        yield case(2, 5, 1, 1, dim, value_dim)
        yield case(1, 18, 2, 2, dim, value_dim, raw=True, gradients=False)
    yield case(2, 70, 2, 6, 20, 24, raw=True, wide_gates=False)
    yield case(0, 3, 1, 1, 4, 4)
    yield case(2, 3, 0, 0, 4, 4)
    yield case(2, 7, 2, 4, 8, 8, state=False)
    yield case(2, 7, 2, 4, 8, 8, state=False, final=False)
    yield case(2, 0, 1, 2, 8, 8, state=False, gradients=False)  # nothing flows into the state that depends on an input
    yield case(4, 1, 8, 16, 1, 1)  # few roundings, many numbers
    yield case(2, 2, 8, 16, 2, 1)
    yield case(1, 9, 1, 1, 8, 8, final=False, scale=0.0)
    yield case(1, 9, 1, 1, 8, 8, scale=-1.5)
    for name, change in (
        ("no rate", _put("beta", 0.0)), ("full rate", _put("beta", 1.0)), ("twice the rate", _put("beta", 2.0)),
        ("no decay", _put("g", 0.0)), ("gone at once", _put("g", -1e4)), ("gone each third", _put("g", -300.0, 3)),
        ("never there", _put("g", -torch.inf, 7)), ("one key", _alternating), ("long keys", _long_keys),
        ("no keys", _put("k", 0.0)),
    ):  # fmt: skip
        yield case(1, 40, 1, 2, 16, 16, name, change, gradients=name != "never there")
        yield case(1, 80, 1, 1, 8, 16, name, change, gradients=False, dtypes=(F32,))
    # On its own state: a prompt, then step by step; in pieces that no chunk divides; all at once behind one step.
    for calls in ((20, 1, 1, 1), (1,) * 6, (33, 0, 31, 2), (1, 70), (64, 64, 1)):
        yield case(1, sum(calls), 1, 2, 16, 20, calls=calls, gradients=False, dtypes=(F32, BF16))
    yield case(2, 90, 2, 2, 16, 16, calls=(45, 44, 1), gradients=False, state=False, raw=True, dtypes=(F32,))


CASES = tuple(_cases())
DEVICE_CASES = (
    case(1, 300, 4, 8, 128, 128, raw=True, gradients=False),
    case(8, 1, 16, 32, 128, 128, raw=True, gradients=False),
    case(2, 130, 2, 2, 256, 256, gradients=False),
    case(2, 50, 2, 4, 128, 100, raw=True),
)
# As Qwen3-Next has it: a prompt, a step of one sequence, a step of eight.
BENCH_CASES = (
    case(1, 1024, 4, 8, 128, 128, raw=True, wide_gates=True, dtypes=(F32,)),
    case(1, 1, 16, 32, 128, 128, raw=True, wide_gates=True, dtypes=(F32, BF16)),
    case(8, 1, 16, 32, 128, 128, raw=True, wide_gates=True, dtypes=(BF16,)),
)
DEVICE_BENCH_CASES = (
    case(1, 8192, 16, 32, 128, 128, raw=True, dtypes=(BF16,)),
    case(1, 1, 16, 32, 128, 128, raw=True, dtypes=(BF16,)),
    case(64, 1, 16, 32, 128, 128, raw=True, dtypes=(BF16,)),
)
