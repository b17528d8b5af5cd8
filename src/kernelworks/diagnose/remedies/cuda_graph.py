"""A module's forward, and its backward where the program trains it, as CUDA graphs: launched as one, no host between.

A graph reads its inputs where they lay when it was captured, so inputs are copied there, and outputs are copied out of
what the next replay writes. It is captured once for each form of call (sizes, dtypes, gradients, modes) and up to
``FORMS`` of them; any other call runs as it always did. So does one whose predecessor still waits for its backward,
since both would share what was saved for it. Where the host decides something on the way, it cannot be captured: that
is found by running the module once with synchronisation forbidden, and said.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from kernelworks.diagnose.answers import in_place_of
from kernelworks.diagnose.copies import State, duplicate
from kernelworks.diagnose.functions import Function
from kernelworks.diagnose.remedies.remedy import Change, Impossible, Offer, Promise, Scene
from kernelworks.diagnose.remedies.torch_compile import compile_group, placed, standing, timely
from kernelworks.diagnose.remedies.trial import share_saved
from kernelworks.diagnose.roots import Sample

__all__ = ["REMEDY", "Graphed"]

FORMS = 4  # of calls, that are captured for a module
WARM = 3  # runs ahead of a capture, in which libraries choose their kernels
PLAIN = (bool, int, float, str, type(None), torch.dtype, torch.device)
EXPECTED_S = 5.0  # for captures and a race
CODE = """\
model = torch.cuda.make_graphed_callables(model, (example_input,))  # inputs of one size, no .item() in it"""


class Recorder:
    """One CUDA graph. ``record`` runs a function once, for capture, and returns what it returns: what a ``replay``
    writes anew."""

    def __init__(self, pool: Any) -> None:
        self.graph = torch.cuda.CUDAGraph()
        self.pool = pool

    def record(self, run: Callable[[], Sequence[Any]]) -> Sequence[Any]:
        with torch.cuda.graph(self.graph, pool=self.pool):
            return run()

    def replay(self) -> None:
        self.graph.replay()

    @staticmethod
    def takes(tensor: Tensor) -> bool:
        """Whether a graph reads and writes it: what the host computes is not in one."""
        return tensor.is_cuda

    @staticmethod
    def pools() -> Any:
        return torch.cuda.graph_pool_handle()

    @staticmethod
    def warm(run: Callable[[], Any]) -> None:
        """Runs ahead of a capture, on a stream of their own."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM):
                run()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()


class _Token:
    """Lives as long as the backward of one call may still come."""


class _Graph:
    """One form of call, captured."""

    def __init__(self, module: nn.Module, args: Any, kwargs: Any, recorder: type[Recorder]) -> None:
        flat, self.spec = pytree.tree_flatten((args, kwargs))
        self.module, self.where = module, [i for i, value in enumerate(flat) if isinstance(value, Tensor)]
        self.flat = list(flat)
        for i in self.where:
            self.flat[i] = flat[i].detach().clone()
            if flat[i].requires_grad and torch.is_grad_enabled():
                self.flat[i].requires_grad_()
        self.inputs = [self.flat[i] for i in self.where]
        self.training = torch.is_grad_enabled()
        parameters = [p for p in module.parameters() if p.requires_grad]
        self.places = list(_places(module))
        self.wanted = [t for t in (*self.inputs, *parameters) if t.requires_grad] if self.training else []
        self.waiting: weakref.ref[_Token] | None = None
        self.backward_graph: Recorder | None = None
        state = State(module)  # which the runs ahead of the capture change
        caching = torch.is_autocast_cache_enabled()
        torch.clear_autocast_cache()
        torch.set_autocast_cache_enabled(False)  # a weight that was cast outside a graph is stale in it
        try:
            recorder.warm(self._once)
            self.held = list(_places(module))  # what the first run of all makes and keeps is read where it lies
            self._record(recorder)
            if not all(recorder.takes(o) for o in self.live):
                raise Impossible("it returns a tensor that is not on the GPU")
            if not _in_place(self.held):
                raise Impossible("it puts another tensor in the place of one that it holds")
        finally:
            torch.set_autocast_cache_enabled(caching)
            state.restore()

    def _record(self, recorder: type[Recorder]) -> None:
        pool = recorder.pools()
        self.forward_graph = recorder(pool)
        self.outputs = list(self.forward_graph.record(self._forward))
        self._see()
        if self.differentiable and self.wanted:
            self.backward_graph = recorder(pool)
            self.gradients = list(self.backward_graph.record(self._backward))

    def _see(self) -> None:
        """What of the outputs has gradients."""
        self.differentiable = [i for i, o in enumerate(self.live) if o.requires_grad]
        self.incoming = [torch.zeros_like(self.live[i]) for i in self.differentiable]

    def _forward(self) -> Sequence[Tensor]:
        args, kwargs = pytree.tree_unflatten(self.flat, self.spec)
        self.returned, self.out_spec = pytree.tree_flatten(self.module._call_impl(*args, **kwargs))
        if not all(isinstance(o, (Tensor, *PLAIN)) for o in self.returned):
            raise Impossible("it returns more than tensors")
        self.live = [o for o in self.returned if isinstance(o, Tensor)]
        if not self.live:
            raise Impossible("it returns no tensor")
        return [o.detach() for o in self.live]

    def _backward(self) -> Sequence[Tensor | None]:
        some = [self.live[i] for i in self.differentiable]
        return torch.autograd.grad(some, self.wanted, self.incoming, retain_graph=True, allow_unused=True)

    def _once(self) -> None:
        self._forward()
        self._see()
        if self.differentiable and self.wanted:
            self._backward()

    @property
    def free(self) -> bool:
        """Whether no call waits for its backward, and every tensor of the module's lies where it did."""
        waits = self.waiting is not None and self.waiting() is not None
        return not waits and _in_place(self.places)

    def __call__(self, tensors: Sequence[Tensor]) -> Any:
        if self.backward_graph is None:
            outputs = self.replayed(tensors)
        else:
            needed = [t for t in self.wanted if not any(t is i for i in self.inputs)]
            replay: Any = _Replay.apply  # without annotations
            outputs = replay(self, len(tensors), *tensors, *needed)
        made = iter(outputs)
        whole = [next(made) if isinstance(o, Tensor) else o for o in self.returned]
        return pytree.tree_unflatten(whole, self.out_spec)

    @torch.no_grad()
    def replayed(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        for static, given in zip(self.inputs, tensors, strict=True):
            static.copy_(given)
        self.forward_graph.replay()
        return tuple(o.clone() for o in self.outputs)

    @torch.no_grad()
    def gradients_of(self, incoming: Sequence[Tensor | None]) -> list[Tensor | None]:
        """One for each of ``wanted``, each a tensor of its own: they may be kept, and added to."""
        assert self.backward_graph is not None
        for static, i in zip(self.incoming, self.differentiable, strict=True):
            given = incoming[i]
            if given is None:
                static.zero_()
            else:
                static.copy_(given)
        self.backward_graph.replay()
        self.waiting = None
        return [None if g is None else g.clone() for g in self.gradients]


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, graph: _Graph, number: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.graph, ctx.number, ctx.token = graph, number, _Token()
        graph.waiting = weakref.ref(ctx.token)
        outputs = graph.replayed(tensors[:number])
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


Place = tuple[dict[str, Any], str, Tensor, int]


def _in_place(places: Iterable[Place]) -> bool:
    return all(space.get(name) is t and t.data_ptr() == at for space, name, t, at in places)


def _places(module: nn.Module) -> Iterator[Place]:
    """Where each module holds a tensor, the tensor, and where that lies."""
    for part in module.modules():
        for space in (part._parameters, part._buffers, part.__dict__):
            for name, value in space.items():
                if isinstance(value, Tensor):
                    yield space, name, value, value.data_ptr()


class Graphed:
    """What is called in a module's place: its graphs, by form of call, and the module itself for every other call."""

    def __init__(self, module: nn.Module, recorder: type[Recorder] = Recorder) -> None:
        self.module, self.recorder = weakref.ref(module), recorder
        self.graphs: dict[Any, _Graph | None] = {}  # None: of such a call nothing can be captured
        self.why = ""  # the last capture failed

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module = self.module()
        assert module is not None
        flat, spec = pytree.tree_flatten((args, kwargs))
        form = _form(module, flat, spec, self.recorder)
        if form is None:
            return module._call_impl(*args, **kwargs)
        if form not in self.graphs and len(self.graphs) < FORMS:
            self.graphs[form] = self._captured(module, args, kwargs)
        graph = self.graphs.get(form)
        if graph is None or not graph.free:
            return module._call_impl(*args, **kwargs)
        return graph([value for value in flat if isinstance(value, Tensor)])

    def _captured(self, module: nn.Module, args: Any, kwargs: Any) -> _Graph | None:
        try:
            return _Graph(module, args, kwargs, self.recorder)
        except (RuntimeError, Impossible) as error:
            self.why = next(iter(str(error).strip().splitlines()), type(error).__name__)[:200]
            return None


def _form(module: nn.Module, flat: Sequence[Any], spec: Any, recorder: type[Recorder]) -> Any:
    """What calls that one graph can serve have in common; None for a call that none can."""
    said: list[Any] = []
    for value in flat:
        if isinstance(value, Tensor):
            if not recorder.takes(value):
                return None
            said.append((value.shape, value.stride(), value.dtype, value.requires_grad and torch.is_grad_enabled()))
        elif isinstance(value, PLAIN):
            said.append(value)
        else:
            return None
    kinds = ("cuda", "cpu")
    casts = tuple(torch.get_autocast_dtype(k) if torch.is_autocast_enabled(k) else None for k in kinds)
    modes = tuple(m.training for m in module.modules())
    return spec, tuple(said), torch.is_grad_enabled(), torch.is_inference_mode_enabled(), casts, modes


class _Remedy:
    name = "CUDA graph"

    def offers(self, scene: Scene) -> Iterator[Offer]:
        if not scene.on_gpu:
            return
        if scene.roots.fresh:
            raise Impossible("the program makes its modules anew each time it runs: each would be captured anew")
        for root in timely(scene):
            if not standing(root) and not (isinstance(root, Function) and root.held):  # a graph knows where that lay
                site = scene.site(root)
                yield Offer(
                    self.name, site, "captured, and launched as one", code=CODE, group=compile_group(site),
                    touches=frozenset({"ops"}),
                )  # fmt: skip

    def predict(self, scene: Scene, offer: Offer) -> Promise:
        root, budget = scene.at(offer.site), scene.budget
        assert budget is not None
        budget.ask("capturing a CUDA graph", EXPECTED_S)
        samples = [s for s in scene.roots.samples if s.module is root]
        if len({_sizes(s) for s in samples}) > FORMS:
            raise Impossible("the sizes of its inputs change from call to call")
        scene.say("a run with synchronisation forbidden")
        for sample in samples[:1]:
            _unsynchronised(sample)
        scene.say("capturing a CUDA graph, and a race of it")
        change = self.apply(scene, offer)
        saves, first_s = share_saved(scene, change, scene.alone(root).roots)
        graphed = scene.keep(("cuda graph", id(root)), lambda: Graphed(root))
        if not any(graphed.graphs.values()):
            raise Impossible(f"it cannot be captured: {graphed.why or 'it is called with other than plain tensors'}")
        return Promise(saves, first_s, how="raced on the inputs that it is called with")

    def apply(self, scene: Scene, offer: Offer) -> Change:
        root = scene.at(offer.site)
        graphed = scene.keep(("cuda graph", id(root)), lambda: Graphed(root))
        return Change(lambda: placed([(root, graphed)]))


def _sizes(sample: Sample) -> Any:
    flat, _ = pytree.tree_flatten((sample.args, sample.kwargs))
    return tuple(tuple(value.shape) for value in flat if isinstance(value, Tensor))


def _unsynchronised(sample: Sample) -> None:
    """Raises Impossible where the host waits for the device in a call."""
    state, (args, kwargs) = State(sample.module), duplicate((sample.args, sample.kwargs))
    mode = torch.cuda.get_sync_debug_mode()
    try:
        with in_place_of(sample):
            torch.cuda.set_sync_debug_mode("error")
            sample.module(*args, **kwargs)
    except RuntimeError as error:
        if "synchroniz" in str(error):
            raise Impossible("the host waits for the device in it (.item(), nonzero, a copy to the CPU)") from error
        raise
    finally:
        torch.cuda.set_sync_debug_mode(mode)
        state.restore()


REMEDY = _Remedy()
