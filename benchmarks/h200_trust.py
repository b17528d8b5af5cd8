"""Odd tensors and derivatives of every kind through each op's own choice of a row, beside torch's functions.

    python benchmarks/h200_trust.py [--device cuda] [--only gelu,softmax] [--json FILE]

What the tests below `tests/trust` hold on a CPU, on a GPU: tensors with a negative bit, zero tensors, views of a
conjugate, `out=` and versions, gradients that come with such bits or expanded, second derivatives, jvp, vmap,
`torch.func.grad`, a trace and a compiled call. Each op runs in a process of its own, and the device is waited for after
every call, first of torch's function, then of ours: a fault of the device names the call that made it, and whose.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import kernelworks  # noqa: F401  fills OPS
from kernelworks.contract import Case
from kernelworks.op import OPS, Op
from kernelworks.prove.truth import flat_outputs, placed

CASES = 3  # of each op's, evenly spread over those that have gradients, the first always among them
CLOSE = {
    torch.float32: 2e-4,
    torch.bfloat16: 3e-2,
}  # of the largest magnitude: torch rounds in between where ours does not
SECONDS = 240  # for one op

Call = Callable[[Callable[..., Any]], Any]


def spread(op: Op) -> list[Case]:
    usable = [case for case in op.contract.cases if case.gradients]
    return [usable[i * (len(usable) - 1) // (CASES - 1)] for i in range(CASES)]


def difference(got: Any, want: Any, dtype: torch.dtype) -> str:
    """What is different, beyond what rounding explains; empty where nothing is."""
    for a, b in zip(flat_outputs(got), flat_outputs(want), strict=True):
        if a.dtype != b.dtype or a.shape != b.shape:
            return f"{a.dtype}{list(a.shape)}, torch {b.dtype}{list(b.shape)}"
        if not b.numel():
            continue
        scale = b.double().nan_to_num(0, 0, 0).abs().max().item()
        off = (a.double() - b.double()).nan_to_num(0, 0, 0).abs().max().item()
        if not torch.equal(a.isfinite(), b.isfinite()) or not off <= CLOSE[dtype] * max(scale, 1e-3):
            return f"off by {off:.3g} of {scale:.3g}"
    return ""


class Checks:
    """The checks of one op on one case: ``each()`` gives names and calls, to be made with torch's function and ours."""

    def __init__(self, op: Op, case: Case, dtype: torch.dtype, device: str) -> None:
        made = case.make(torch.Generator().manual_seed(1), dtype)
        self.op, self.dtype, self.device = op, dtype, device
        self.args = [placed(made.get(name), device) for name in op.passes["forward"].names]
        floats = [i for i, a in enumerate(self.args) if isinstance(a, Tensor) and a.is_floating_point()]
        names = op.passes["forward"].names
        self.floats, self.leaves = floats, [i for i in floats if names[i] in op.contract.differentiable]

    def called(self, function: Callable[..., Any], new: dict[int, Any]) -> Any:
        return function(*(new.get(i, a) for i, a in enumerate(self.args)))

    def of_leaves(self, function: Callable[..., Any]) -> Callable[..., Tensor]:
        """The first output as a function of what is differentiable."""
        return lambda *xs: flat_outputs(self.called(function, dict(zip(self.leaves, xs, strict=True))))[0]

    def gradients(self, function: Callable[..., Any], flow: Callable[[Tensor], Tensor], *, twice: bool = False) -> Any:
        own = [self.args[i].clone().requires_grad_() for i in self.leaves]
        output = self.of_leaves(function)(*own)
        if twice:
            output = output.float().sin().sum()
        found = torch.autograd.grad(output, own, flow(output), create_graph=twice, allow_unused=True)
        if twice:
            total = torch.stack([g.float().square().sum() for g in found if g is not None]).sum()
            found = torch.autograd.grad(total, own, allow_unused=True)
        return tuple(torch.zeros_like(x) if g is None else g for g, x in zip(found, own, strict=True))

    def each(self) -> Iterator[tuple[str, Call]]:
        xs = tuple(self.args[i] for i in self.leaves)
        flows = {
            "gradients": torch.ones_like,
            "negative gradient": lambda o: torch._neg_view(torch.ones_like(o)),
            "zero tensor as gradient": lambda o: torch._efficientzerotensor(o.shape, dtype=o.dtype, device=o.device),
            "expanded gradient": lambda o: torch.ones((), dtype=o.dtype, device=o.device).expand(o.shape),
        }
        yield "forward", lambda f: self.called(f, {})
        yield "negative bit", lambda f: self.called(f, {i: torch._neg_view(-self.args[i]) for i in self.floats})
        if self.dtype is torch.float32:
            yield "conjugate", lambda f: self.called(f, {i: conjugate(self.args[i]) for i in self.floats})
        zero = {
            i: torch._efficientzerotensor(self.args[i].shape, dtype=self.dtype, device=self.device)
            for i in self.leaves[:1]
        }
        yield "zero tensor", lambda f: self.called(f, zero)
        for name, flow in flows.items():
            yield name, lambda f, flow=flow: self.gradients(f, flow)
        yield "second derivative", lambda f: self.gradients(f, torch.ones_like, twice=True)
        yield "jvp", lambda f: torch.func.jvp(self.of_leaves(f), xs, tuple(torch.ones_like(x) for x in xs))
        yield "func.grad", lambda f: torch.func.grad(lambda *a: self.of_leaves(f)(*a).float().sin().sum())(*xs)
        yield "vmap", lambda f: torch.vmap(self.of_leaves(f))(*(torch.stack([x, x]) for x in xs))
        yield "trace", lambda f: traced(self.of_leaves(f), xs)
        yield "compiled", lambda f: torch.compile(self.of_leaves(f), backend="aot_eager", fullgraph=True)(*xs)


def conjugate(x: Tensor) -> Tensor:
    return torch.complex(torch.zeros_like(x), -x).conj().imag


def traced(function: Callable[..., Tensor], xs: tuple[Tensor, ...]) -> Tensor:
    with torch.no_grad():
        found: Tensor = torch.jit.trace(function, xs, check_trace=False)(*(1.5 * x for x in xs))
    return found


def versions(checks: Checks) -> str:
    """Whether what a call writes into says so to autograd."""
    op, args = checks.op, checks.args
    if op.contract.mutates:
        written = args[op.passes["forward"].names.index(op.contract.mutates[0])]
        before = [t._version for t in written]
        op(*args)
        return "" if all(t._version > v for t, v in zip(written, before, strict=True)) else "versions stand still"
    outputs = flat_outputs(op(*args))
    if len(outputs) > 1:
        return ""
    out = torch.empty_like(outputs[0], memory_format=torch.contiguous_format)
    for _ in range(2):
        before = out._version
        op(*args, out=out)
        if out._version <= before:
            return "the version of out stands still"
    return difference(out, outputs[0], checks.dtype)


def check(name: str, device: str, cases: Sequence[Case] | None = None) -> list[dict[str, str]]:
    """All checks of one op: what each came to."""
    op, found = OPS[name], []
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    for case in cases or spread(op):
        for dtype in (d for d in CLOSE if d in case.dtypes):
            checks = Checks(op, case, dtype, device)
            jobs = [] if op.contract.mutates else list(checks.each())
            for title, call in [("versions", None), *jobs]:
                said = {"op": name, "case": case.name, "dtype": str(dtype)[6:], "check": title, "wrong": ""}
                print(json.dumps(said), flush=True)  # the last line of a process that dies says where
                try:
                    want = call(op.composite) if call else None
                    wait()
                except RuntimeError as error:
                    said["torch"] = str(error)[:200]  # what torch cannot do is not asked of us
                    found.append(said)
                    if "CUDA error" in str(error):
                        return found  # of torch's own making; nothing runs on this device any more
                    continue
                try:
                    said["wrong"] = difference(call(op), want, dtype) if call else versions(checks)
                    wait()
                except Exception as error:
                    said["wrong"] = f"{type(error).__name__}: {str(error)[:200]}"
                torch._dynamo.reset()
                found.append(said)
    return found


def measure(only: set[str], device: str = "cuda") -> dict[str, Any]:
    """All checks of the ops named, or of all of them."""
    running = {
        name: subprocess.Popen(
            [sys.executable, __file__, "--op", name, "--device", device], stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
        )
        for name in OPS if not only or name in only
    }  # fmt: skip
    results: list[dict[str, str]] = []
    for name, process in running.items():
        output, errors = process.communicate(timeout=SECONDS)
        lines = output.strip().splitlines()
        last = json.loads(lines[-1]) if lines else {"op": name, "check": "start"}
        results += last if isinstance(last, list) else [last | {"wrong": f"died: {errors.strip()[-300:]}"}]
    return {"checks": results}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", default="", help="these ops alone")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--op", help="one op in this process, as the others are started")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    if given.op:
        print(json.dumps(check(given.op, given.device)))
        return 0
    found = measure(set(filter(None, given.only.split(","))), given.device)
    wrong = [r for r in found["checks"] if r.get("wrong")]
    for r in (*wrong, *(r for r in found["checks"] if "CUDA error" in r.get("torch", ""))):
        print(" ".join(f"{k}={v!r}" for k, v in r.items()))
    cannot = sum("torch" in r for r in found["checks"])
    print(f"{len(found['checks'])} checks, {len(wrong)} wrong, {cannot} that torch cannot do either")
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
