"""What an op template derived for an op, in words. ``kernelworks map OP`` prints it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import torch

from kernelworks.contract import Case, Contract

__all__ = ["derived_parts"]

OWN = "the op package's own"
# Fields of a contract that an op template makes, by the name under which they are told.
PARTS = {
    "check": "check", "errors": "refused calls", "bound": "bound", "gradient_bound": "bound of gradients",
    "cost": "cost", "dims": "dims", "cases": "cases", "device_cases": "cases of a GPU", "bench_cases": "bench",
    "device_bench_cases": "bench of a GPU",
}  # fmt: skip


def derived_parts(op: Any) -> dict[str, str]:
    """Each part that the op's template derived, and what came of it; empty for an op of no op template."""
    if op.template is None:
        return {}
    contract: Contract = op.contract
    own = {
        f.name
        for f in dataclasses.fields(Contract)
        if f.name in PARTS and getattr(contract, f.name) is not getattr(op.template.contract, f.name)
    }
    words = {
        "check": "; ".join(f"{name}: {kind}" for name, kind in getattr(op.template, "arguments", {}).items()),
        "errors": "; ".join(what for what, *_ in contract.errors),
        "cost": _cost(op),
        "dims": ", ".join(contract.dims(_request(op))),
        "cases": _named(contract.cases),
        "device_cases": _named(contract.device_cases),
        "bench_cases": _named(contract.bench_cases),
        "device_bench_cases": _named(contract.device_bench_cases),
    }
    found = {PARTS[name]: f"{text} ({OWN})" if name in own else text for name, text in words.items() if text}
    found |= {PARTS[name]: OWN for name in own - words.keys()}
    found |= {pass_: definition.schema for pass_, definition in op.passes.items()}
    found["mutants"] = ", ".join(mutant.name for mutant in op.mutants)
    more = getattr(op.template, "template_parts", None)
    return found | (more(op) if more else {})


def _request(op: Any) -> Any:
    case = op.contract.bench_cases[0]
    given = case.make(torch.Generator().manual_seed(0), case.dtypes[0])
    return op.request("forward", tuple(given.get(name) for name in op.passes["forward"].names))


def _cost(op: Any) -> str:
    """One call of the first bench case, an element of the first tensor."""
    request = _request(op)
    cost, first = op.contract.cost(request), next(iter(request.args.values()))
    each = [v / first.numel for v in (cost.flop, cost.transcendental, cost.bytes_read, cost.bytes_written)]
    dtype = str(first.dtype).removeprefix("torch.")
    return "{:g} flop, {:g} elementary functions, {:g} bytes in, {:g} out".format(*each) + f" an element of {dtype}"


def _named(cases: Iterable[Case]) -> str:
    names = [case.name for case in cases]
    return f"{len(names)}: {'; '.join(names)}"
