"""The process of the truth: it has the problem, draws its inputs from seeds that nobody else is told, and says of each
element of the answer what it is in float64 and how far rounding alone may carry it."""

from __future__ import annotations

import contextlib
import importlib
import io
import math
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from kernelworks.judge.bounds import Bound, Unbounded, bound_of
from kernelworks.judge.bounds.run import simple
from kernelworks.judge.draws import DRAWS, like_given, no_ones_and_zeros
from kernelworks.judge.flow import Flow
from kernelworks.judge.here import Here
from kernelworks.judge.values import differentiable, given_leaves, gradients, leaves, packed
from kernelworks.judge.wire import hear, say, tensors_into
from kernelworks.observe.timeline import surveyed
from kernelworks.work.costs import work

__all__ = ["Court", "serve"]

MOST_TEXT = 4000
MOST_SURVEYED = 20_000  # calls of a reference whose work is counted

# ---------------------------------------------------------------- the court


class Court:
    """A problem at one shape, and its reference with weights."""

    def __init__(self, papers: dict[str, Any], folder: Path) -> None:
        torch.set_num_threads(papers["threads"])
        problem, shape = papers["problem"], papers["shape"]
        self.loaded = importlib.import_module(problem.loader).load(problem, shape, folder)
        self.fixed = frozenset(getattr(self.loaded, "fixed", ()))
        torch.manual_seed(papers["weights"])
        self.init = self.loaded.init()
        torch.manual_seed(papers["weights"])
        with no_ones_and_zeros() if shape.weighted else contextlib.nullcontext([0]) as drawn:
            self.reference = self.loaded.reference(*self.init)
        self.weighted = drawn[0]
        self.module = self.reference if isinstance(self.reference, nn.Module) else None
        self.state = {} if self.module is None else {k: v.clone() for k, v in self.module.state_dict().items()}

    def given(self) -> bytes:
        """What a candidate is made with: the arguments of its constructor and the reference's weights."""
        file = io.BytesIO()
        torch.save({"init": self.init, "state": self.state}, file)
        return file.getvalue()

    def inputs(self, seed: int, draw: str) -> list[Any]:
        torch.manual_seed(seed)
        given = list(self.loaded.inputs())
        how, generator = DRAWS[draw], torch.Generator().manual_seed(seed ^ 0x5DEECE66D)
        if how is None:
            return given
        torch.manual_seed(seed ^ 0x1B873593)
        others = self.loaded.inputs()
        return [
            like_given(value, other, how, generator) if number not in self.fixed and differentiable(value) else value
            for number, (value, other) in enumerate(zip(given, others, strict=True))
        ]

    @contextlib.contextmanager
    def as_it_was(self, seed: int) -> Iterator[None]:
        """The same random numbers in each run of a case, and the state that the module began with."""
        torch.manual_seed(seed)
        try:
            yield
        finally:
            if self.module is not None:
                with torch.no_grad():
                    for name, value in self.module.state_dict().items():
                        value.copy_(self.state[name])

    def bound(self, args: list[Any], seed: int) -> Bound:
        with torch.no_grad(), self.as_it_was(seed):
            own = getattr(self.loaded, "bound", None)  # of a format that derives its bounds itself
            return bound_of(self.reference, args) if own is None else own(args)

    def flows(self, args: list[Any], seed: int) -> list[Tensor]:
        """A gradient to send into each floating answer, none where no answer has a graph."""
        if hasattr(self.loaded, "bound"):
            return []  # it bounds no gradients
        with torch.enable_grad(), self.as_it_was(seed):
            found = [
                o for o in leaves(self.reference(*given_leaves(args))) if isinstance(o, Tensor) and o.requires_grad
            ]
        generator = torch.Generator().manual_seed(seed ^ 0x2545F491)
        return [torch.randn(o.shape, generator=generator).to(o.dtype) for o in found]

    def gradients(self, args: list[Any], flows: list[Tensor], seed: int) -> tuple[Bound, list[str]]:
        """Of every floating input, then of every parameter: their truth and bound, and what each is of."""
        named = {} if self.module is None else {n: p for n, p in self.module.named_parameters() if p.requires_grad}
        inputs = [number for number, value in enumerate(args) if differentiable(value)]

        def run(*given: Any) -> list[Tensor]:
            *values, sent = given
            return gradients(self.reference, values, sent, list(named.values()))

        with self.as_it_was(seed):
            found = bound_of(run, [*args, flows])
        return found, [*(f"input {number}" for number in inputs), *named]


def _own_share(bound: Bound) -> list[float]:
    """Of each answer of the reference as its users run it: its worst error as a share of the bound."""
    found = []
    for given, exact, most in zip(bound.native, bound.truth, bound.outputs, strict=True):
        if not given.numel():
            found.append(0.0)
            continue
        error = (given.double() - exact.double()).abs()
        error[given.isnan() & exact.isnan() | (given.double() == exact.double())] = 0.0
        share = torch.where(error == 0, 0.0, error / most.clamp_min(torch.finfo(torch.float64).tiny))
        found.append(float(share.nan_to_num(nan=math.inf).max()))
    return found


def _case(court: Court, asked: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """One case in memory: inputs, the truth and the bound, of large answers at places that are drawn."""
    seed = int(asked["seed"])
    args = court.inputs(seed, asked["draw"])
    held: list[Tensor] = []
    structure = [packed(value, held) for value in args]
    given = [value.detach().contiguous() for value in held]
    names = None
    if asked["backward"]:
        flows = court.flows(args, seed)
        if not flows:
            raise LookupError("no answer of the reference has a graph")
        found, names = court.gradients(args, flows, seed)
        structure.append(packed(flows, given))
    else:
        found = court.bound(args, seed)
    generator = torch.Generator().manual_seed(int(asked["places"]))
    truths, bounds, places = [], [], []
    for exact, most in zip(found.truth, found.outputs, strict=True):
        flat, its = exact.detach().reshape(-1), most.reshape(-1)
        if flat.numel() > asked["most"]:
            at = torch.randint(flat.numel(), (int(asked["most"]),), generator=generator)
            flat, its = flat[at], its[at]
        else:
            at = torch.arange(flat.numel())
        truths.append(flat.to(torch.float64) if flat.is_floating_point() else flat)
        bounds.append(its.to(torch.float64))
        places.append(at)
    memory, spots = tensors_into([*given, *truths, *bounds, *places])
    shapes = [(list(t.shape), str(t.dtype).removeprefix("torch.")) for t in found.native]
    said = {
        "inputs": structure, "spots": spots, "outputs": shapes, "names": list(names or found.names),
        "own": _own_share(found), "why": list(found.why)[:20], "unknown": list(found.unknown)[:20],
        "finite": [bool(t.isfinite().all()) for t in truths],
    }  # fmt: skip
    return said, memory.handed_on()


def _work(court: Court, asked: dict[str, Any]) -> dict[str, Any]:
    """What the reference's calls must do, each by itself, and the bytes of what goes in and comes out of the whole."""
    args = court.inputs(int(asked["seed"]), "given")
    flow = Flow()
    with torch.no_grad():
        trace, _ = surveyed(lambda: court.reference(*args), MOST_SURVEYED)
        with simple(), flow:
            outputs = [o for o in leaves(court.reference(*args)) if isinstance(o, Tensor)]
    held: list[Tensor] = []
    for value in args:
        packed(value, held)
    calls, lost = [], []
    for call in trace.calls:
        its = work(call)
        if its is None:
            lost.append(call.name)
        else:
            calls.append([call.name, its.flop, its.transcendental, its.dtype, its.function])
    weights = [] if court.module is None else [*court.module.parameters()]
    sizes = [sum({t.untyped_storage().data_ptr(): t.nbytes for t in of}.values()) for of in (held, weights)]
    return {
        "calls": calls[:500], "uncounted": sorted(set(lost))[:20], "read": sizes,
        "needed": flow.needed(outputs, held), "written": sum(t.nbytes for t in outputs),
    }  # fmt: skip


def serve(control: socket.socket, papers: dict[str, Any], folder: Path) -> None:
    """Answers until the other end is gone."""
    with Here() if papers["problem"].device == "cuda" else contextlib.nullcontext():
        _served(control, papers, folder)


def _served(control: socket.socket, papers: dict[str, Any], folder: Path) -> None:
    court = None
    while True:
        asked, _ = hear(control)
        descriptors: tuple[int, ...] = ()
        said: dict[str, Any]
        try:
            if court is None:
                court = Court(papers, folder)
            if asked["do"] == "given":
                said, descriptors = {"weighted": court.weighted}, (_bytes(court.given()),)
            elif asked["do"] == "case":
                said, descriptor = _case(court, asked)
                descriptors = (descriptor,)
            else:
                said = _work(court, asked)
        except Unbounded as error:
            said = {"unbounded": str(error)[:MOST_TEXT]}
        except Exception as error:  # the problem's own
            said = {"raised": f"{type(error).__name__}: {error}"[:MOST_TEXT]}
        say(control, said, descriptors)
        for number in descriptors:
            os.close(number)


def _bytes(data: bytes) -> int:
    descriptor = os.memfd_create("given", os.MFD_CLOEXEC)
    with os.fdopen(os.dup(descriptor), "wb") as file:
        file.write(data)
    return descriptor
