"""Odd tensors and derivatives of every kind through each op's own choice of a kernel, beside torch's functions.

    python benchmarks/h200_trust.py [--device cuda] [--only gelu,softmax] [--together] [--json FILE]

What the tests below `tests/trust` hold on a CPU, on a GPU: tensors with a negative bit, zero tensors, views of a
conjugate, `out=` and versions, gradients that come with such bits, expanded, infinite or NaN, second derivatives, jvp,
vmap, `torch.func.grad`, a trace and a compiled call. What is wrong is asked of float64: a result may be off by
rounding, or by a few times what torch's own is.

Each op runs in a process of its own (with `--together` all in one), and the device is waited for after every call,
first of torch's function, then of ours: a fault of the device names the call that made it, and whose. A process that
such a fault ends is followed by another, which leaves the rest of that case out where the call was torch's.

Without a GPU the Triton kernels can be asked, in its interpreter:

    TRITON_INTERPRET=1 python benchmarks/h200_trust.py --device cpu --kernel triton --only linear_cross_entropy
"""

from __future__ import annotations

import argparse
import concurrent.futures
import functools
import hashlib
import json
import os
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import kernelworks  # noqa: F401  fills OPS
from kernelworks.build.kernels import as_float64
from kernelworks.contract import Case
from kernelworks.dispatch.op import OPS, Op
from kernelworks.records.json_text import format_lines
from kernelworks.verify.reference import flat_outputs, to_device

CASES = 3  # of each op's, evenly spread over those that have gradients, the first always among them
CLOSE = {
    torch.float32: 2e-4,
    torch.bfloat16: 3e-2,
}  # of the largest magnitude: torch rounds in between where ours does not
TIMES = 4  # torch's own error: two right orders of one sum are seldom further apart
PROCESSES = 8  # at most, one behind the other where faults of the device end them
FAULT = "CUDA error"
LONGEST_S, SHORTEST_S = 240.0, 20.0  # that one process may take; with less left none is begun
TOO_LONG = -1000  # in place of an exit code
DECLINED = "cannot run"

Call = Callable[[Callable[..., Any]], Any]
Said = dict[str, str]


def spread(op: Op) -> list[Case]:
    usable = [case for case in op.contract.cases if case.gradients]
    return [usable[i * (len(usable) - 1) // (CASES - 1)] for i in range(CASES)]


def difference(got: Any, want: Any, true: Any, dtype: torch.dtype) -> str:
    """What is wrong beyond what rounding explains, or torch's own error; empty where nothing is.

    ``want`` is what torch's function gives in ``dtype``, ``true`` what it gives in float64.
    """
    for a, b, t in zip(flat_outputs(got), flat_outputs(want), flat_outputs(true), strict=True):
        if a.dtype != b.dtype or a.shape != b.shape:
            return f"{a.dtype}{list(a.shape)}, torch {b.dtype}{list(b.shape)}"
        finite = [x.isfinite() for x in (a, b, t)]
        if ((finite[0] != finite[1]) & (finite[0] != finite[2])).any():  # torch's products smear NaN over neighbours
            return "{} finite numbers, torch {}, in float64 {}".format(*(int(f.sum()) for f in finite))
        counts = finite[0] & finite[1] & finite[2]
        reference = t.double()[counts]
        if not reference.numel():
            continue
        ours, theirs = ((x.double()[counts] - reference).abs().max().item() for x in (a, b))
        scale = reference.abs().max().item()
        if not ours <= max(CLOSE[dtype] * max(scale, 1e-3), TIMES * theirs):
            return f"off by {ours:.3g} of {scale:.3g}, torch by {theirs:.3g}"
    return ""


class Checks:
    """The checks of one op on one case: ``each()`` gives names and calls, to be made with torch's function and ours.

    ``wide``: the same numbers in float64, for torch's function alone.
    """

    def __init__(self, op: Op, case: Case, dtype: torch.dtype, device: str, *, wide: bool = False) -> None:
        made = case.make(torch.Generator().manual_seed(1), dtype)
        self.op, self.dtype, self.device = op, dtype, device
        self.args = [to_device(made.get(name), device) for name in op.passes["forward"].names]
        if wide:
            self.args = as_float64(self.args)
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
            output = curved(output)
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
            "infinite gradient": lambda o: torch.full_like(o, torch.inf),
            "NaN gradient": lambda o: torch.full_like(o, torch.nan),
        }
        yield "forward", lambda f: self.called(f, {})
        yield "negative bit", lambda f: self.called(f, {i: torch._neg_view(-self.args[i]) for i in self.floats})
        if self.dtype is torch.float32:
            yield "conjugate", lambda f: self.called(f, {i: conjugate(self.args[i]) for i in self.floats})
        zero = {
            i: torch._efficientzerotensor(self.args[i].shape, dtype=self.args[i].dtype, device=self.device)
            for i in self.leaves[:1]
        }
        yield "zero tensor", lambda f: self.called(f, zero)
        for name, flow in flows.items():
            yield name, lambda f, flow=flow: self.gradients(f, flow)
        yield "second derivative", lambda f: self.gradients(f, torch.ones_like, twice=True)
        yield "jvp", lambda f: torch.func.jvp(self.of_leaves(f), xs, tuple(torch.ones_like(x) for x in xs))
        yield "func.grad", lambda f: torch.func.grad(lambda *a: curved(self.of_leaves(f)(*a)))(*xs)
        yield "vmap", lambda f: torch.vmap(self.of_leaves(f))(*(torch.stack([x, x]) for x in xs))
        yield "trace", lambda f: traced(self.of_leaves(f), xs)
        yield "compiled", lambda f: torch.compile(self.of_leaves(f), backend="aot_eager", fullgraph=True)(*xs)


def curved(output: Tensor) -> Tensor:
    """A number with curvature, whose slope is the same for outputs that are a rounding apart, large ones too."""
    return (output.float().square() + 1).sqrt().sum()


def conjugate(x: Tensor) -> Tensor:
    return torch.complex(torch.zeros_like(x), -x).conj().imag


def traced(function: Callable[..., Tensor], xs: tuple[Tensor, ...]) -> Tensor:
    with torch.no_grad():
        found: Tensor = torch.jit.trace(function, xs, check_trace=False)(*(1.5 * x for x in xs))
    return found


def versions(checks: Checks, ours: Callable[..., Any]) -> str:
    """Whether what a call writes into says so to autograd."""
    op, args = checks.op, checks.args
    if op.contract.mutates:
        written = args[op.passes["forward"].names.index(op.contract.mutates[0])]
        before = [t._version for t in written]
        ours(*args)
        return "" if all(t._version > v for t, v in zip(written, before, strict=True)) else "versions stand still"
    outputs = flat_outputs(ours(*args))
    if len(outputs) > 1:
        return ""
    out = torch.empty_like(outputs[0], memory_format=torch.contiguous_format)
    for _ in range(2):
        before = out._version
        ours(*args, out=out)
        if out._version <= before:
            return "the version of out stands still"
    return difference(out, outputs[0], outputs[0], checks.dtype)


@dataclass
class Job:
    """One check: what it is, with what, its call (none for the versions), and its call in float64."""

    said: Said
    checks: Checks
    call: Call | None = None
    true: Call | None = None


def jobs(names: Sequence[str], device: str, cases: Sequence[Case] | None = None) -> Iterator[Job]:
    for op in (OPS[name] for name in names):
        for case in cases or spread(op):
            for dtype in (d for d in CLOSE if d in case.dtypes):
                checks, wide = Checks(op, case, dtype, device), Checks(op, case, dtype, device, wide=True)
                head = {"op": op.name, "case": case.name, "dtype": str(dtype)[6:]}
                yield Job(head | {"check": "versions"}, checks)
                if not op.contract.mutates:
                    for (title, call), (_, true) in zip(checks.each(), wide.each(), strict=True):
                        yield Job(head | {"check": title}, checks, call, true)


def check(job: Job, kernel: str | None, tell: Callable[[Said], None], wait: Callable[[], None]) -> Said:
    """What a check came to; ``tell`` is told whose call is made before it is."""
    said, op = job.said | {"wrong": ""}, job.checks.op
    tell(said | {"calls": "torch"})
    want = true = None
    try:
        if job.call and job.true:
            want, true = job.call(op.composite), job.true(op.composite)
        wait()
    except RuntimeError as error:
        return said | {"torch": str(error)[:200]}  # what torch cannot do is not asked of us
    tell(said | {"calls": "kernelworks"})
    ours = functools.partial(op, kernel=kernel)
    try:
        wrong = difference(job.call(ours), want, true, job.checks.dtype) if job.call else versions(job.checks, ours)
        wait()
    except Exception as error:
        wrong = f"{type(error).__name__}: {str(error)[:200]}"
        if kernel and DECLINED in wrong:
            return said | {"declined": wrong}  # as a kernel that is asked for by name should if it cannot serve
    return said | {"wrong": wrong}


def all_checks(
    names: Sequence[str], device: str, cases: Sequence[Case] | None = None, *,
    kernel: str | None = None, after: int = 0,
    left: Sequence[str] = (), tell: Callable[[Said], None] = lambda said: None,
) -> list[Said]:  # fmt: skip
    """All checks of these ops but the first ``after`` and those of the cases ``left`` out ("op: case"): what each came
    to. Ends with a fault of the device."""
    found: list[Said] = []
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    for number, job in enumerate(jobs(names, device, cases)):
        job.said["number"] = str(number)
        if number < after or f"{job.said['op']}: {job.said['case']}" in left:
            continue
        found.append(check(job, kernel, tell, wait))
        torch._dynamo.reset()
        tell(found[-1])
        if FAULT in str(found[-1]):
            break  # nothing runs on this device any more
    return found


def _ended(command: list[str], seconds: float) -> tuple[int, str, str]:
    """Exit code, output and errors of a process; one that hangs is ended."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            output, errors = process.communicate(timeout=seconds)
            return process.returncode, output, errors
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
            return TOO_LONG, output, f"not at its end after {seconds:.0f} s"


def followed(names: Sequence[str], device: str, kernel: str | None, seconds: float) -> list[Said]:
    """All checks of these ops in another process, and in one more behind each that ends one, for ``seconds`` in all."""
    results: list[Said] = []
    until = time.monotonic() + seconds
    after, left = 0, []
    for _ in range(PROCESSES):
        command = [sys.executable, __file__, "--ops", ",".join(names), "--after", str(after), "--device", device]
        command += ["--kernel", kernel] if kernel else []
        command += [f"--left={case}" for case in left]
        ended, output, errors = _ended(command, max(1.0, until - time.monotonic()))
        lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
        results += [line for line in lines if "calls" not in line]
        if ended == 0:
            return results
        last = lines[-1] if lines else {"op": ",".join(names), "check": "start", "wrong": "", "calls": "kernelworks"}
        if "calls" in last:  # it died in there
            last["torch" if last["calls"] == "torch" else "wrong"] = f"{FAULT}: died: {errors.strip()[-300:]}"
            results.append(last)
        if not lines:
            return results
        after = int(last["number"]) + 1
        if ended == TOO_LONG:
            break
        if "torch" in last:
            left.append(f"{last['op']}: {last['case']}")
    return [*results, {"op": ",".join(names), "check": "the rest", "wrong": "not made"}]


def on_record(file: Path, head: dict[str, Any], only: set[str], *, within: float, again: bool) -> dict[str, Any]:
    """The checks of the ops that the record lacks or whose sources are others now, on a GPU: an op's go on record as
    the last of them is made. What there is no time for is named in ``not_done``."""
    end, lock = time.monotonic() + within, threading.Lock()
    before = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    same = bool(before) and all(before[name] == head[name] for name in ("machine", "versions"))
    now = {name: sources_of(name, head["sources"]) for name in OPS}
    ops = {name: held for name, held in before.get("ops", {}).items() if same and held["sources"] == now.get(name)}
    todo = [name for name in OPS if (not only or name in only) and (again or name not in ops)]

    def record() -> dict[str, Any]:
        return {"ops": {n: ops[n] for n in OPS if n in ops}, "not_done": [n for n in OPS if n not in ops]}

    def one(name: str) -> None:
        left = end - time.monotonic()
        if left < SHORTEST_S:
            return
        begin = time.monotonic()
        checks = followed([name], "cuda", None, min(LONGEST_S, left))
        if time.monotonic() >= end and checks[-1]["check"] == "the rest":
            return  # cut off: it tells nothing about what was not made
        held = {"sources": now[name], "date": head["date"], "commit": head["commit"], "checks": checks}
        with lock:
            ops[name] = {**held, "seconds": round(time.monotonic() - begin, 1)}
            scratch = file.with_suffix(f".{os.getpid()}")
            scratch.write_text(format_lines({**head, **record()}) + "\n", encoding="utf-8")
            scratch.replace(file)
        wrong = [f"{c['case']} {c['dtype']} {c['check']}: {c['wrong']}" for c in checks if c.get("wrong")]
        print(f"trust of {name}: {len(checks)} checks, {len(wrong)} wrong {'; '.join(wrong[:3])[:400]}", flush=True)

    with concurrent.futures.ThreadPoolExecutor(max(1, (os.cpu_count() or 4) - 4)) as pool:
        list(pool.map(one, todo))
    return record()


def sources_of(name: str, sources: dict[str, str]) -> str:
    """One hash of an op's kernels, and of how they are checked."""
    kernels = [f"{kernel} {digest}" for kernel, digest in sorted(sources.items()) if kernel.split(".")[0] == name]
    return hashlib.sha256("\n".join([*kernels, Path(__file__).read_text(encoding="utf-8")]).encode()).hexdigest()[:12]


def measure(
    only: set[str], device: str = "cuda", *, together: bool = False,
    kernel: str | None = None, seconds: float = LONGEST_S
) -> dict[str, Any]:  # fmt: skip
    """All checks of the ops named, or of all of them."""
    names = [name for name in OPS if not only or name in only]
    groups = [names] if together else [[name] for name in names]
    with concurrent.futures.ThreadPoolExecutor(len(groups)) as pool:
        found = pool.map(lambda group: followed(group, device, kernel, seconds), groups)
    return {"checks": [said for group in found for said in group]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", default="", help="these ops alone")
    parser.add_argument("--together", action="store_true", help="all ops in one process")
    parser.add_argument("--seconds", type=float, default=LONGEST_S, help="that one process may take")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--ops", help="these ops in this process, as the others are started")
    parser.add_argument("--kernel", help="this kernel, not the one that the dispatcher chooses")
    parser.add_argument("--after", type=int, default=0, help="with --ops: how many checks to leave out")
    parser.add_argument("--left", action="append", default=[], help="with --ops: a case to leave out")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    if given.ops:
        said = all_checks(
            given.ops.split(","), given.device, kernel=given.kernel, after=given.after, left=given.left,
            tell=lambda said: print(json.dumps(said), flush=True),
        )  # fmt: skip
        return int(bool(said) and FAULT in str(said[-1]))
    only = set(filter(None, given.only.split(",")))
    found = measure(only, given.device, together=given.together, kernel=given.kernel, seconds=given.seconds)
    wrong = [r for r in found["checks"] if r.get("wrong")]
    faults = [r for r in found["checks"] if FAULT in r.get("torch", "")]
    for r in (*wrong, *faults):
        print(" ".join(f"{k}={v!r}" for k, v in r.items()))
    cannot, declined = (sum(kind in r for r in found["checks"]) for kind in ("torch", "declined"))
    print(f"{len(found['checks'])} checks, {len(wrong)} wrong, {declined} declined, {cannot} that torch cannot do")
    if given.json:
        given.json.write_text(format_lines(found) + "\n", encoding="utf-8")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
