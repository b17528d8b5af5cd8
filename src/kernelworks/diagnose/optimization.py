"""What an optimization is, which candidates it has in a program, and what it may ask about the program.

An optimization is a change to a program: one file here and one line in ``OPTIMIZATIONS``. The search asks each for its
candidates, has it predict what each saves, applies it, verifies it, measures it in turns with the program as it is by
then, and keeps or undoes it. So an optimization neither measures the program nor verifies itself: it says where it
applies, predicts, and is applied and undone without a trace.

A candidate's site is described in words that another process understands (``Site``): there the same plan is applied as
the program's modules and optimizers are first met.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import statistics
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

import torch
from torch import nn
from torch.optim import Optimizer

from kernelworks.contract.leaves import leaves
from kernelworks.diagnose.forecast.forecaster import Forecaster
from kernelworks.diagnose.sites.functions import Function, find_function
from kernelworks.diagnose.sites.modules import Roots, Sample
from kernelworks.profile.budget import Budget
from kernelworks.profile.program import Program

__all__ = [
    "EVERYWHERE",
    "KINDS_OF_SITE",
    "PROCESS",
    "PROGRAM",
    "Candidate",
    "Change",
    "CombinedChange",
    "CompiledBeside",
    "Impossible",
    "NotUndone",
    "Optimization",
    "Promise",
    "Rejected",
    "Scene",
    "Site",
    "kind_name",
    "same_kind",
]  # fmt: skip

T = TypeVar("T")
Say = Callable[[str], None]
Within = Callable[[float], contextlib.AbstractContextManager[None]]
MAIN = "__main__"


class Impossible(Exception):
    """An optimization cannot be applied here; the text is what a user reads. ``instead`` predicts nothing, and finds
    the candidates to try in its place (``Promise.less``)."""

    def __init__(self, text: str = "", instead: Promise | None = None) -> None:
        super().__init__(text)
        self.instead = instead


class Rejected(Impossible):
    """An optimization was put in place, and did not do what it must: it raised, or its outputs are others."""


# ---------------------------------------------------------------- where


@dataclass(frozen=True)
class Site:
    """Where a candidate applies.

    ``kind`` is ``module``: a part, at ``path`` and of ``type``, of the ``number``-th outermost module of type ``root``
    that the program calls; ``function``: one of name ``path`` in the module ``root``; ``everywhere``: each outermost
    module, as it comes; ``optimizer``: the ``number``-th one of ``type`` that steps; ``process``; or ``program``: the
    function as a whole.
    """

    kind: str
    root: str = ""
    number: int = 0
    path: str = ""
    type: str = ""

    def __str__(self) -> str:
        if self.kind == "function":
            return f"{self.path}()"
        if self.kind in ("module", "optimizer"):
            which = f" ({self.number + 1}.)" if self.number else ""
            return (self.path or self.type.rpartition(".")[2]) + which
        return {"everywhere": "all modules", "process": "the process", "program": "the program"}[self.kind]


KINDS_OF_SITE = ("module", "function", "everywhere", "optimizer", "process", "program")
EVERYWHERE, PROCESS, PROGRAM = Site("everywhere"), Site("process"), Site("program")


def kind_name(thing: object) -> str:
    """A type by its module and name."""
    return f"{type(thing).__module__}.{type(thing).__qualname__}"


def same_kind(kind: str, other: str) -> bool:
    """Whether two such names are of one type: a file that is run is the module ``__main__``, by whatever name another
    process imports it."""
    if kind == other:
        return True
    main = f"{MAIN}."
    return any(
        a.startswith(main) and not b.startswith(main) and b.endswith(f".{a.removeprefix(main)}")
        for a, b in ((kind, other), (other, kind))
    )


# ---------------------------------------------------------------- what


@dataclass(frozen=True)
class Candidate:
    """One place at which an optimization can be applied, and how."""

    optimization: str
    site: Site
    says: str  # one line: what is done
    code: str = ""  # the lines that a user writes to have it; they import kernelworks only for kernels of its own
    changes: str = ""  # the word that must be allowed (tf32, bf16, int8, fp8), for what changes numbers on purpose
    advice: str = ""  # said with its line and never applied: what only the author can decide
    options: tuple[tuple[str, Any], ...] = ()  # what ``apply`` reads besides; JSON's types
    group: str = ""  # of an optimization's candidates in one group only one can be applied: ``mode`` of one module
    cores: bool = False  # it changes how many are used: measured while others use them, it says nothing
    touches: frozenset[str] = frozenset()  # what is gained with others that touch it is not the sum: tried together
    risky: bool = False  # it may end the process: a capture that goes wrong loses the device
    again: bool = False  # predicted to bring nothing by itself, it may on top of others: asked again once they are kept

    def option(self, name: str, default: Any = None) -> Any:
        return dict(self.options).get(name, default)


@dataclass(frozen=True)
class Promise:
    """What a candidate is predicted to save, as a share of the wall clock of the program as it is by then (below 0: it
    loses); None if nothing can be predicted. ``cost_s`` are seconds until it is in place (compilers), ``cost_bytes``
    the memory that it keeps. ``less`` finds the candidates to try in its place if it turns out to gain nothing: some of
    what it does may gain all the same."""

    saves: float | None
    cost_s: float = 0.0
    cost_bytes: int = 0
    how: str = ""  # where the figure comes from, in a few words
    less: Callable[[], Iterable[Candidate]] | None = None


class NotUndone(Exception):
    """What a change has put in place is not taken out: the program is not what it was. ``causes`` are those of this
    process so far, for whoever catches what a changed program raises."""

    causes: ClassVar[list[str]] = []


class Change:
    """An optimization applied from entering to leaving, again and again: ``put`` applies it and returns what undoes it.

    Entering and leaving are not part of a measured run, but stand between any two: what takes long (compilers,
    repacked weights) is to be kept (``Scene.keep``). ``seconds_spent`` is what installing took inside a run,
    which are taken off its time. ``done`` and ``left`` are lines on what was changed and what was not, and why.
    ``verified_against`` says against what the optimization itself verified what modules' answers do not show; those are
    not compared then. With ``same_numbers`` it changes none (where memory lies), and nothing at all is compared.
    """

    def __init__(
        self, put: Callable[[], Callable[[], None]], verified_against: str = "", *, same_numbers: bool = False
    ) -> None:
        self._put = put
        self.verified_against, self.same_numbers = verified_against, same_numbers
        self._back: Callable[[], None] | None = None
        self.seconds_spent = 0.0
        self.random: Change | None = None  # is verified in its place, if it draws other random numbers
        self.done: tuple[str, ...] = ()
        self.left: tuple[str, ...] = ()

    def is_untouched(self, module: nn.Module) -> bool:
        """Whether nothing in a module is changed, so that there is nothing to verify in it."""
        return False

    def __enter__(self) -> Change:
        self._back = self._put()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        back, self._back = self._back, None
        if back is None:
            return
        try:
            back()
        except BaseException as own:
            NotUndone.causes.append(f"{type(own).__name__}: {own}")
            if not isinstance(own, Exception):  # the user's key
                raise
            raise NotUndone(f"it cannot be undone: {NotUndone.causes[-1]}") from own


class CombinedChange:
    """Several changes as one: put in place in their order, taken out in the reverse. ``entered``: they are in place."""

    def __init__(self, changes: Iterable[Change], *, entered: bool = False) -> None:
        self.changes = tuple(changes)
        self._inside: list[Change] = list(self.changes) if entered else []

    @property
    def random(self) -> CombinedChange | None:
        """The same with the random numbers of the original, if one of them draws others."""
        if all(change.random is None for change in self.changes):
            return None
        return CombinedChange(change.random or change for change in self.changes)

    @property
    def seconds_spent(self) -> float:
        return sum(change.seconds_spent for change in self.changes)

    def is_untouched(self, module: nn.Module) -> bool:
        return all(change.is_untouched(module) for change in self.changes)

    def __enter__(self) -> CombinedChange:
        try:
            for change in self.changes:
                change.__enter__()
                self._inside.append(change)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        raised: BaseException | None = None
        while self._inside:
            try:
                self._inside.pop().__exit__(kind, error, at)
            except BaseException as own:
                raised = raised or own
        if isinstance(raised, NotUndone) or (raised is not None and error is None):
            raise raised


# ---------------------------------------------------------------- what is known of the program


class CompiledBeside(NamedTuple):
    """What another process has compiled, so that this one finds it on disk: seconds to load it, and those that it took
    there."""

    loads_s: float
    cold_s: float


@dataclass
class Scene:
    """The program, what was seen of it, and what is in place by now.

    A plan that is applied in a fresh process makes scenes too, one for each module as it is first called: ``run``,
    ``samples`` and the timeline are missing there, so ``apply`` reads the candidate and ``at(site)`` alone.
    """

    roots: Roots
    program: Program | None = None  # ``run()`` is over when the device is done
    optimizers: tuple[Optimizer, ...] = ()  # those that stepped, in the order in which they first did
    forecaster: Forecaster | None = None
    walls: Sequence[float] = ()  # of the program as it was
    budget: Budget | None = None
    allow: frozenset[str] = frozenset()
    say: Say = field(default=lambda line: None)
    within: Within = field(default=lambda seconds: contextlib.nullcontext())  # for a step that may take so long
    taken: list[Change] = field(default_factory=list)  # in place in the program as it is by now
    beneath: tuple[str, ...] = ()  # what is in place that moves or replaces what a compiler and a graph hold
    compiled: CompiledBeside | None = None  # of the candidate that is predicted, with what is beneath it
    notes: list[str] = field(default_factory=list)  # for the reader of the whole
    _kept: dict[Hashable, Any] = field(default_factory=dict)

    @property
    def wall(self) -> float:
        """Seconds of a run of the program as it was."""
        return statistics.median(self.walls)

    @property
    def training(self) -> bool:
        """Whether gradients were wanted of a module, or an optimizer stepped."""
        return bool(self.optimizers or self.roots.passing) or any(sample.training for sample in self.roots.samples)

    @property
    def backward(self) -> bool:
        """Whether the program runs what it computes backwards too: many that want gradients never ask for them."""
        timeline = getattr(self.forecaster, "timeline", None)
        seen = timeline is None or any(call.backward for call in timeline.calls)
        return self.training and (seen or bool(self.optimizers or self.roots.passing))

    @property
    def answer_samples(self) -> tuple[Sample, ...]:
        """The samples, of which gradients are answers only if the program asks for some: one that leaves them on and
        runs no backward would have a compiler make it for the verification alone."""
        if self.backward:
            return self.roots.samples
        return tuple(dataclasses.replace(sample, training=False) for sample in self.roots.samples)

    @property
    def on_gpu(self) -> bool:
        return any(map(self.runs_on_gpu, self.roots.modules))

    def runs_on_gpu(self, root: nn.Module) -> bool:
        """Whether an outermost module, or a function, has tensors of a GPU, or is given some: one that loads pictures
        for a model there does not."""
        held = (*root.parameters(), *root.buffers())
        called = ((s.args, s.kwargs) for s in self.roots.samples if s.module is root)
        given = (t for arguments in called for t in leaves(arguments).values())
        return any(t.is_cuda for t in itertools.chain(held, given))

    @property
    def device(self) -> str:
        return "cuda" if self.on_gpu else "cpu"

    @property
    def autocast(self) -> dict[str, torch.dtype]:
        """By type of device, if a module was called under it."""
        return {kind: dtype for sample in self.roots.samples for kind, dtype in sample.autocast.items()}

    def keep(self, key: Hashable, make: Callable[[], T]) -> T:
        """What ``make`` makes, made once: for what an optimization needs in several of its answers."""
        if key not in self._kept:
            self._kept[key] = make()
        found: T = self._kept[key]
        return found

    def in_place(self) -> CombinedChange:
        """A context in which the program is as it is by now."""
        return CombinedChange(self.taken)

    # ------------------------------------------------------------ places

    def site(self, module: nn.Module) -> Site:
        """Of a part of an outermost module. Raises Impossible for a module that is none."""
        if isinstance(module, Function):
            return Site("function", module.of, 0, module.path)
        for root in self.roots.modules:
            for path, part in root.named_modules():
                if part is module:
                    alike = [m for m in self.roots.modules if type(m) is type(root)]
                    return Site("module", kind_name(root), _index(alike, root), path, kind_name(module))
        raise Impossible(f"{kind_name(module)} is no part of a module that the program calls")

    def site_of(self, optimizer: Optimizer) -> Site:
        alike = [o for o in self.optimizers if type(o) is type(optimizer)]
        return Site("optimizer", number=_index(alike, optimizer), type=kind_name(optimizer))

    def at(self, site: Site) -> Any:
        """The module, the function or the optimizer at a site. Raises Impossible if there is none, or one of another
        type."""
        if site.kind == "function":
            mine = (each for m in self.roots.modules if isinstance(m, Function) for each in (m, *m.parts))
            of_name = (m for m in mine if (m.of, m.path) == (site.root, site.path))
            entry = self.program.entry if self.program is not None else None
            function = next(of_name, None) or find_function(site.root, site.path, entry)
            if function is not None:
                return function
        elif site.kind == "optimizer":
            alike = [o for o in self.optimizers if same_kind(kind_name(o), site.type)]
            if site.number < len(alike):
                return alike[site.number]
        elif site.kind == "module":
            roots = [m for m in self.roots.modules if same_kind(kind_name(m), site.root)]
            if site.number < len(roots):
                found = dict(roots[site.number].named_modules()).get(site.path)
                if found is not None and same_kind(kind_name(found), site.type):
                    return found
        raise Impossible(f"there is no {site.type} at {site.path or site.root or 'that place'}")

    def parts(self) -> Iterator[tuple[str, nn.Module]]:
        """Every module of the outermost ones by its path, each once."""
        seen: set[int] = set()
        for root in self.roots.modules:
            for path, part in root.named_modules():
                if id(part) not in seen:
                    seen.add(id(part))
                    yield path, part

    def scene_of(self, root: nn.Module) -> Scene:
        """The scene of one outermost module."""
        samples = tuple(s for s in self.roots.samples if s.module is root)
        return dataclasses.replace(self, roots=dataclasses.replace(self.roots, modules=(root,), samples=samples))


def _index(items: Sequence[Any], item: Any) -> int:
    return next(i for i, each in enumerate(items) if each is item)


# ---------------------------------------------------------------- the protocol


class Optimization(Protocol):
    """One file in this folder; ``takes`` is what a plan may say of it. Each method may raise Impossible, whose text
    a user reads beside the optimization's name, and BudgetExceeded."""

    @property
    def name(self) -> str: ...

    def candidates(self, scene: Scene) -> Iterable[Candidate]:
        """What could be done here; the program is as it was. Quick: nothing is compiled or measured."""
        ...

    def predict(self, scene: Scene, candidate: Candidate) -> Promise:
        """What it saves, from the timeline and its replay (``scene.forecaster``), or from a trial of a part; the
        program is as it is by now (``scene.taken`` in place), and is so again when this returns."""
        ...

    def apply(self, scene: Scene, candidate: Candidate) -> Change:
        """The change, not in place yet."""
        ...
