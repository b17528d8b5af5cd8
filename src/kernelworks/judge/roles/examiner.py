"""The process that a problem is looked at in: it runs the reference, guesses its answers, and says what it saw."""

from __future__ import annotations

import importlib
import math
import socket
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from kernelworks.contract.bounds import Bound, NoBoundError, bound_of
from kernelworks.contract.bounds.propagation import without_fused_kernels
from kernelworks.contract.complex_numbers import as_parts, is_inexact
from kernelworks.contract.leaves import leaves
from kernelworks.judge.inputs.dataflow import Flow
from kernelworks.judge.inputs.low_precision import FEWER_BITS, Narrow
from kernelworks.judge.inputs.sizes import fit_shape
from kernelworks.judge.problem import Problem
from kernelworks.verify.compare import compare

__all__ = ["examine_problem", "serve"]

WEIGHTS, FIRST, SECOND = 20, 21, 22  # seeds
MOST_TEXT = 400
ALIKE = 0.95  # share of elements that are one value
NO_MEMORY = ("can't allocate memory", "not enough memory")  # as torch says it
EATEN = 0.5  # share of elements that are no larger than their bound


class _Examined:
    """One problem at one shape, with a model and the answers to two draws of its inputs."""

    def __init__(self, loaded: Any, tolerance: tuple[float, float] | None) -> None:
        self.loaded, self.tolerance = loaded, tolerance
        torch.manual_seed(WEIGHTS)
        self.model = loaded.reference(*loaded.init())
        self.module = self.model if isinstance(self.model, nn.Module) else None
        self.state = {} if self.module is None else {k: v.clone() for k, v in self.module.state_dict().items()}
        self.inputs, self.others = self.draw_inputs(FIRST), self.draw_inputs(SECOND)
        self.findings: list[dict[str, Any]] = []
        self.guesses: list[dict[str, Any]] = []

    def draw_inputs(self, seed: int) -> list[Any]:
        torch.manual_seed(seed)
        return list(self.loaded.inputs())

    def run(
        self, inputs: Sequence[Any], seed: int = 1, under: AbstractContextManager[Any] | None = None
    ) -> list[Tensor]:
        """The reference's answers from the state that it began with."""
        self.restore()
        torch.manual_seed(seed)
        given = [v.clone() if isinstance(v, Tensor) else v for v in inputs]
        with torch.no_grad():
            if under is None:
                return [t.detach() for t in leaves(self.model(*given)).values()]
            with without_fused_kernels(), under:
                return [t.detach() for t in leaves(self.model(*given)).values()]

    def restore(self) -> None:
        if self.module is not None:
            with torch.no_grad():
                for name, value in self.module.state_dict().items():
                    value.copy_(self.state[name])

    def add_finding(self, kind: str, said: str, *, fatal: bool = False) -> None:
        self.findings.append({"kind": kind, "fatal": fatal, "said": said})

    # ------------------------------------------------------------ the answers themselves

    def answers(self) -> bool:
        """What can be seen of the answers without a bound; False where there is nothing to go on with."""
        self.native = self.run(self.inputs)
        if not any(t.numel() for t in self.native):
            self.add_finding("no answer", "it returns no tensor with an element", fatal=True)
            return False
        floats = [t for t in self.native if is_inexact(t.dtype)]
        lost = sum(int((~t.isfinite()).sum()) for t in floats)
        whole = sum(t.numel() for t in self.native)
        if lost:
            share = lost / whole
            said = f"{_percent(share)} of the answer is not finite: nothing tells a right one from a wrong one there"
            self.add_finding("not finite", said, fatal=share > EATEN)
        again = self.run(self.inputs, seed=2)
        if any(not _same(a, b) for a, b in zip(self.native, again, strict=True)):
            self.add_finding(
                "random", "two runs on the same inputs differ: its answer is drawn anew in each", fatal=True
            )
            return False
        return True

    def dependence(self) -> None:
        """Inputs and weights that the answer does not depend on."""
        names = [f"input {n} ({_described(v)})" for n, v in enumerate(self.inputs)]
        alike = [_same(a, b) for a, b in zip(self.inputs, self.others, strict=True) if isinstance(a, Tensor)]
        if alike and all(alike):
            self.add_finding(
                "same inputs", "get_inputs gives the same values on every draw: a stored answer passes", fatal=True
            )
            return
        for n, (value, other) in enumerate(zip(self.inputs, self.others, strict=True)):
            if not isinstance(value, Tensor) or _same(value, other):
                continue
            changed = [*self.inputs[:n], other, *self.inputs[n + 1 :]]
            try:
                answers = self.run(changed)
            except Exception:
                continue
            if all(_same(a, b) for a, b in zip(self.native, answers, strict=True)):
                self.add_finding("independent", f"the answer does not depend on {names[n]}")
        self._unread_weights()

    def _unread_weights(self) -> None:
        if self.module is None:
            return
        weights = {n: p for n, p in self.module.named_parameters() if p.requires_grad and p.is_floating_point()}
        self.restore()
        torch.manual_seed(1)
        try:
            given = [v.clone() if isinstance(v, Tensor) else v for v in self.inputs]
            with torch.enable_grad():
                answers = [t for t in leaves(self.model(*given)).values() if t.requires_grad]
                if not answers or not weights:
                    return
                wide = [as_parts(t).double() for t in answers]
                total = torch.stack([(t * torch.rand_like(t)).sum() for t in wide]).sum()
                gradients: tuple[Any, ...] = torch.autograd.grad(total, list(weights.values()), allow_unused=True)
        except Exception:
            return
        unread = [n for n, g in zip(weights, gradients, strict=True) if g is None]
        if unread:
            self.add_finding("independent", f"the answer does not depend on the weights {_listed(unread)}")

    def work(self) -> None:
        """Work that the answer does not need."""
        flow = Flow()
        self.restore()
        torch.manual_seed(1)
        given = [v.clone() if isinstance(v, Tensor) else v for v in self.inputs]
        with torch.no_grad(), without_fused_kernels(), flow:
            answers = list(leaves(self.model(*given)).values())
        buffers = [] if self.module is None else list(self.module.buffers())
        self.ops = len(flow.steps)
        for kind, ops, said in (
            ("dead code", flow.dead_ops(answers, buffers), "reaches no answer"),
            ("redundant", flow.unchanged_ops(), "changes nothing"),
            ("redundant", flow.repeated_ops(), "was computed before"),
        ):
            if ops:
                self.add_finding(
                    kind, f"{_listed(ops)} {said}: a kernel that leaves it out is quicker without being better"
                )

    # ------------------------------------------------------------ with a bound

    def derive_bound(self) -> Bound | None:
        self.restore()
        torch.manual_seed(1)
        try:
            with torch.no_grad():
                own = getattr(self.loaded, "bound", None)  # of a format that derives its bounds itself
                self.bound = bound_of(self.model, self.inputs) if own is None else own(self.inputs)
        except NoBoundError as error:
            self.add_finding("no bound", f"no bound can be derived: {error}", fatal=True)
            return None
        share, message = self.worst(self.native)
        if not share <= 1:
            self.add_finding(
                "no bound", f"the reference itself is {share:.3g} times the derived bound off: {message}", fatal=True
            )
        return self.bound

    def worst(self, answers: Sequence[Any]) -> tuple[float, str]:
        found = [
            compare(a, t, b) for a, t, b in zip(answers, self.bound.reference, self.bound.outputs, strict=True)
        ]  # fmt: skip
        return max(found, key=lambda f: (f[0] != f[0], f[0]))

    def guess(self, name: str, answers: Sequence[Tensor]) -> bool:
        share, _ = self.worst(answers)
        tolerated = None
        if self.tolerance is not None:
            atol, rtol = self.tolerance
            tolerated = all(
                torch.allclose(as_parts(a).double(), as_parts(n).double(), atol=atol, rtol=rtol, equal_nan=True)
                for a, n in zip(answers, self.native, strict=True)
            )
        finite = share if math.isfinite(share) else None
        passes = share <= 1
        self.guesses.append({"name": name, "share": finite, "passes": passes, "tolerated": tolerated})
        return passes

    def knowing_nothing(self) -> None:
        """Answers that need none of the problem's work, made from other inputs where they are made of any."""
        try:
            stale = self.run(self.others)
        except Exception as error:
            self.add_finding("raises", f"on a second draw of its inputs it raises {_text(error)}", fatal=True)
            return
        zeros = [torch.zeros_like(t) for t in self.native]
        if self.guess("zeros", zeros):
            self.add_finding("zeros", "zeros are a right answer", fatal=True)
        constants = [_filled(t, _middle(other)) for t, other in zip(self.native, stale, strict=True)]
        if self.guess("a constant", constants) and not self.guesses[0]["passes"]:
            said = ", ".join(f"{float(c.reshape(-1)[0]):.6g}" for c in constants if c.numel())
            self.add_finding("constant", f"a constant ({said}) is a right answer", fatal=True)
        for n, value in enumerate(self.inputs):
            alike = isinstance(value, Tensor) and len(self.native) == 1 and value.shape == self.native[0].shape
            if alike and self.guess(f"input {n}", [value.to(self.native[0].dtype)]):
                self.add_finding("input", f"input {n} itself is a right answer", fatal=True)
        if [t.shape for t in stale] != [t.shape for t in self.native]:
            return
        passed = any(g["passes"] for g in self.guesses)
        if self.guess("the answer to other inputs", stale) and not passed:
            self.add_finding("stale", "the answer to other inputs is right: one that is stored passes", fatal=True)

    def fewer_bits(self) -> None:
        if not any(t.is_floating_point() and t.dtype is torch.float32 for t in self.native):
            return
        for name, (round_to, products) in FEWER_BITS.items():
            try:
                answers = self.run(self.inputs, under=Narrow(round_to, products=products))
            except Exception:
                continue
            if all(_same(a, b) for a, b in zip(answers, self.native, strict=True)):
                continue  # nothing to round: no products, or values that have few bits
            if self.guess(name, answers) and not any(f["fatal"] for f in self.findings):
                self.add_finding("precision", f"{name} is within the bound: its answers do not tell fewer bits")

    def shape_of_answers(self) -> None:
        """Answers that are nearly one value, or nothing but rounding."""
        for name, reference, bound in zip(self.bound.names, self.bound.reference, self.bound.outputs, strict=True):
            if reference.numel() < 16:
                continue
            reference, bound = as_parts(reference), as_parts(bound)
            if reference.is_floating_point():
                eaten = float((bound >= reference.abs()).double().mean())
                exact = float((reference == 0).double().mean())
                if eaten - exact >= EATEN:
                    said = f"{_percent(eaten)} of {name} is no larger than rounding may make it: zeros would do there"
                    self.add_finding("rounding", said, fatal=True)
                    continue
            middle = reference.double().reshape(-1).median()
            alike = float(((reference.double() - middle).abs() <= bound).double().mean())
            if ALIKE <= alike < 1:
                self.add_finding("constant", f"{_percent(alike)} of {name} is the one value {float(middle):.6g}")


def _middle(answer: Tensor) -> float:
    flat = as_parts(answer).double().reshape(-1)
    flat = flat[flat.isfinite()]
    return float((flat.amin() + flat.amax()) / 2) if flat.numel() else 0.0


def _filled(like: Tensor, value: float) -> Tensor:
    most = torch.finfo(like.dtype).max if is_inexact(like.dtype) else value
    return torch.full_like(like, max(-most, min(most, value)) if is_inexact(like.dtype) else int(value))


def _same(a: Any, b: Any) -> bool:
    if not (isinstance(a, Tensor) and isinstance(b, Tensor)):
        return bool(a == b)
    return a.shape == b.shape and a.dtype == b.dtype and bool(((a == b) | (a.isnan() & b.isnan())).all())


def _percent(share: float) -> str:
    return f"{100 * share:.0f}%" if share > 0.01 else f"{100 * share:.2g}%"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _described(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return f"{type(value).__name__} {value!r}"[:60]


def _text(error: BaseException) -> str:
    said = str(error).strip().splitlines()
    return f"{type(error).__name__}: {said[0] if said else ''}"[:MOST_TEXT]


def examine_problem(problem: Problem, folder: Path, most_bytes: float, most_flop: float) -> dict[str, Any]:
    """What was seen of a problem, as JSON has it."""
    loader = importlib.import_module(problem.loader)
    shape, size = fit_shape(problem, loader.load, folder / "sizes", most_bytes, most_flop)
    seen: dict[str, Any] = {
        "sizes": {k: v for k, v in shape.sizes.items() if problem.shapes[0].sizes.get(k) != v},
        "bytes": size.bytes if size else 0.0, "flop": size.flop if size else 0.0, "ops": 0,
        "inputs": [], "outputs": [], "findings": [], "guesses": [], "bound": [], "unknown": [],
    }  # fmt: skip
    try:
        examination = _Examined(loader.load(problem, shape, folder), problem.tolerance)
        go_on = examination.answers()
    except Exception as error:
        large = isinstance(error, MemoryError) or any(words in str(error) for words in NO_MEMORY)
        seen["findings"] = [
            {"kind": "too large", "fatal": False, "said": f"it takes more memory than there is: {_text(error)}"}
            if large
            else {"kind": "raises", "fatal": True, "said": f"the reference raises {_text(error)}"}
        ]
        return seen
    seen["inputs"] = [_described(v) for v in examination.inputs]
    seen["outputs"] = [_described(t) for t in examination.native]
    if size is None:
        tensors = [*examination.inputs, *examination.native, *examination.state.values()]
        seen["bytes"] = float(sum(t.nbytes for t in tensors if isinstance(t, Tensor)))
    steps: list[Callable[[], Any]] = [examination.work]
    if go_on:
        steps.append(examination.dependence)
        if examination.derive_bound() is not None:
            steps += [examination.knowing_nothing, examination.shape_of_answers, examination.fewer_bits]
            seen["bound"], seen["unknown"] = list(examination.bound.why), list(examination.bound.unknown)
    for step in steps:
        step()
    seen["ops"] = examination.ops
    seen["findings"], seen["guesses"] = examination.findings, examination.guesses
    return seen


def serve(control: socket.socket, papers: dict[str, Any], folder: Path) -> None:
    """Answers once."""
    from kernelworks.judge.process.ipc import say

    torch.set_num_threads(papers["threads"])
    try:
        say(control, examine_problem(papers["problem"], folder, papers["most_bytes"], papers["most_flop"]))
    except Exception as error:
        say(control, {"raised": _text(error)})
