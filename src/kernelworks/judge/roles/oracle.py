"""The process of the reference: it has the problem, draws its inputs from seeds that nobody else is told, and says of
each element of the answer what it is in float64 and how far rounding alone may carry it.

Inputs are drawn on the CPU. The run in float64 is made where candidates work, in this process's own memory there: a GPU
does at once what takes cores minutes. A reference that does not run there is run on the CPU.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import importlib
import io
import math
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from kernelworks.contract.bounds import Bound, NoBoundError, bound_of
from kernelworks.contract.bounds.call import inner
from kernelworks.contract.bounds.propagation import without_fused_kernels
from kernelworks.contract.complex_numbers import as_parts, wide_dtype
from kernelworks.judge.inputs.cuda_on_cpu import CudaOnCpuMode
from kernelworks.judge.inputs.dataflow import Flow
from kernelworks.judge.inputs.draws import DRAWS, LOST, OUTSIDE, about_constants, like_given, no_ones_and_zeros
from kernelworks.judge.inputs.places import places_of
from kernelworks.judge.inputs.special_values import LOOSE, SPECIAL_DRAWS, special_inputs, without_end
from kernelworks.judge.inputs.values import given_leaves, gradients, is_differentiable, leaves, pack_value
from kernelworks.judge.process.ipc import hear, say, tensors_into
from kernelworks.judge.process.malloc import give_back, keep_freed
from kernelworks.judge.roles.device import Host
from kernelworks.profile.cost.calls import work
from kernelworks.profile.timeline import survey_run

__all__ = ["Oracle", "of_other_forms", "serve"]

MOST_TEXT = 4000
MOST_BUFFERS, MOST_OF_BUFFER = 32, 64  # that are compared after a call, and elements of each
OTHER_FORM = 2  # roundings that an honest formula has beyond the reference's: a division at the end, not on the way
OWN_ERRORS = 16.0  # of the reference's own error, within which another one's is
MOST_SURVEYED = 20_000  # calls of a reference whose work is counted

PATIENCE_S, MOMENT_S = 15.0, 0.3  # for a device's memory
IDLE_S = 0.2  # after which nothing more is asked for the moment

T = TypeVar("T")

# ---------------------------------------------------------------- the court


class Oracle:
    """A problem at one shape, and its reference with weights."""

    def __init__(self, papers: dict[str, Any], folder: Path) -> None:
        torch.set_num_threads(papers["threads"])
        problem, shape = papers["problem"], papers["shape"]
        self.for_cuda, self.device = problem.device == "cuda", papers["device"]
        self.left = ""  # why the reference is run on the CPU if candidates do not work there
        if self.device.apart:
            self.device.start()
            torch.backends.cudnn.enabled = (
                False  # its convolutions may be by transforms, as in ``without_fused_kernels``
            )
        with self._at_home():
            self.loaded = importlib.import_module(problem.loader).load(problem, shape, folder)
            self.fixed = frozenset(getattr(self.loaded, "fixed", ()))
            torch.manual_seed(papers["weights"])
            self.init = self.loaded.init()
            torch.manual_seed(papers["weights"])
            with no_ones_and_zeros(papers["weights"]) if shape.weighted else contextlib.nullcontext():
                self.reference = self.loaded.reference(*self.init)
        self.module = self.reference if isinstance(self.reference, nn.Module) else None
        self.weighted = 0  # elements of weights that have other numbers than one and the same
        if shape.weighted and self.module is not None:
            self.weighted = about_constants(self.module, papers["weights"])
        self.state = {} if self.module is None else {k: v.clone() for k, v in self.module.state_dict().items()}

    # ------------------------------------------------------------ where it is made

    def _at_home(self) -> contextlib.AbstractContextManager[Any]:
        return CudaOnCpuMode() if self.for_cuda else contextlib.nullcontext()

    def run(self, args: list[Any], found: Callable[[list[Any]], T]) -> T:
        """What ``found`` makes of the arguments, where candidates work; on the CPU, from then on, where it does not go
        there: a reference may hold tensors that nobody moves, and need more memory than a GPU has."""
        until = time.monotonic() + PATIENCE_S
        while self.device.apart:
            try:
                if self.module is not None:
                    self.device.to_device(self.module)
                return found([_all(value, self.device.to_device) for value in args])
            except Exception as error:  # of any kind: what is the problem's own comes again on the CPU
                full = isinstance(error, torch.OutOfMemoryError)
                said = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:160]}"
            self.device.release()
            if full and time.monotonic() < until:  # others' references are in its memory, for a moment
                time.sleep(MOMENT_S)
            else:
                self.device, self.left = Host(), said
        return self.at_home(lambda: found(args))

    def at_home(self, found: Callable[[], T]) -> T:
        """On the CPU, whatever candidates work on."""
        if self.module is not None:
            self.module.to("cpu")
        with self._at_home():
            return found()

    # ------------------------------------------------------------ what is asked

    def candidate_state(self) -> bytes:
        """What a candidate is made with: the arguments of its constructor and the reference's weights."""
        file = io.BytesIO()
        torch.save({"init": self.init, "state": self.state}, file)
        return file.getvalue()

    def inputs(self, seed: int, draw: str) -> list[Any]:
        with self._at_home():
            torch.manual_seed(seed)
            given = list(self.loaded.inputs())
            how, generator = DRAWS.get(draw), torch.Generator().manual_seed(seed ^ 0x5DEECE66D)
            if how is None and draw not in SPECIAL_DRAWS:
                return given
            torch.manual_seed(seed ^ 0x1B873593)
            others = self.loaded.inputs()
            if how is None:
                return special_inputs(given, others, draw, self.fixed, generator)
            return [
                like_given(value, other, how, generator) if at not in self.fixed and is_differentiable(value) else value
                for at, (value, other) in enumerate(zip(given, others, strict=True))
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
        own: Callable[[list[Any]], Bound] | None = getattr(self.loaded, "bound", None)  # of formats that derive theirs

        def found(given: list[Any]) -> Bound:
            with torch.no_grad(), self.as_it_was(seed):
                return bound_of(self.reference, given)

        if own is None:
            return self.run(args, found)
        with torch.no_grad(), self.as_it_was(seed):
            return self.at_home(lambda: own(args))

    def is_random(self, args: list[Any], seed: int, bound: Bound) -> bool:
        """Whether its answer is drawn: with other random numbers it is further from the reference than its bound."""

        def found(given: list[Any]) -> tuple[Tensor, ...]:
            given = [_all(value, torch.clone) for value in given]
            with torch.no_grad(), self.as_it_was(seed ^ 0x1B873593):
                return tuple(o for o in leaves(self.reference(*given)) if isinstance(o, Tensor))

        again = self.run(args, found)
        if [o.shape for o in again] != [o.shape for o in bound.native]:
            return False
        return max(_own_share(dataclasses.replace(bound, native=again)), default=0.0) > 1

    def flows(self, args: list[Any], seed: int) -> list[Tensor]:
        """A gradient to send into each floating answer, none where no answer has a graph."""
        if hasattr(self.loaded, "bound"):
            return []  # it bounds no gradients
        generator = torch.Generator().manual_seed(seed ^ 0x2545F491)

        def found(given: list[Any]) -> list[tuple[torch.Size, torch.dtype]]:
            with torch.enable_grad(), self.as_it_was(seed):
                answers = leaves(self.reference(*given_leaves(given)))
            return [(o.shape, o.dtype) for o in answers if isinstance(o, Tensor) and o.requires_grad]

        return [torch.randn(shape, generator=generator).to(dtype) for shape, dtype in self.run(args, found)]

    def gradients(self, args: list[Any], flows: list[Tensor], seed: int) -> tuple[Bound, list[str]]:
        """Of every floating input, then of every parameter: their reference and bound, and what each is of."""
        named = {} if self.module is None else {n: p for n, p in self.module.named_parameters() if p.requires_grad}
        inputs = [number for number, value in enumerate(args) if is_differentiable(value)]

        def run(*given: Any) -> list[Tensor]:
            *values, sent = given
            return gradients(self.reference, values, sent, list(named.values()))

        def found(given: list[Any]) -> Bound:
            with self.as_it_was(seed):
                return bound_of(run, given)

        return self.run([*args, flows], found), [*(f"input {number}" for number in inputs), *named]

    def buffers_after(self, args: list[Any], seed: int, times: int) -> dict[str, tuple[Tensor, Tensor]]:
        """Of every buffer that a call writes to: what it is in float64 after so many, and how far one in the
        reference's own precision may be from that. Empty where the reference does not run in float64."""
        if self.module is None or not any(True for _ in self.module.buffers()):
            return {}
        before = {name: value.clone() for name, value in self.module.named_buffers()}
        runs = []
        for wide in (False, True):
            module = copy.deepcopy(self.module)
            given = [_all(value, torch.clone) for value in args]
            if wide:
                module.double()
                given = [_all(v, lambda t: t.double() if t.is_floating_point() else t) for v in given]
            with torch.no_grad(), self.as_it_was(seed):
                for _ in range(times):
                    self.at_home(lambda m=module, g=given: m(*g))  # type: ignore[misc]
            runs.append(dict(module.named_buffers()))
        found = {}
        for name, was in before.items():
            own, exact = runs[0][name].double(), runs[1][name].double()
            moved = (exact - was.double()).abs().amax() if was.numel() else torch.zeros(())
            if float(moved) == 0:
                continue
            off = own.sub(exact).abs().amax() * OWN_ERRORS + moved * LOST
            found[name] = (exact, off if was.is_floating_point() else torch.zeros((), dtype=torch.float64))
        return found


def _all(value: Any, change: Callable[[Any], Any]) -> Any:
    """An argument with every tensor in it changed."""
    return tree_map(lambda one: change(one) if isinstance(one, Tensor) else one, value)


def of_other_forms(bound: Tensor, value: Tensor, dtype: torch.dtype) -> Tensor:
    """The bound counts the roundings of the reference's own formula, and ``(2 y + 3) / 6`` has one more than
    ``y / 3 + 0.5``. What is exact stays so."""
    if not dtype.is_floating_point:
        return bound
    more = OTHER_FORM * inner(dtype) * value.abs()
    return torch.where((bound > 0) & more.isfinite(), bound + more, bound)


def _own_share(bound: Bound) -> list[float]:
    """Of each answer of the reference as its users run it: its worst error as a share of the bound."""
    found = []
    for given, exact, most in zip(bound.native, bound.reference, bound.outputs, strict=True):
        if not given.numel():
            found.append(0.0)
            continue
        given, exact, most = as_parts(given), as_parts(exact), as_parts(most)
        error = (given.double() - exact.double()).abs()
        error[given.isnan() & exact.isnan() | (given.double() == exact.double())] = 0.0
        share = torch.where(error == 0, 0.0, error / most.clamp_min(torch.finfo(torch.float64).tiny))
        found.append(float(share.nan_to_num(nan=math.inf).max()))
    return found


def _case(oracle: Oracle, asked: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """One case in memory: inputs, the reference and the bound, of large answers at places that are drawn."""
    seed = int(asked["seed"])
    args = oracle.inputs(seed, asked["draw"])
    held: list[Tensor] = []
    structure = [pack_value(value, held) for value in args]
    given = [value.detach().contiguous() for value in held]
    names = None
    if asked["backward"]:
        flows = oracle.flows(args, seed)
        if not flows:
            raise LookupError("no answer of the reference has a graph")
        found, names = oracle.gradients(args, flows, seed)
        structure.append(pack_value(flows, given))
    else:
        found = oracle.bound(args, seed)
    if asked["draw"] in LOOSE:
        found = dataclasses.replace(found, outputs=tuple(map(without_end, found.reference, found.outputs)))
    generator = torch.Generator().manual_seed(int(asked["places"]))
    references, bounds, places = [], [], []
    for exact, most, native in zip(found.reference, found.outputs, found.native, strict=True):
        flat, its = exact.detach().reshape(-1), most.reshape(-1)
        if flat.numel() > asked["most"]:
            at = places_of(exact.shape, int(asked["most"]), generator)
            if asked["draw"] in LOOSE:  # few are NaN, and only those tell
                at = torch.cat([at, exact.reshape(-1).isnan().nonzero().view(-1).cpu()[: at.numel()]]).unique()
            flat, its = (every[at.to(every.device)] for every in (flat, its))
        else:
            at = torch.arange(flat.numel())
        flat, its = flat.cpu(), its.cpu()
        flat, its = (as_parts(t).reshape(-1) for t in (flat, its))  # of a complex number both, at its one place
        its = of_other_forms(its.to(torch.float64), flat, native.dtype)
        if asked["draw"] in OUTSIDE and flat.is_floating_point() and flat.numel():
            its = its.clamp(min=LOST * float(flat.abs().max()))
        references.append(flat.to(wide_dtype(flat.dtype)))
        bounds.append(its)
        places.append(at)
    memory, spots = tensors_into([*given, *references, *bounds, *places])
    shapes = [(list(t.shape), str(t.dtype).removeprefix("torch."), list(t.stride())) for t in found.native]
    said = {
        "inputs": structure, "spots": spots, "outputs": shapes, "names": list(names or found.names),
        "own": _own_share(found), "why": list(found.why)[:20], "unknown": list(found.unknown)[:20],
        "finite": [bool(t.isfinite().all()) for t in references], "left": oracle.left,
        "shared": found.shared, "lent": found.lent,
        "drawn": bool(asked["twice"]) and oracle.is_random(args, seed, found),
    }  # fmt: skip
    return said, memory.handed_on()


def _buffers(oracle: Oracle, asked: dict[str, Any]) -> dict[str, Any]:
    """Of the buffers that calls of these inputs change: some elements, where they are, and by how much they may be
    missed."""
    try:
        seed = int(asked["seed"])
        after = oracle.buffers_after(oracle.inputs(seed, asked["draw"]), seed, int(asked["times"]))
    except Exception:  # it does not run in float64, or cannot be copied
        after = {}
    generator, found = torch.Generator().manual_seed(int(asked["places"])), []
    for name, (value, off) in list(after.items())[:MOST_BUFFERS]:
        flat = value.reshape(-1)
        at = torch.randperm(flat.numel(), generator=generator)[:MOST_OF_BUFFER]
        found.append([name, at.tolist(), flat[at].tolist(), float(off)])
    return {"buffers": found}


def _work(oracle: Oracle, asked: dict[str, Any]) -> dict[str, Any]:
    """What the reference's calls must do, each by itself, and the bytes of what goes in and comes out of the whole."""
    args = oracle.inputs(int(asked["seed"]), "given")
    held: list[Tensor] = []
    for value in args:
        pack_value(value, held)

    def moved(given: list[Any]) -> tuple[int, int]:
        """Bytes of the inputs that must be read, and of the answers."""
        flow, there = Flow(), list[Tensor]()
        for value in given:
            pack_value(value, there)
        with torch.no_grad(), without_fused_kernels(), flow:
            outputs = [o for o in leaves(oracle.reference(*given)) if isinstance(o, Tensor)]
        return flow.needed_bytes(outputs, there), sum(t.nbytes for t in outputs)

    with torch.no_grad():
        trace, _ = oracle.at_home(lambda: survey_run(lambda: oracle.reference(*args), MOST_SURVEYED))
    needed, written = oracle.run(args, moved)
    calls, lost = [], []
    for call in trace.calls:
        its = work(call)
        if its is None:
            lost.append(call.name)
        else:
            calls.append([call.name, its.flop, its.transcendental, its.dtype, its.function])
    weights = [] if oracle.module is None else [*oracle.module.parameters()]
    sizes = [sum({t.untyped_storage().data_ptr(): t.nbytes for t in of}.values()) for of in (held, weights)]
    return {
        "calls": calls[:500], "uncounted": sorted(set(lost))[:20], "read": sizes, "needed": needed, "written": written,
    }  # fmt: skip


def serve(control: socket.socket, papers: dict[str, Any], folder: Path) -> None:
    """Answers until the other end is gone."""
    oracle = None
    keep_freed()  # a reference is a hundred tensors of the answer's size in turn: page faults were most of its time
    while True:
        try:
            asked, _ = hear(control, IDLE_S)
        except TimeoutError:
            give_back()
            asked, _ = hear(control)
        descriptors: tuple[int, ...] = ()
        said: dict[str, Any]
        try:
            if oracle is None:
                oracle = Oracle(papers, folder)
            if asked["do"] == "given":
                said, descriptors = {"weighted": oracle.weighted}, (_bytes(oracle.candidate_state()),)
            elif asked["do"] == "case":
                said, descriptor = _case(oracle, asked)
                descriptors = (descriptor,)
            elif asked["do"] == "buffers":
                said = _buffers(oracle, asked)
            else:
                said = _work(oracle, asked)
        except NoBoundError as error:
            said = {"unbounded": str(error)[:MOST_TEXT]}
        except Exception as error:  # the problem's own
            said = {"raised": f"{type(error).__name__}: {error}"[:MOST_TEXT]}
        say(control, said, descriptors)
        for number in descriptors:
            os.close(number)
        if oracle is not None:
            oracle.device.release()


def _bytes(data: bytes) -> int:
    descriptor = os.memfd_create("given", os.MFD_CLOEXEC)
    with os.fdopen(os.dup(descriptor), "wb") as file:
        file.write(data)
    return descriptor
