"""A graph without gradients whose weights are constants to inductor, on a CPU, if a benchmark says that this gains.

Inductor can then lay weights out as a library takes them, fold a batch norm into the convolution before it, and keep
images channels last between convolutions (its ``freezing``). It is off in torch.compile because a program that changes
a weight later would go on with the old one. Here every call looks first: the tensors must be the same objects, laid out
as they were, and their bytes must have the digest that they had (what writes through ``.data`` or NumPy changes no
version). If anything differs, the graph runs as inductor makes it without that, from then on. The benchmark includes
what the look costs.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._python_dispatch import TorchDispatchMode

from kernelworks.build.digest import Contents, readable
from kernelworks.compile import race as region_race
from kernelworks.compile.calls import State, states, trace_operators, value_of, varies
from kernelworks.compile.partition import reason, twin
from kernelworks.compile.region import describe_graph
from kernelworks.compile.report import Graph
from kernelworks.contract.tensors import PLAIN_TYPES, leaves

__all__ = ["FrozenGraph", "Weights", "freeze_if_faster", "weights_of"]

NORMS = frozenset({"aten::native_batch_norm", "aten::cudnn_batch_norm", "aten::miopen_batch_norm"})
PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm", "convolution", "_convolution"})


# ---------------------------------------------------------------- have they changed?


class Weights:
    """Tensors as they are now: ``same(tensors)`` says whether these are they, bytes and all."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.tensors, self.contents = tuple(tensors), Contents(tensors)
        self.nbytes = self.contents.nbytes

    def same(self, tensors: Sequence[Tensor]) -> bool:
        kept = all(t is own for t, own in zip(tensors, self.tensors, strict=True))
        return kept and readable(tensors) and self.contents.same(tensors)


class FrozenGraph:
    """A graph with constant weights, while they are what they were; else ``plain``, which is made when it is needed."""

    def __init__(
        self, run: Callable[..., Any], places: Sequence[int], weights: Weights, plain: Callable[[Sequence[Any]], Any],
        graph_report: Graph,
    ) -> None:  # fmt: skip
        self.held: tuple[Callable[..., Any], Weights] | None = (run, weights)
        self.places, self.constant, self.make, self.graph_report = tuple(places), frozenset(places), plain, graph_report
        self.plain: Callable[..., Any] | None = None

    def __call__(self, *inputs: Any) -> Any:
        if self.held is not None:
            run, weights = self.held
            if weights.same([inputs[i] for i in self.places]):
                return run(*(value for i, value in enumerate(inputs) if i not in self.constant))
        if self.plain is None:
            self.plain = self.make(inputs)
            self.graph_report.notes.append("weights have changed: since then the graph runs without constant weights")
        self.held = None  # with the copies that inductor made of them
        return self.plain(*inputs)


# ---------------------------------------------------------------- may they be constants, and is it a gain?


def weights_of(graph: fx.GraphModule, inputs: Sequence[Any]) -> list[int]:
    """The places of the inputs that are a module's own tensors and stay what they are: none that the graph writes to
    (the statistics of a batch norm that learns) or hands on. None at all where gradients are recorded, no product takes
    one of them, sizes vary, or not all is plain memory of the CPU."""
    at = states(graph.graph)
    if any(state.grad for state in at.values()):
        return []
    holders = graph.graph.find_nodes(op="placeholder")
    if any(map(varies, holders)) or not all(type(t) in PLAIN_TYPES and t.device.type == "cpu" for t in inputs):
        return []
    touched = _touched(graph)
    if touched is None:
        return []
    places = [
        i
        for i, (node, t) in enumerate(zip(holders, inputs, strict=True))
        if i not in frozenset.union(*touched)
        and node.meta.get("tensor_dict", {}).get("_dynamo_static_input_type")
        and not t.is_inference()
    ]
    matrices = {holders[i] for i in places if inputs[i].dim() > 1}
    return places if any(_multiplies(user, at[user]) for node in matrices for user in node.users) else []


def _multiplies(node: fx.Node, state: State) -> bool:
    seen = trace_operators(node, state)
    return seen is not None and any(o._schema.name.removeprefix("aten::") in PRODUCTS for o in seen.operators)


def _touched(graph: fx.GraphModule) -> tuple[frozenset[int], frozenset[int]] | None:
    """The places of the inputs that the graph writes to, and of those whose memory it returns; tried on tensors without
    data, None if that cannot be."""
    given = [value_of(node) for node in graph.graph.find_nodes(op="placeholder")]
    mode = next((t.fake_mode for t in leaves(given) if hasattr(t, "fake_mode")), None)
    if mode is None or not all(isinstance(t, Tensor) for t in given):
        return None
    try:
        with mode, torch.no_grad(), torch.random.fork_rng(devices=[]):
            copies = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device) for t in given]
            before, at = [t._version for t in copies], [t.untyped_storage()._cdata for t in copies]
            with _Statistics() as moved:
                made = {t.untyped_storage()._cdata for t in leaves((graph(*copies),))}
            written = (i for i, t in enumerate(copies) if t._version != before[i] or at[i] in moved.storages)
            return frozenset(written), frozenset(i for i, place in enumerate(at) if place in made)
    except Exception:
        return None


class _Statistics(TorchDispatchMode):
    """The memory of running statistics that batch norms move: their schemas name no argument that is written to, and
    without data nothing is."""

    def __init__(self) -> None:
        TorchDispatchMode.__init__(self)
        self.storages: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.name in NORMS and args[5]:  # input, weight, bias, running_mean, running_var, training
            self.storages |= {t.untyped_storage()._cdata for t in args[3:5] if t is not None}
        return func(*args, **(kwargs or {}))


def _constant(graph: fx.GraphModule, inputs: Sequence[Any], places: Sequence[int]) -> fx.GraphModule:
    """The graph with those inputs as tensors of its own."""
    made = twin(graph)
    made.meta.pop("dynamo_compile_id", None)  # dynamo knows no such tensors of the graph
    for place, node in enumerate(made.graph.find_nodes(op="placeholder")):
        if place not in places:
            continue
        name = f"weight_{place}"
        made.register_buffer(name, inputs[place].detach())
        with made.graph.inserting_before(node):
            held = made.graph.get_attr(name)
        held.meta.update(node.meta)
        node.replace_all_uses_with(held)
        made.graph.erase_node(node)
    made.recompile()
    return made


def freeze_if_faster(
    graph: fx.GraphModule,
    inputs: Sequence[Any],
    places: Sequence[int],
    settings: Any,
    left_s: float,
    graph_report: Graph,
) -> Callable[..., Any] | None:
    """The graph compiled with the inputs at ``places`` constant, if that won its benchmark, here or before; None for
    inductor as it is. ``settings(graph, inputs, config_patches=)`` compiles, ``settings.config`` says how."""
    if not places:
        return None
    config_key = sorted(map(repr, settings.config.items()))
    path = region_race.path_of("constant_weights", "cpu", [describe_graph(graph.graph, State.current()), config_key])
    race = region_race.read_race_result(path)
    if (race is not None and not race.beats_inductor) or (race is None and left_s <= 0):
        return None
    begin = time.perf_counter()
    try:
        weights, plain = Weights([inputs[i] for i in places]), functools.partial(_apart, settings, twin(graph))
        rest = [value for i, value in enumerate(inputs) if i not in places]
        run = _apart(settings, _constant(graph, inputs, places), rest, config_patches={"freezing": True})
        made = FrozenGraph(run, places, weights, plain, graph_report)
        if race is None and time.perf_counter() - begin < left_s:
            written, _ = _touched(graph) or (frozenset(), frozenset())
            own = [t.clone() if i in written else t for i, t in enumerate(inputs)]  # the program's are left alone
            race = region_race.race_graph(made, plain(inputs), own)
            region_race.keep(path, race, [])
    except Exception as error:  # inductor's own way is there
        graph_report.notes.append(f"weights stay inputs: {reason(error)}")
        return None
    finally:
        graph_report.seconds += time.perf_counter() - begin
    if race is None:
        graph_report.notes.append("weights stay inputs: no time was left to benchmark them as constants")
        return None
    looked = f"each call checks {weights.nbytes / 1e6:.0f} MB of them"
    said = f"{race.ratio:.2f}x inductor, {looked}{', measurement too noisy' if race.noisy else ''}"
    graph_report.notes.append(
        f"weights {'are constants:' if race.beats_inductor else 'stay inputs: as constants'} {said}"
    )
    return made if race.beats_inductor else None


def _apart(settings: Any, graph: fx.GraphModule, inputs: Sequence[Any], **more: Any) -> Any:
    with region_race.isolate_compilation(torch.device("cpu")):
        return settings(twin(graph), list(inputs), **more)
