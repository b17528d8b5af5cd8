"""The choice of a kernel for a call.

It is a pure function of the op's kernels, their certificates, the tuning records and the machine.
``eligible_ways`` lists the ways in which verified kernels of ours can run a request. ``choose`` takes one of them, or
torch's own function. Neither compiles or loads anything. A **way** is a kernel's name. For training it names a kernel
for the forward and one for the backward, ``"avx512+avx2"``, or one kernel that makes the gradients with its forward.

There are two policies (``KERNELWORKS_CHOOSE``). ``timed`` takes the way that a tuning record says is quicker than
torch; without such a record torch's own function runs. If the ``torch`` kernel declines (what it would store does not
fit the memory), the first way runs, record or none. ``listed`` takes the first verified kernel of the list; it is
for tests, verifications and development.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Protocol

import torch

from kernelworks.build import BuildError
from kernelworks.contract import Contract, Kernel, Request
from kernelworks.dispatch import certificates, tuning_records
from kernelworks.dispatch.tuning_records import TuningRecord
from kernelworks.machine import environment, place_of

__all__ = [
    "OR_TORCH",
    "Choice",
    "DispatchableOp",
    "LoadFailure",
    "Ways",
    "choose",
    "choose_listed",
    "clear_load_failures",
    "eligible_ways",
    "known_tuning_records",
    "record_load_failure",
]

Ways = Mapping[str, tuple[Kernel, ...]]
TrialKernels = Set[tuple[str, str]]
NO_TRIALS: TrialKernels = frozenset()

# Behind a way that a tuning record named, not a user: where its kernel declines after all (gradients that lie as none
# was expected to), torch's kernel runs in its place.
OR_TORCH = " or torch"

LIST_ORDER, ASKED_BY_NAME = "list order", "asked for by name"
NOT_QUICKEST = "verified here, and no tuning record says that it is the quickest"


class DispatchableOp(Protocol):
    """What a choice asks of an op."""

    name: str
    contract: Contract
    kernels: tuple[Kernel, ...]

    def kernel(self, name: str) -> Kernel: ...

    def backward_of(self, training: Request) -> Request: ...


@dataclass(frozen=True)
class Choice:
    """The kernel taken, and for every kernel above it the reason why it was not taken.

    If ``native`` is set, torch's own function and its own autograd run, as a user would have called them; ``kernel`` is
    then the ``torch`` kernel. For a training request ``backward`` is the kernel of the gradients. It is None if
    ``kernel`` makes them with its forward, if the function is torch's, or if they are chosen when they are asked for
    (list order).
    """

    kernel: Kernel
    declined: tuple[tuple[str, str], ...]
    because: str  # the tuning record in words, "list order", or "asked for by name"
    native: bool = False
    backward: Kernel | None = None
    together: bool = False  # the kernel makes the gradients with its forward
    tuning_record: TuningRecord | None = None  # what decided, where one did
    torch_declines: bool = False  # so that a kernel of ours runs without a record

    @property
    def way(self) -> str:
        return self.kernel.name if self.backward is None else f"{self.kernel.name}+{self.backward.name}"

    @property
    def requested_kernel(self) -> str | None:
        """The ``kernel`` that has a call made as a tuning record (or torch's refusal) chose, forward and backward; None
        where neither did."""
        chosen = self.tuning_record is not None or self.torch_declines
        return f"{self.way}{OR_TORCH}" if chosen and not self.native else None


class LoadFailure(str):
    """A reason of the machine's, not of the request's: a kernel that could not be built or loaded. ``about`` names what
    is at fault."""

    about: str

    def __new__(cls, error: BuildError) -> LoadFailure:
        made = super().__new__(cls, error)
        made.about = error.about
        return made


_broken: dict[tuple[str, str], LoadFailure] = {}  # (op, kernel) -> what loading it said


def record_load_failure(op: DispatchableOp, kernel: Kernel, error: BuildError) -> None:
    """Notes that a kernel cannot be loaded, so that it is not chosen again before ``clear_load_failures``."""
    _broken[op.name, kernel.name] = LoadFailure(error)


def clear_load_failures(op: DispatchableOp) -> None:
    """Forgets what could not be loaded of an op: it is tried again."""
    for kernel in op.kernels:
        _broken.pop((op.name, kernel.name), None)


# ---------------------------------------------------------------- what may be chosen


def _declines(
    op: DispatchableOp,
    kernel: Kernel,
    request: Request,
    *,
    certified: bool,
    kind: str | None = None,
    trying: TrialKernels = NO_TRIALS,
) -> str | None:
    """Why this kernel does not serve this request, or None. Builds nothing."""
    if request.pass_ not in kernel.passes:
        return f"has no {request.pass_}"
    if certified and kernel.source is not None and any(spec.numel == 0 for spec in request.top_level_tensors):
        return "a tensor has no elements: that is torch's own to answer"
    reason = kernel.guard(request)
    if reason:
        return reason
    if (op.name, kernel.name) in _broken:
        return _broken[op.name, kernel.name]
    if certified and kernel.target == "scalar":  # never quicker than what the user has today
        return "plain code, for reading and checking; runs when asked for by name"
    if (op.name, kernel.name) in trying:
        return None
    try:
        return certificates.invalid_reason(op.name, kernel, kind) if certified else None
    except BuildError as error:
        return LoadFailure(error)


def _serving(
    op: DispatchableOp, request: Request, kind: str | None, declined: dict[str, str], trying: TrialKernels = NO_TRIALS
) -> list[Kernel]:
    """The kernels of ours that may serve one pass, best listed first; the reasons of the others go into
    ``declined``."""
    found = []
    for kernel in op.kernels:
        if kernel.source is not None:
            reason = _declines(op, kernel, request, certified=True, kind=kind, trying=trying)
            if not reason:
                found.append(kernel)
            else:
                declined.setdefault(kernel.name, reason)
    return found


def eligible_ways(
    op: DispatchableOp, request: Request, kind: str | None = None, trying: TrialKernels = NO_TRIALS
) -> tuple[Ways, dict[str, str]]:
    """The ways to run a request with verified kernels of ours, best listed first, and why each other kernel has no part
    in one.

    ``kind`` is the kind of machine, by default this one. ``trying``: kernels, as (op, kernel), that count as verified
    though no certificate says so; for whoever tries them out before it is worth verifying them.
    """
    declined: dict[str, str] = {}
    if request.pass_ != "training":
        return {kernel.name: (kernel,) for kernel in _serving(op, request, kind, declined, trying)}, declined
    ways: dict[str, tuple[Kernel, ...]] = {kernel.name: (kernel,) for kernel in _serving(op, request, kind, {}, trying)}
    forward = _serving(op, dataclasses.replace(request, pass_="forward"), kind, declined, trying)
    backward = _serving(op, op.backward_of(request), kind, declined, trying) if forward else []
    ways |= {f"{ahead.name}+{back.name}": (ahead, back) for ahead in forward for back in backward}
    used = {kernel.name for kernels in ways.values() for kernel in kernels}
    return ways, {name: reason for name, reason in declined.items() if name not in used}


def known_tuning_records(
    op: DispatchableOp, dtype: torch.dtype, device: str, sizes: Mapping[str, int], kind: str | None = None
) -> list[TuningRecord]:
    """The tuning records of this machine by which calls of an op in a dtype, on a type of device, are chosen for, where
    no more is known of the calls than some ``sizes``; noisy ones too, which decide nothing."""
    verified = {
        r.name: r for r in op.kernels if r.source is not None and certificates.invalid_reason(op.name, r, kind) is None
    }
    try:
        return tuning_records.records_matching(op.name, verified, dtype, place_of(device, kind), sizes)
    except (RuntimeError, BuildError):
        return []


# ---------------------------------------------------------------- the choice


def choose(op: DispatchableOp, request: Request, kernel: str | None = None, kind: str | None = None) -> Choice:
    """What runs a request, with the reason why each kernel before it does not. Nothing is compiled or loaded.

    With ``kernel`` given (a way), that or an exception: ValueError where there is no such kernel, RuntimeError where it
    cannot run. A kernel asked for by name needs no certificate. ``kind`` is the kind of machine, by default this one.
    """
    if kernel is not None:
        return _asked(op, request, kernel)
    if environment.selection_policy() == "listed":
        return choose_listed(op, request, kind)
    torch_kernel = op.kernel("torch")
    known = tuning_records.has_known_sizes(request)
    refusal = torch_kernel.guard(request) if known else None
    if request.pass_ == "backward" and not refusal:  # one that a training choice made is asked for by name
        return Choice(torch_kernel, (), "the gradients of a call that torch's own function did not run")
    if not known:
        return Choice(torch_kernel, (), "sizes are not known before the call: torch runs", native=True)
    ways, declined = eligible_ways(op, request, kind)
    if refusal:
        return _without_torch(op, request, ways, declined, refusal)
    try:
        place = place_of(request.device, kind)
        found = tuning_records.verdict(op.name, op.contract, request, ways, place)
    except (RuntimeError, BuildError) as error:  # a GPU's request where there is none; a compiler that went away
        found = tuning_records.Verdict("", str(error))
    taken = ways.get(found.way, ())
    reasons = {kernel.name: NOT_QUICKEST for kernels in ways.values() for kernel in kernels} | declined
    above = [
        r for r in op.kernels if r.source is not None and (not taken or r in op.kernels[: op.kernels.index(taken[0])])
    ]
    reasons_above = tuple((r.name, reasons[r.name]) for r in above if r.name in reasons)
    if not taken:
        return Choice(torch_kernel, reasons_above, found.because, native=True, tuning_record=found.tuning_record)
    together = request.pass_ == "training" and len(taken) == 1
    backward = taken[1] if len(taken) > 1 else None
    return Choice(
        taken[0], reasons_above, found.because, backward=backward, together=together, tuning_record=found.tuning_record
    )


def _without_torch(
    op: DispatchableOp, request: Request, ways: Ways, declined: Mapping[str, str], refusal: str
) -> Choice:
    """What runs where torch's kernel declines: the first way, whatever records say. Where there is none, torch's own
    function all the same: an op whose torch kernel declines has one that does with less (``Op.native``)."""
    torch_kernel = op.kernel("torch")
    because = f"torch's function declines: {refusal}"
    if not ways:
        above = tuple(declined.items())
        native = request.pass_ != "backward"
        return Choice(torch_kernel, above, f"{because}; no kernel of ours may run: torch runs by parts", native=native)
    taken = next(iter(ways.values()))
    above = tuple((r.name, declined[r.name]) for r in op.kernels[: op.kernels.index(taken[0])] if r.name in declined)
    together = request.pass_ == "training" and len(taken) == 1
    backward = taken[1] if len(taken) > 1 else None
    return Choice(taken[0], above, because, backward=backward, together=together, torch_declines=True)


def choose_listed(op: DispatchableOp, request: Request, kind: str | None = None) -> Choice:
    """The first kernel of the list that may be chosen, ``torch``'s and ``reference``'s among them.

    Raises RuntimeError where none does.
    """
    if request.pass_ == "training":
        for kernel in _serving(op, request, kind, {}):
            return Choice(kernel, (), LIST_ORDER, together=True)
        request = dataclasses.replace(request, pass_="forward")
    declined: list[tuple[str, str]] = []
    for kernel in op.kernels:
        reason = _declines(op, kernel, request, certified=True, kind=kind)
        if not reason:
            return Choice(kernel, tuple(declined), LIST_ORDER)
        declined.append((kernel.name, reason))
    reasons = "; ".join(f"{name}: {reason}" for name, reason in declined)
    raise RuntimeError(f"no kernel of {op.name} can run: {reasons}")


def _asked(op: DispatchableOp, request: Request, way: str) -> Choice:
    names = way.removesuffix(OR_TORCH).split("+")
    kernels = [op.kernel(name) for name in names] if len(names) <= 2 else [op.kernel(way)]
    ahead, back = kernels[0], kernels[-1]
    if request.pass_ == "training":
        if len(kernels) == 1 and _declines(op, ahead, request, certified=False) is None:
            return Choice(ahead, (), ASKED_BY_NAME, together=True)
        return Choice(ahead, (), ASKED_BY_NAME, backward=back if "backward" in back.passes else None)
    wanted, timed = back if request.pass_ == "backward" else ahead, way.endswith(OR_TORCH)
    reason = _declines(op, wanted, request, certified=timed)  # a compiled program may ask long after it was chosen
    if reason is None:
        return Choice(wanted, (), ASKED_BY_NAME)
    if timed:
        return Choice(op.kernel("torch"), ((wanted.name, reason),), f"{wanted.name} declined: {reason}")
    raise RuntimeError(f"kernel {way!r} of {op.name} cannot run: {reason}")
