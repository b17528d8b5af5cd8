"""The two orders of a search: in which optimizations are tried, and in which those that are kept are put in place.

They are tried by their expected gain for each second that it takes to know it (``TRIALS``). What needs only a few runs
of the program is measured before anything is compiled: a compiler may take all that is left of a small budget.

A plan is in the order of ``STAGES``. A compiler and a graph hold what they were given: the memory of weights, the
modules that were there, their dtypes. What moves or replaces any of it comes first, and if something comes beneath them
later, they are made anew on top of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from kernelworks.diagnose.fix.alternate import LEAST_NOISE
from kernelworks.diagnose.fix.attempt import Try
from kernelworks.diagnose.fix.time_limits import TRIAL_RUNS
from kernelworks.diagnose.optimization import Candidate, Impossible, Scene

__all__ = [
    "COMPILERS",
    "CUDA_GRAPHS",
    "INDEPENDENT",
    "SETTINGS",
    "SWITCH",
    "TUNED",
    "TRIALS",
    "Trial",
    "gain_per_second",
    "groups_of_tries",
    "in_order",
    "prediction_s",
    "stage",
    "tries_above",
    "tries_beneath",
    "trial_of",
    "trial_s",
    "turn_of",
]

SETTINGS, LAYOUT, WEIGHTS, DTYPE, OPS, COMPILERS, GRAPHS, INDEPENDENT = range(8)
CUDA_GRAPHS, TUNED = "reduce-overhead", "max-autotune"  # torch.compile's modes
STAGES = {
    "threads": SETTINGS,  # of the process: nothing that is compiled or captured holds them
    "allocator": SETTINGS,
    "channels_last": LAYOUT,  # moves weights
    "folded norms": WEIGHTS,  # replaces modules and their weights
    "merged projections": WEIGHTS,
    "unread maps": WEIGHTS,  # a compiler traces what is called then
    "weights cast once": DTYPE,
    "fewer bits": DTYPE,
    "swap": OPS,  # a compiler traces what the modules call by then
    "swap in functions": OPS,
    "torch.compile": COMPILERS,
    "static cache": COMPILERS,  # compiles the steps of a decoder
    "CUDA graph": GRAPHS,
}  # what is not named (optimizers, input) is beside: it neither moves parameters of modules nor is captured with them


def stage(one: Try) -> int:
    return STAGES.get(one.candidate.optimization, INDEPENDENT)


def in_order(tries: Sequence[Try]) -> list[Try]:
    return sorted(tries, key=stage)


def tries_beneath(one: Try, others: Sequence[Try]) -> list[Try]:
    """Those that are in place when it is put there, in their order: all but what comes on top of it."""
    mine = stage(one)
    return in_order([o for o in others if o is not one and not mine < stage(o) < INDEPENDENT])


def tries_above(one: Try, others: Sequence[Try]) -> list[Try]:
    """Those that hold what it moves or replaces, and must be made anew on top of it."""
    mine = stage(one)
    if mine == SETTINGS:
        return []
    return in_order([o for o in others if o is not one and mine < stage(o) and stage(o) in (COMPILERS, GRAPHS)])


# ---------------------------------------------------------------- in which order they are tried

SWITCH, FEW_RUNS, BY_COST, LAST = range(4)  # turns
STATIC_CACHE, WHOLE, CAPTURED = "static cache", "torch.compile", "torch.compile reduce-overhead"
# On a GPU, what a small budget must not be over before: of each module the first that works, the others by their cost.
SWITCHES_ON_GPU = CAPTURED, WHOLE  # what cannot be captured is compiled all the same
SWITCHES_TO_GENERATE = STATIC_CACHE, WHOLE, CAPTURED  # a cache that grows makes a capture of each of its sizes
BENCHMARK_S = 2.0  # of what has been compiled beside
LEAST_TRIAL_S = 1.0  # of a program whose runs take no time
OTHER_MODE = 0.5  # of what a backend saves, in a mode that has lost: what wins captured seldom wins uncaptured
COMPILED_AGAIN = 2.0  # of what it takes to predict a compiled form: the program may call it with other sizes, too
FEW_SHARE = 0.5  # of what is left of the budget: what takes more is not had in a few runs


class Trial(NamedTuple):
    """When an optimization has its turn, and why.

    ``share`` of the wall clock is what it is expected to save before it is predicted: what it saved of the programs in
    ``benchmarks/results`` on the average, a guess for what none of them needs. Its prediction takes ``seconds`` and
    ``runs`` of the program; what can tell that better says it itself (``TellsSeconds``)."""

    turn: int
    share: float
    seconds: float
    runs: int
    reason: str


TRIALS = {
    "torch.compile reduce-overhead": Trial(BY_COST, 0.22, 20.0, 0, "on a GPU it gains most often"),
    "allocator": Trial(FEW_RUNS, 0.21, 0.5, 7, "two calls of malloc's settings, then runs of the program"),
    "fused optimizer": Trial(FEW_RUNS, 0.1, 1.0, 3, "steps on copies of its parameters"),
    "gradient clipping": Trial(FEW_RUNS, 0.05, 1.0, 3, "clippings of copies of the gradients"),
    "zeroed gradients": Trial(FEW_RUNS, 0.02, 0.1, 0, "advice, or a setting"),
    "threads": Trial(FEW_RUNS, 0.02, 0.1, 7, "one setting, then runs of the program"),
    "channels_last": Trial(FEW_RUNS, 0.05, 2.0, 3, "weights are laid anew once, and modules run on their inputs"),
    "folded norms": Trial(FEW_RUNS, 0.05, 2.0, 3, "weights are folded once, and modules run on their inputs"),
    "unread maps": Trial(FEW_RUNS, 0.1, 2.0, 3, "one argument, and modules run on their inputs"),
    "weights cast once": Trial(FEW_RUNS, 0.1, 2.0, 3, "weights are cast once, and modules run on their inputs"),
    "merged projections": Trial(FEW_RUNS, 0.03, 2.0, 3, "weights are laid together, and modules run on their inputs"),
    "fewer bits": Trial(FEW_RUNS, 0.2, 2.0, 3, "only if it is allowed; modules run on their inputs"),
    "unused gradients": Trial(FEW_RUNS, 0.0, 0.0, 0, "advice: nothing is tried"),
    "waits": Trial(FEW_RUNS, 0.0, 0.0, 0, "advice: nothing is tried"),
    "padded sizes": Trial(FEW_RUNS, 0.0, 0.0, 0, "advice: nothing is tried"),
    "input": Trial(FEW_RUNS, 0.0, 0.0, 0, "advice: nothing is tried"),
    "CUDA graph": Trial(BY_COST, 0.05, 2.0, 24, "a capture, and runs to compare it with"),
    "static cache": Trial(BY_COST, 0.2, 10.0, 8, "on a GPU the decoding steps are compiled"),
    "swap": Trial(BY_COST, 0.11, 20.0, 10, "its calls are benchmarked, and kernels built, for part of the budget"),
    "swap in functions": Trial(BY_COST, 0.11, 10.0, 10, "its calls are benchmarked, for part of the budget"),
    "torch.compile": Trial(BY_COST, 0.19, 12.0, 0, "what a user tries first"),
    "torch.compile blocks": Trial(BY_COST, 0.15, 6.0, 0, "one compile for all blocks; it shows what the whole takes"),
    "torch.compile part": Trial(BY_COST, 0.15, 6.0, 0, "one compile for all of its calls"),
    "torch.compile alike": Trial(BY_COST, 0.19, 6.0, 0, "one compile for all layers of a kind that it calls"),
    "torch.compile step": Trial(
        BY_COST, 0.15, 20.0, 8, "beyond its modules; the optimizer is compiled too, and the program is run with it"
    ),
    "torch.compile kernelworks": Trial(
        BY_COST, 0.17, 28.0, 0, "beyond what torch's default saves; kernels are benchmarked for each of its calls"
    ),
    "torch.compile kernelworks reduce-overhead": Trial(
        LAST, 0.05, 60.0, 0, "beyond what CUDA graphs save: on an H200 it gained for neither of two programs"
    ),
    "torch.compile max-autotune": Trial(
        LAST, 0.18, 36.0, 0, "every kernel is tuned, in silence for minutes, for little beyond what was compiled before"
    ),
}
UNKNOWN = Trial(FEW_RUNS, 0.05, 1.0, 3, "no figure is on record")
MODES = ("backend", "mode")  # options of a compiler that have entries of their own: how, and what it compiles
TARGETS = ("alike", "blocks", "part", "step")


@runtime_checkable
class TellsSeconds(Protocol):
    """An optimization that can tell how long its prediction will take here: a compiler."""

    def expected_s(self, scene: Scene, candidate: Candidate) -> float: ...


def trial_of(candidate: Candidate) -> Trial:
    """The entry of the table for a candidate: of a compiler that of its mode."""
    modes = [str(candidate.option(name)) for name in MODES if candidate.option(name)]
    first = modes[0] if modes else ""
    kinds = [*(word for word in TARGETS if candidate.option(word)), " ".join(modes), first]
    kinds.append(first.removesuffix("-no-cudagraphs"))
    named = (TRIALS.get(f"{candidate.optimization} {kind}") for kind in kinds if kind)
    return next(filter(None, named), None) or TRIALS.get(candidate.optimization, UNKNOWN)


def prediction_s(scene: Scene, one: Try) -> float:
    """Seconds that its prediction is expected to take."""
    if one.loads_s is not None:
        return one.loads_s + BENCHMARK_S
    if isinstance(one.optimization, TellsSeconds):
        return one.optimization.expected_s(scene, one.candidate)
    trial = trial_of(one.candidate)
    return trial.seconds + trial.runs * scene.wall


def trial_s(scene: Scene) -> float:
    """Seconds to verify and measure one at the least."""
    return LEAST_TRIAL_S + TRIAL_RUNS * scene.wall


def expected_gain(scene: Scene, one: Try, kept: Sequence[Try] = ()) -> float:
    """The share of the wall clock that it is expected to save before it is predicted. Of what is changed in one module
    that is a share of that module's time; of a compiler with another backend half, if what is ``kept`` in its place
    shows that another of its modes is the better one here."""
    site, seconds = one.candidate.site, scene.roots.seconds
    share = trial_of(one.candidate).share
    if one.candidate.option("backend") and any(_is_otherwise(one.candidate, other.candidate) for other in kept):
        share *= OTHER_MODE
    if site.kind not in ("module", "function") or not seconds:
        return share
    try:
        took = seconds.get(id(scene.at(site)), 0.0)
    except Impossible:
        return 0.0
    return share * (took / max(seconds.values()) if took else 1.0)


def _is_otherwise(one: Candidate, other: Candidate) -> bool:
    """Whether it is compiled in the other's place in another mode."""
    alike = one.optimization == other.optimization and bool(one.group) and one.group == other.group
    return alike and one.option("mode") != other.option("mode")


def gain_per_second(scene: Scene, one: Try, kept: Sequence[Try] = ()) -> float:
    """What a second of the budget is expected to bring: of one that is not predicted yet."""
    return expected_gain(scene, one, kept) / (prediction_s(scene, one) + trial_s(scene))


def groups_of_tries(
    scene: Scene, tries: Sequence[Try], kept: Sequence[Try] = (), *, tried: Sequence[Try] | None = None, isolated: bool
) -> list[list[Try]]:
    """What is predicted together, and tried before the next group is predicted: of these, with the others that were
    ``tried``. First torch's switch on a GPU, if it fits the budget; then all that takes a few runs; then one after
    another what compiles, by what a second brings. What may end the user's own process (not ``isolated``) comes last,
    as it must not end it sooner."""
    every = tries if tried is None else tried
    by_turn: dict[int, list[Try]] = {turn: [] for turn in range(LAST + 1)}
    for one in sorted(tries, key=lambda one: -gain_per_second(scene, one, kept)):
        by_turn[LAST if one.candidate.risky and not isolated else turn_of(scene, one, every)].append(one)
    first, few, _, last = by_turn.values()
    by_cost = _wholes_first(scene, by_turn[BY_COST])
    return [group for group in (*([one] for one in first), few, *([one] for one in (*by_cost, *last))) if group]


def _wholes_first(scene: Scene, by_cost: list[Try]) -> list[Try]:
    """The same, but the whole before its blocks where the budget holds the whole and not both: it saves more, and a
    user has it by a switch."""
    assert scene.budget is not None
    ordered, left_s = list(by_cost), scene.budget.seconds_left
    for blocks in by_cost:
        whole = next((one for one in by_cost if _is_whole_of(one.candidate, blocks.candidate)), None)
        if whole is None:
            continue
        alone_s, with_s = (COMPILED_AGAIN * prediction_s(scene, one) + trial_s(scene) for one in (whole, blocks))
        if alone_s <= left_s < alone_s + with_s and ordered.index(blocks) < ordered.index(whole):
            ordered.remove(whole)
            ordered.insert(ordered.index(blocks), whole)
    return ordered


def _is_whole_of(one: Candidate, blocks: Candidate) -> bool:
    """Whether it compiles, in the default mode, the whole of what the other compiles by blocks."""
    alike = one.optimization == blocks.optimization and bool(one.group) and one.group == blocks.group
    return alike and bool(blocks.option("blocks")) and not any(one.option(word) for word in (*TARGETS, *MODES))


def turn_of(scene: Scene, one: Try, tried: Sequence[Try]) -> int:
    """Its turn with this budget, after what was ``tried``."""
    assert scene.budget is not None
    if _is_switch(scene, one, tried):
        return SWITCH
    turn = trial_of(one.candidate).turn
    if turn == FEW_RUNS and _takes_s(scene, one) > FEW_SHARE * scene.budget.seconds_left:
        return BY_COST
    return turn


def _takes_s(scene: Scene, one: Try) -> float:
    return prediction_s(scene, one) + trial_s(scene)


def _is_switch(scene: Scene, one: Try, tried: Sequence[Try]) -> bool:
    """Whether it is what a user tries first of its module on a GPU, and fits the budget: the first that is left of
    its switches, unless one of them is in place, or one of ``SWITCHES_ON_GPU`` was predicted to save nothing: the next
    would save less. Of a cache of fixed size that says nothing: a search with beams pays more for it than it saves."""
    if not scene.on_gpu or not _kind_of_switch(one):
        return False
    site = one.candidate.site
    found = {kind: other for other in tried if (kind := _kind_of_switch(other)) and other.candidate.site == site}
    order = SWITCHES_TO_GENERATE if STATIC_CACHE in found else SWITCHES_ON_GPU
    ranked = [found[kind] for kind in order if kind in found]
    assert scene.budget is not None
    fits = (r for r in ranked if not r.is_settled and _takes_s(scene, r) <= scene.budget.seconds_left)
    compilers = [found[kind] for kind in SWITCHES_ON_GPU if kind in found]
    saves = [other.saves for other in compilers if other.saves is not None]
    over = any(other.applied for other in ranked) or min(saves, default=1.0) <= LEAST_NOISE
    return not over and next(fits, None) is one


def _kind_of_switch(one: Try) -> str:
    """What it is of ``SWITCHES_ON_GPU``; "" if none."""
    candidate, mode = one.candidate, str(one.candidate.option("mode") or "")
    if candidate.option("backend") or any(candidate.option(word) for word in TARGETS):
        return ""
    kind = f"{candidate.optimization} {mode}".strip()
    return kind if kind in SWITCHES_TO_GENERATE else ""
