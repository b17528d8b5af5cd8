"""Which calls of a graph run by a kernel of ours: those whose region won a benchmark, in this or an earlier compile."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from kernelworks.build import native
from kernelworks.compile import progress
from kernelworks.compile import race as region_race
from kernelworks.compile.attention import attentions
from kernelworks.compile.calls import OpCall, TensorView, find_op_calls, states, varies
from kernelworks.compile.decomposed_ops import by_hand
from kernelworks.compile.pairwise import kernel_products
from kernelworks.compile.partition import reason
from kernelworks.compile.region import Region, region_of
from kernelworks.compile.replace import misfit, replace_call
from kernelworks.compile.report import Call, Graph
from kernelworks.compile.rotary import rotations
from kernelworks.compile.split_passes import INDUCTOR
from kernelworks.contract import Cost
from kernelworks.dispatch.choose import OR_TORCH, eligible_ways
from kernelworks.dispatch.tuning_records import call_of
from kernelworks.measure.clock.duel import OverTime

__all__ = ["Races", "choose_kernels"]

ENOUGH = 2  # After so many regions with one call signature have lost, the graph's next ones are not benchmarked.
WORTH = 1.1  # A kernel that is so many times as fast alone in one pass may pay though inductor has the other.
HOPELESS = 0.9  # A kernel that alone has less than this speedup over torch's function will not beat inductor.
DECOMPOSED, TIMED, UNKNOWN = range(3)  # This is the order of races; UNKNOWN ones get half of the time at most.
SMALL = 1 << 16  # bytes: inductor's loops move them in less than the ten microseconds that calling a kernel takes
BALANCE = 8.0  # A core does about so many operations in the time in which it reads a byte.
TORCH_KERNEL = "torch"  # This kernel calls torch's own one; it counts if inductor would decompose the call.


@dataclass
class Races:
    """The races of one graph: what they may take, and what they took."""

    budget_s: float
    patches: Mapping[str, Any]
    given: Mapping[fx.Node, Any] = field(default_factory=dict)  # the program's tensors, by placeholder
    spent_s: float = 0.0
    lost: dict[tuple[str, str], tuple[float, ...]] = field(default_factory=dict)

    @property
    def left_s(self) -> float:
        return self.budget_s - self.spent_s


def choose_kernels(module: fx.GraphModule, races: Races, graph_report: Graph) -> None:
    """Puts kernels of ours into a graph, and reports what became of each call signature."""
    if any(map(varies, module.graph.find_nodes(op="placeholder"))):
        graph_report.notes.append("sizes vary between calls: benchmarks use the first sizes that were seen")
    by_signature: dict[tuple[str, str, int], list[tuple[OpCall, Region]]] = {}
    verdicts: dict[tuple[str, str, str], list[int]] = {}

    def refused(op: str, node: fx.Node, why: str) -> None:
        verdicts.setdefault((op, "...", why), []).append(1)

    fusible: dict[fx.Node, bool] = {}
    at = states(module.graph)
    graph = module.graph
    decomposed = [*attentions(graph, at), *rotations(graph, at), *kernel_products(graph, at), *by_hand(graph, at)]
    for call in (*decomposed, *find_op_calls(module.graph, refused)):
        words = _words(call)
        why = misfit(call)
        region = why or region_of(call, at, fusible)
        if isinstance(region, str):
            verdicts.setdefault((call.op.name, words, region), []).append(1)
        else:
            by_signature.setdefault((words, region.key, region.place_of(call.node)), []).append((call, region))
    graph_report.calls += [Call(op, words, len(n), "", why) for (op, words, why), n in verdicts.items()]
    taken: list[tuple[OpCall, str]] = []
    gone: set[fx.Node] = set()  # a call may be a part of another that is written out, or of what leads to it
    made: set[fx.Node] = set()
    read: set[fx.Node] = set()
    for (words, *_), alike in sorted(by_signature.items(), key=_turn):
        calls = [its for its in alike if _stands(its[0], gone, made, read)]
        if not calls:
            continue
        kernel, why, ratio = _decided(*calls[0], races)
        graph_report.add(Call(calls[0][0].op.name, words, len(calls), kernel.removesuffix(OR_TORCH), why, ratio))
        if kernel:
            taken += [(call, kernel) for call, _ in calls]
            for call, _ in calls:
                gone.update(call.inside, call.around)
                made.update(_made(call))
                read.update(_read(call))
    now: dict[fx.Node, fx.Node] = {}
    for call, kernel in taken:
        now.update(replace_call(call, kernel, lambda node: now.get(node, node)))
    graph_report.seconds = races.spent_s
    module.graph.lint()
    module.recompile()


def _read(call: OpCall) -> set[fx.Node]:
    """The nodes that a call is handed."""
    return {source.node if isinstance(source, TensorView) else source for source in call.sources if source is not None}


def _made(call: OpCall) -> set[fx.Node]:
    """The nodes in whose place a call puts its results."""
    return {call.node, *(node for node, _, _ in call.beside)}


def _stands(call: OpCall, gone: set[fx.Node], made: set[fx.Node], read: set[fx.Node]) -> bool:
    """Whether a call is still there, and what it reads, and whether what it takes away is nothing that is ``read``:
    others that are taken leave nothing of what is ``gone`` but what they have ``made``."""
    there = gone.isdisjoint(call.inside) and _read(call).isdisjoint(gone - made)
    return there and read.isdisjoint({*call.inside} - _made(call))


def _ways(call: OpCall) -> list[tuple[str, str]]:
    """The kernels worth a race, each as it is called and as a graph names it. Of ours there is at most one: the one
    that tuning records prefer to torch's function, or the first eligible one if there is no record of such a call. A
    pointwise op without a record is left to inductor, since fusing it is sure to pay. Elementary functions on a CPU are
    the exception: inductor's may be several times as slow as ours."""
    if call.added is not None:
        return [(TORCH_KERNEL, TORCH_KERNEL)]
    found = []
    choice = call.op.choice(call.args, None, call.wanted)
    if not choice.native:
        found.append(choice.way)
    elif choice.tuning_record is None and (not call.op.pointwise or (_on_cpu(call) and _cost(call).transcendental)):
        ways, _ = eligible_ways(call.op, call.op.request(call.pass_, call.args, call.wanted))
        found += list(ways)[:1]
    named = [(way, f"{way}{OR_TORCH}") for way in found]
    if call.op.contract.arithmetic == "products" and len(call.parts) > 1:
        named.append((TORCH_KERNEL, TORCH_KERNEL))
    return named


def _turn(alike: tuple[Any, list[tuple[OpCall, Region]]]) -> tuple[int, float]:
    """The place of a call signature among the races: by its promise, then by the work of all such calls, most first."""
    calls = alike[1]
    cost = _cost(calls[0][0])
    return _promise(calls[0][0]), -len(calls) * (cost.bytes + cost.flop / BALANCE)


def _words(call: OpCall) -> str:
    """A call's arguments."""
    words = call_of(call.op.request(call.pass_, call.args, call.wanted))
    if call.added is None:
        return words
    bias = call.added.value()
    return f"{words}; added to scores {str(bias.dtype).removeprefix('torch.')}{list(bias.shape)}"


def _on_cpu(call: OpCall) -> bool:
    device: torch.device = call.args[0].device
    return device.type == "cpu"


def _cost(call: OpCall) -> Cost:
    return call.op.contract.cost(call.op.request("forward", call.args))


def _promise(call: OpCall) -> int:
    """The order of the races, should there be no time for all: first what inductor would decompose, then what a tuning
    record speaks for, then what has no record."""
    if call.op.contract.arithmetic == "products" and len(call.parts) > 1:
        return DECOMPOSED
    return UNKNOWN if call.op.choice(call.args, None, call.wanted).native else TIMED


def _decided(call: OpCall, region: Region, races: Races) -> tuple[str, str, float]:
    """The kernel for a call ("" for inductor), the reason, and the ratio of the race."""
    ways = _ways(call)
    choice = call.op.choice(call.args, None, call.wanted)
    because = choice.because.split(";")[0]
    if choice.torch_declines and choice.requested_kernel:  # a race would run what does not fit the memory
        return choice.requested_kernel, because, 0.0
    if not ways and not _parts_of(call):
        return "", because, 0.0
    cost = _cost(call)
    moved = max(cost.bytes, cost.flop / BALANCE)  # pairs of few points are many
    if call.op.contract.arithmetic != "products" and _on_cpu(call) and moved < SMALL:
        return "", "so small that inductor's loops are done before a kernel is called", 0.0
    races_of = {name: (kernel, _race_result(call, region, kernel, races)) for name, kernel in ways}
    whole = any(isinstance(race, region_race.RegionRaceResult) for _, race in races_of.values())
    races_of |= {
        name: (kernel, _race_result(call, region, kernel, races))
        for name, kernel in _halved(call, region, whole, races)
    }
    if not races_of:
        return "", because, 0.0
    completed_races = {
        name: race for name, (_, race) in races_of.items() if isinstance(race, region_race.RegionRaceResult)
    }
    said = {name: str(race) for name, (_, race) in races_of.items()}
    said |= {name: f"{race.ratio:.2f}x inductor, {race}" for name, race in completed_races.items()}
    taken = max(
        (name for name in completed_races if completed_races[name].beats_inductor),
        key=lambda name: completed_races[name].ratio,
        default="",
    )
    first = [said[taken]] if taken else []  # the report names the kernel ahead of it
    lines = [*first, *(f"{name}: {line}" for name, line in said.items() if name != taken)]
    most = max((race.ratio for race in completed_races.values()), default=0.0)
    return races_of[taken][0] if taken else "", "; ".join(lines), most


def _parts_of(call: OpCall) -> tuple[str, str] | None:
    """The kernels of a call's forward and of its gradients, if each may run without the other: inductor's version of
    the other pass is no library operator, and the op has one result."""
    apart = bool(call.wanted) and not (call.op.pointwise or call.beside or call.op.contract.mutates)
    if not apart or call.op.contract.arithmetic == "products" or call.op._to_record:
        return None
    ways, _ = eligible_ways(call.op, call.op.request("training", call.args, call.wanted))
    return next(((kernels[0].name, kernels[1].name) for kernels in ways.values() if len(kernels) == 2), None)


def _halved(call: OpCall, region: Region, whole: bool, races: Races) -> list[tuple[str, str]]:
    """The ways worth a race in which inductor has one of the passes. Such a way is worth it if its kernel alone is
    faster than torch in its pass, and our kernel of the other pass is slower, or the ``whole`` was not benchmarked."""
    parts = _parts_of(call)
    if parts is None:
        return []
    names = [f"{parts[0]}+{INDUCTOR}", f"{INDUCTOR}+{parts[1]}"]
    named = [(name, f"{name}{OR_TORCH}") for name in names]
    known = [each for each in named if region_race.recall_race(call, region, each[1], races.patches) is not None]
    if known or races.left_s <= races.budget_s / 2:
        return known
    begin = time.perf_counter()
    try:
        isolated_speedup = region_race.pass_speedups(call, parts, _words(call))
    except Exception:  # a kernel that cannot run these is not worth a race
        return []
    finally:
        races.spent_s += time.perf_counter() - begin
    return [
        each for each, own, other in zip(named, isolated_speedup, isolated_speedup[::-1], strict=True)
        if own >= WORTH and (not whole or other < 1)
    ]  # fmt: skip


def _race_result(call: OpCall, region: Region, kernel: str, races: Races) -> region_race.RegionRaceResult | str:
    before = region_race.recall_race(call, region, kernel, races.patches)
    if before is not None:
        return before
    signature = _words(call), kernel
    lost = races.lost.get(signature, ())
    if len(lost) >= ENOUGH:
        return f"not benchmarked: like {len(lost)} others in this graph, the best of them at {max(lost):.2f}x inductor"
    if races.left_s <= (races.budget_s / 2 if _promise(call) == UNKNOWN else 0):
        return f"not benchmarked: {'the time budget was used up' if races.budget_s else 'the time budget is 0'}"
    native.provide(progress.say)  # a kernel that is called through Python loses races that it wins in the end
    begin = time.perf_counter()
    named = kernel.removesuffix(OR_TORCH)
    progress.say(f"benchmarking {call.op.name} by {named} in its region ({races.left_s:.0f} s left)")
    try:
        isolated_speedup = (
            HOPELESS if kernel == TORCH_KERNEL or INDUCTOR in kernel else region_race.forward_speedup(call, kernel)
        )
        if isolated_speedup < HOPELESS:
            return f"not benchmarked in its region: alone it has {isolated_speedup:.2f}x torch's function"
        inputs = region_race.inputs_of(call, region, races.given)
        made = region_race.race_region(call, region, kernel, inputs, races.patches, begin + races.left_s)
    except OverTime as error:
        return f"not benchmarked: {error}"
    except Exception as error:  # what inductor makes of a region is not to stop a program that it can compile
        return f"could not be benchmarked: {reason(error)}"
    finally:
        races.spent_s += time.perf_counter() - begin
    if made.ratio < 1 and not made.noisy:
        races.lost[signature] = (*lost, made.ratio)
    return made
