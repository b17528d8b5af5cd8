"""A module's forward, and its backward if the program trains it, as CUDA graphs: launched as one, no host between.

Inputs are copied to where they lay at the capture, outputs out of what the next replay writes. One graph is captured
for each call signature, up to ``MAX_GRAPHS``; any other call runs as it always did. So does a call whose predecessor
still waits for its backward, since both would share what was saved, and a call of a module that holds something else.

The capture shows that the host decides nothing on the way: a call that waits for the device raises in one. A program
may decide otherwise while no graph is captured, so each graph is compared with the module on other data first.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import traceback
import weakref
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from kernelworks.diagnose.graphs.held_state import PLAIN_TYPES, HeldState, Itself
from kernelworks.diagnose.graphs.host_values import HostMade
from kernelworks.diagnose.graphs.other_data import (
    host_numbers,
    other_data,
    pattern,
    relative_errors,
    same_numbers,
    within_rounding,
)
from kernelworks.diagnose.graphs.outputs import ReturnedValue
from kernelworks.diagnose.graphs.recorder import Recorder
from kernelworks.diagnose.graphs.written_objects import can_be_written, marks, tensors_in
from kernelworks.diagnose.optimization import Impossible
from kernelworks.diagnose.snapshot import State, fixed_seed
from kernelworks.profile.budget import BudgetExceeded

__all__ = ["MAX_GRAPHS", "GraphedModule", "Pools"]

MAX_GRAPHS = 4  # so many call signatures of a module are captured
MOST_BYTES = 4 << 30  # a graph is checked if a call writes no more bytes than this into the objects it is given
FOLDERS = (Path(torch.__file__).resolve().parent, Path(__file__).resolve().parents[2])  # torch's and ours


class Pools:
    """What the graphs of one program share: memory that each of them writes before it reads it.

    Forwards have one pool, backwards another. A later graph writes elsewhere than to what a forward saves for its
    backward; an earlier one may write over it: no forward is replayed while a later graph waits (``clear``).
    """

    def __init__(self, recorder: type[Recorder]) -> None:
        self.recorder, self.lock = recorder, threading.RLock()
        self.graphs: list[weakref.ref[_Graph]] = []
        self.inputs: dict[Any, Tensor] = {}
        self.nbytes = 0

    def renew(self) -> None:
        """After a capture that failed: torch's allocator may still take its pool for the one that it gives from."""
        for name in ("forward", "backward"):
            self.__dict__.pop(name, None)

    @functools.cached_property
    def forward(self) -> Any:
        return self.recorder.pools()

    @functools.cached_property
    def backward(self) -> Any:
        return self.recorder.pools()

    def clear(self, graph: _Graph) -> bool:
        found = (other() for other in self.graphs[graph.number + 1 :])
        return not any(other is not None and other.awaits_backward for other in found)

    def input(self, given: Tensor, taken: set[int], *, own: bool) -> Tensor:
        """Where a graph reads an input: of graphs that keep nothing of it in one place, if it is not ``taken``."""
        made = given.detach().clone()
        if own:
            return made
        key = made.shape, made.stride(), made.dtype, made.device, made.is_inference()
        for at in range(len(taken) + 1):
            found: Tensor = self.inputs.setdefault((*key, at), made)
            if id(found) not in taken:
                taken.add(id(found))
                return found
        return made


class _Token:
    """Lives as long as the backward of one call may still come."""


class _Graph:
    """One call signature, captured."""

    def __init__(self, module: nn.Module, args: Any, kwargs: Any, pools: Pools) -> None:
        flat, self.spec = pytree.tree_flatten((args, kwargs))
        self.objects = [value for value in flat if can_be_written(value)]  # until it is captured
        self.of = tuple(weakref.ref(value) for value in self.objects)
        self.module, self.pools, self.recorder = module, pools, pools.recorder
        self.where = [i for i, value in enumerate(flat) if isinstance(value, Tensor)]
        self.training = torch.is_grad_enabled()
        self.flat, taken = list(flat), set[int]()
        parameters = [p for p in module.parameters() if p.requires_grad]
        given = [flat[i] for i in self.where]
        wanting = self.training and (bool(parameters) or any(t.requires_grad for t in given))
        for i in self.where:
            self.flat[i] = pools.input(flat[i], taken, own=wanting)
            self.flat[i].copy_(flat[i].detach())
            if flat[i].requires_grad and self.training:
                self.flat[i].requires_grad_()
        self.inputs = [self.flat[i] for i in self.where]
        self.wanted = [t for t in (*self.inputs, *parameters) if t.requires_grad] if self.training else []
        self.waiting: weakref.ref[_Token] | None = None
        self.backward_graph: Recorder | None = None
        self.answer: ReturnedValue | None = None
        self.said = ""  # where the host waits
        self.number = len(pools.graphs)
        pools.graphs.append(weakref.ref(self))
        self.before = HeldState(module, self.recorder.takes)
        self.marks = self._marks(self.objects)
        state = State(module, *self.objects)  # which the runs ahead of the capture change
        caching = torch.is_autocast_cache_enabled()
        torch.clear_autocast_cache()
        torch.set_autocast_cache_enabled(False)  # a weight that was cast outside a graph is stale in it
        try:
            with fixed_seed():  # the program's own random numbers go on as if nothing had been run
                self._captured(state)
        finally:
            torch.set_autocast_cache_enabled(caching)
            state.restore()
            self.objects, self.flat = [], [None if can_be_written(value) else value for value in self.flat]

    def _marks(self, objects: Sequence[Any]) -> list[Any]:
        return [marks(value, self.recorder.takes) for value in objects]

    def _captured(self, state: State) -> None:
        recorder, given = self.recorder, [t.detach().clone() for t in self.inputs]

        def once() -> None:
            """As if it were the first time: a cache that every run went on with would soon be full."""
            if self.objects:
                state.restore()
            self._once()
            self._stays()

        recorder.warm(once)
        if any(relative_errors(self.inputs, given)):
            raise Impossible("it writes into its inputs")
        self.mode = self._rehearsed(state)
        if self.objects:
            state.restore()
        self.held = HeldState(
            self.module, recorder.takes
        )  # what the first run of all makes and keeps is read where it lies
        try:
            with self.mode:
                self._record()
        except BaseException as error:
            self.pools.renew()
            if isinstance(error, RuntimeError):
                raise Impossible(self.said or _first_line(error)) from error
            raise
        if not all(recorder.takes(o) for o in self.live):
            raise Impossible("it returns a tensor that is not on the GPU")
        other = self.held.changed_name()
        if other:
            raise Impossible(f"it puts another tensor in the place of one that it holds, or another number ({other})")
        if self.held.resized_name():
            raise Impossible(f"it keeps something of each call ({self.held.resized_name()})")
        self._stays()
        state.restore()
        self._hold_against(state)

    def _stays(self) -> None:
        for value, before in zip(self.objects, self.marks, strict=True):
            if marks(value, self.recorder.takes) != before:
                raise Impossible(f"it puts other tensors or numbers into what it is given ({type(value).__name__})")

    def _rehearsed(self, state: State) -> contextlib.AbstractContextManager[Any]:
        """Runs it as it will be captured, which tells what the host waits for; what stands in for what the host
        makes. And once more with that, since what a first call sets up is then no part of a graph."""
        mode, before = HostMade(), host_numbers()

        def rehearse(beside: contextlib.AbstractContextManager[Any]) -> None:
            def once() -> None:
                with beside, self.recorder.rehearsal():
                    self._once()

            if self.objects:
                state.restore()
            self.recorder.warm(once, 1)

        try:
            rehearse(mode)
        except RuntimeError as error:
            self.said = _wait(error)  # the capture will tell: what asks in other ways whether it is one goes on there
        else:
            if not same_numbers(before, host_numbers()):
                raise Impossible("the host draws random numbers in it")
        mode.learning = False
        found = mode if mode.kept else contextlib.nullcontext()
        with contextlib.suppress(RuntimeError):
            rehearse(found)
        return found

    def _record(self) -> None:
        self.forward_graph = self.recorder(self.pools.forward)
        self.outputs = list(self.forward_graph.record(self._forward))
        assert self.answer is not None
        self.answer.check()
        self._see()
        if self.differentiable and self.wanted:
            self.backward_graph = self.recorder(self.pools.backward)
            self.gradients = list(self.backward_graph.record(self._backward))
        self.pools.nbytes += self.forward_graph.nbytes + (self.backward_graph.nbytes if self.backward_graph else 0)

    @property
    def live(self) -> list[Tensor]:
        assert self.answer is not None
        return self.answer.tensors

    def _see(self) -> None:
        """What of the outputs has gradients."""
        self.differentiable = [i for i, o in enumerate(self.live) if o.requires_grad]
        self.incoming = [torch.zeros_like(self.live[i]) for i in self.differentiable]

    def _called(self, inputs: Sequence[Tensor]) -> Any:
        flat = list(self.flat)
        for i, tensor in zip(self.where, inputs, strict=True):
            flat[i] = tensor
        args, kwargs = pytree.tree_unflatten(flat, self.spec)
        return self.module._call_impl(*args, **kwargs)

    def _forward(self) -> Sequence[Tensor]:
        self.answer = ReturnedValue(self._called(self.inputs), self.answer, self.inputs, self.objects)
        return [o.detach() for o in self.live]

    def _backward(self) -> Sequence[Tensor | None]:
        some = [self.live[i] for i in self.differentiable]
        return torch.autograd.grad(some, self.wanted, self.incoming, retain_graph=True, allow_unused=True)

    def _once(self) -> None:
        self._forward()
        self._see()
        if self.differentiable and self.wanted:
            self._backward()

    # ------------------------------------------------------------ calls

    @property
    def awaits_backward(self) -> bool:
        """Whether a call waits for its backward."""
        return self.waiting is not None and self.waiting() is not None

    @property
    def free(self) -> bool:
        """Whether it may serve a call: none waits for its backward that this would disturb, and the module is as it
        was."""
        return not self.awaits_backward and self.pools.clear(self) and not self.before.changed_name()

    def stands(self, objects: Sequence[Any]) -> bool:
        """Whether what it is given to write into is what it was captured with, and as it was."""
        same = all(ref() is value for ref, value in zip(self.of, objects, strict=True))
        return same and self._marks(objects) == self.marks

    @property
    def alive(self) -> bool:
        return all(ref() is not None for ref in self.of)

    def __call__(self, tensors: Sequence[Tensor], objects: Sequence[Any] = ()) -> Any:
        assert self.answer is not None
        if self.backward_graph is None:
            return self.answer.rebuild(self.replay_forward(tensors), objects)
        needed = [t for t in self.wanted if not any(t is i for i in self.inputs)]
        replay: Any = _Replay.apply  # without annotations
        outputs = replay(self, len(tensors), *tensors, *needed)
        return self.answer.rebuild(outputs, objects)

    @torch.no_grad()
    def replay_forward(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        with self.pools.lock:
            for static, given in zip(self.inputs, tensors, strict=True):
                static.copy_(given)
            self.forward_graph.replay()
            return tuple(o.clone() for o in self.outputs)

    @torch.no_grad()
    def gradients_of(self, incoming: Sequence[Tensor | None]) -> list[Tensor | None]:
        """One for each of ``wanted``, each a tensor of its own: they may be kept, and added to."""
        assert self.backward_graph is not None
        with self.pools.lock:
            for static, i in zip(self.incoming, self.differentiable, strict=True):
                given = incoming[i]
                if given is None:
                    static.zero_()
                else:
                    static.copy_(given)
            self.backward_graph.replay()
            self.waiting = None
            return [None if g is None else g.clone() for g in self.gradients]

    # ------------------------------------------------------------ other data

    def _hold_against(self, state: State) -> None:
        """Raises Impossible if it answers other data with something else than the module does, and its own data not
        so: something of those is part of the graph."""
        own = [t.detach().clone() for t in self.inputs]
        others = [other_data(t) for t in own]
        if all(a is b for a, b in zip(own, others, strict=True)):
            return
        try:
            want, again = self._runs(others, state), self._runs(others, state)
        except BudgetExceeded:
            raise
        except Exception:  # data that the module does not take
            return
        scale = relative_errors(self._replays(own, state), self._runs(own, state))
        off, repeats = relative_errors(self._replays(others, state), want), relative_errors(again, want)
        for tensor, mine, theirs, known in zip(want, off, repeats, scale, strict=False):
            most = max(within_rounding(tensor), 3 * known)
            if theirs <= most < mine:
                raise Impossible("its answer to other data is not the module's: the host decides by what it is given")

    def _replays(self, given: Sequence[Tensor], state: State) -> list[Tensor | None]:
        try:
            with fixed_seed():
                outputs = self.replay_forward(given)
                assert self.answer is not None
                answer = ReturnedValue(self.answer.rebuild(outputs, self.objects), objects=self.objects)
                found: list[Tensor | None] = [*answer.all_tensors, *self._written()]
                if self.backward_graph is not None:
                    found += self.gradients_of([pattern(o) for o in outputs])
            return found
        finally:
            state.restore()

    def _written(self) -> list[Tensor]:
        """What stands in the objects by now."""
        held = [t for value in self.objects for t in tensors_in(value)]
        return [t.detach().clone() for t in held] if sum(t.nbytes for t in held) <= MOST_BYTES else []

    def _runs(self, given: Sequence[Tensor], state: State) -> list[Tensor | None]:
        """The module itself."""
        inputs = [t.clone().requires_grad_(s.requires_grad) for t, s in zip(given, self.inputs, strict=True)]
        try:
            with fixed_seed():
                made = ReturnedValue(self._called(inputs), self.answer, inputs, self.objects)
                found: list[Tensor | None] = [*(t.detach().clone() for t in made.all_tensors), *self._written()]
                if self.backward_graph is not None:
                    some = [t for t in made.tensors if t.requires_grad]
                    place = {id(s): t for s, t in zip(self.inputs, inputs, strict=True)}
                    wanted = [place.get(id(t), t) for t in self.wanted]
                    patterns = [pattern(t) for t in some]
                    found += torch.autograd.grad(some, wanted, patterns, allow_unused=True)
            return found
        finally:
            state.restore()


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, graph: _Graph, number: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.graph, ctx.number, ctx.token = graph, number, _Token()
        graph.waiting = weakref.ref(ctx.token)
        outputs = graph.replay_forward(tensors[:number])
        ctx.mark_non_differentiable(*(o for i, o in enumerate(outputs) if i not in graph.differentiable))
        ctx.set_materialize_grads(False)
        return outputs

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *incoming: Tensor | None) -> tuple[Any, ...]:
        graph = ctx.graph
        found = iter(graph.gradients_of(incoming))
        ctx.token = None
        of_inputs = [next(found) if static.requires_grad else None for static in graph.inputs]
        return (None, None, *of_inputs, *found)


class GraphedModule:
    """What is called in a module's place: its graphs, by call signature, and the module itself for every other call.

    With ``objects`` calls are captured too that are given an object to write into, a cache of fixed size: a graph for
    each such object, which is let go with it.
    """

    def __init__(
        self,
        module: nn.Module,
        recorder: type[Recorder] = Recorder,
        pools: Pools | None = None,
        *,
        objects: bool = False,
    ) -> None:
        self.module, self.recorder = weakref.ref(module), recorder
        self.pools = pools if pools is not None else Pools(recorder)
        self.graphs: dict[Any, _Graph | None] = {}  # None: of such a call nothing can be captured
        self.captured_signatures: set[Any] = set()  # that were captured
        self.failed: Counter[Any] = Counter()  # captures, by what kinds of objects the call was given
        self._last: Any = None
        self.reason = ""  # the last capture failed
        self.objects = objects
        self._spaces = [vars(part) for part in module.modules()]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module = self.module()
        assert module is not None
        flat, spec = pytree.tree_flatten((args, kwargs))
        objects: list[Any] = []
        call_signature = self._call_signature(flat, spec, objects)
        if call_signature is None or self.recorder.busy():
            return module._call_impl(*args, **kwargs)
        graph = self._graph(module, call_signature, objects, args, kwargs)
        if graph is None or not graph.free or not graph.stands(objects):
            return module._call_impl(*args, **kwargs)
        return graph([value for value in flat if isinstance(value, Tensor)], objects)

    def _graph(
        self, module: nn.Module, call_signature: Any, objects: Sequence[Any], args: Any, kwargs: Any
    ) -> _Graph | None:
        """The one of a call, captured if there is room for one more."""
        key = (call_signature, *map(id, objects)) if objects else call_signature
        again, self._last = not objects or key == self._last, key
        known = self.graphs.get(key)
        if known is not None and known.alive:
            return known
        # a cache is another one to a graph once its first tokens have given it its tensors
        kind = (
            (call_signature, *(t.shape for value in objects for t in tensors_in(value))) if objects else call_signature
        )
        if kind in self.graphs or not again:  # a prompt is one call, a step is followed by its like
            return None
        self.graphs = {each: graph for each, graph in self.graphs.items() if graph is None or graph.alive}
        served, given = sum(graph is not None for graph in self.graphs.values()), tuple(map(type, objects))
        new = kind not in self.captured_signatures and len(self.captured_signatures) + self.failed[given] >= MAX_GRAPHS
        if served >= MAX_GRAPHS or new:
            return None
        found = self._captured(module, args, kwargs)
        if found is None:
            self.failed[given] += 1
            self.graphs[kind] = None
        else:
            self.captured_signatures.add(kind)
            self.graphs[key] = found
        return found

    def _captured(self, module: nn.Module, args: Any, kwargs: Any) -> _Graph | None:
        try:
            return _Graph(module, args, kwargs, self.pools)
        except BudgetExceeded:
            raise
        except Exception as error:  # the module's own too: it raises it again as it runs by itself
            self.reason = _first_line(error)
            return None

    def _call_signature(self, flat: Sequence[Any], spec: Any, objects: list[Any]) -> Any:
        """What calls that one graph can serve have in common; None for a call that none can. ``objects``: gets those
        that the call is given to write into."""
        said: list[Any] = []
        for value in flat:
            if isinstance(value, Tensor):
                if not self.recorder.takes(value):
                    return None
                wants = value.requires_grad and torch.is_grad_enabled()
                said.append((value.shape, value.stride(), value.dtype, wants))
            elif isinstance(value, PLAIN_TYPES):
                said.append((type(value), value))
            elif self.objects and can_be_written(value):
                said.append(type(value))
                objects.append(value)
            else:
                return None
        kinds = ("cuda", "cpu")
        casts = tuple(torch.get_autocast_dtype(k) if torch.is_autocast_enabled(k) else None for k in kinds)
        modes = tuple((space["training"], Itself(space.get("forward"))) for space in self._spaces)
        return spec, tuple(said), torch.is_grad_enabled(), torch.is_inference_mode_enabled(), casts, modes


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)[:200]


def _wait(error: BaseException) -> str:
    """Where the host waits; "" of another error."""
    if "synchroniz" not in str(error):
        return ""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not _within(f.filename)]
    at = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno}: {(frames[-1].line or '')[:80]})" if frames else ""
    return f"the host waits for the device in it (.item(), nonzero, a copy to the CPU){at}"


def _within(file: str) -> bool:
    return any(Path(file).resolve().is_relative_to(folder) for folder in FOLDERS)
