"""``torch.compile`` of what the program calls: whole or by its repeated blocks, in the modes that a user would try, and
with kernelworks' own backend.

Its gain is benchmarked on the inputs that the modules were called with, forward and backward, before the program is run
with it. Blocks come first: they are compiled once for all of them, and show how long the whole will take.
"""

from __future__ import annotations

import dataclasses
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import FunctionType, MethodType
from typing import Any, NamedTuple

import torch
from torch import nn

from kernelworks.diagnose.optimization import Candidate, Change, Impossible, Promise, Rejected, Scene, Site, kind_name
from kernelworks.diagnose.optimizations.accepted_options import Takes, a_string, a_whole_number, one_of
from kernelworks.diagnose.optimizations.alike_layers import ALIKE, changed_roots, layers_at, layers_of
from kernelworks.diagnose.optimizations.captured_calls import captures, with_answers_copied
from kernelworks.diagnose.optimizations.compile_phases import phases_told
from kernelworks.diagnose.optimizations.compiled_module import CompiledModule
from kernelworks.diagnose.optimizations.compiled_step import (
    STEP,
    STEP_TOUCHES,
    VERIFIED_AGAINST,
    function_at,
    predict_step,
    step_function,
    step_seconds,
)
from kernelworks.diagnose.optimizations.compiler_backends import backend_of
from kernelworks.diagnose.optimizations.compiler_choices import choosing_undisturbed
from kernelworks.diagnose.optimizations.compiler_settings import IMPL, Impl, install_impls, missing_compiler
from kernelworks.diagnose.optimizations.trial import share_saved
from kernelworks.diagnose.sites.functions import Function
from kernelworks.profile.budget import Budget, BudgetExceeded
from kernelworks.records.fix import MODULES_MADE_ANEW

__all__ = [
    "OPTIMIZATION",
    "blocks_of",
    "compile_group",
    "compile_options",
    "is_compiled",
    "root_of",
    "roots_worth_compiling",
]

LEAST_S, PER_MODULE_S = 3.0, 0.25  # inductor's minimum, and more for each module with parameters
PER_MODULE_ON_GPU_S = 0.12  # Triton's compilers work at once: 16 s for 50 modules, 21 s for 190, on an H200's host
PER_CALL_S = 0.1  # for each call of a plain function: a loop is unrolled, and thousands of calls take minutes
# Of a module's calls: few but where it calls its parts again and again, as one that generates. On an H200's host 26
# layers of 90 calls were compiled in 30 to 50 s.
PER_UNROLLED_CALL_S, PER_UNROLLED_CALL_ON_GPU_S = 0.03, 0.015
PER_TUNED_PRODUCT_S = {
    "mm": 10.0,
    "addmm": 10.0,
    "bmm": 3.0,
    "baddbmm": 3.0,
}  # on a GPU: about 20 templates of each product
BACKWARD = 2.0  # times as long as the forward: to compile gradients, and to run them
MOST_ROOTS = 4  # roots that are compiled: those that take the most time
IN_A_GRAPH = 0.5  # of the time of a graph of its own, which a block takes in the graph of the whole
WORTH = 0.05  # of the wall clock, which a module must take
RACES = 0.3  # of the seconds left, for the benchmarks of our backend: what is not benchmarked stays inductor's
TUNED_MODE = "max-autotune"
PART = "part"
TARGET_OPTIONS = ("blocks", PART, STEP, ALIKE)  # options that say what is compiled, not how


@dataclass
class CompileTimes:
    """Seconds to compile something and to benchmark it."""

    compiling_s: float = 0.0
    racing_s: float = 0.0
    graphs: int = 0


class Mode(NamedTuple):
    """One way to call torch.compile. ``costs`` is how many times as long it takes as the default."""

    says: str
    how: dict[str, str]
    costs: float
    gpu: bool = False  # it differs from the default only on a GPU


MODES = (
    Mode("", {}, 1.0),
    Mode(" with CUDA graphs", {"mode": "reduce-overhead"}, 1.2, gpu=True),
    Mode(" with kernelworks' backend", {"backend": "kernelworks"}, 2.5),
    Mode(
        " with kernelworks' backend and CUDA graphs",
        {"backend": "kernelworks", "mode": "reduce-overhead"},
        2.7,
        gpu=True,
    ),
    Mode(", its kernels tuned", {"mode": f"{TUNED_MODE}-no-cudagraphs"}, 3.0),
)

STEP_MODES = MODES[:2]  # of a whole training step: our backend, and tuned kernels, are tried on its modules
COMPILERS_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


def _modes(scene: Scene, root: nn.Module) -> list[Mode]:
    """Those that differ where this one runs: without tensors of a GPU in it a capture is the default again."""
    on_gpu = scene.runs_on_gpu(root)
    return [mode for mode in MODES if on_gpu or not mode.gpu]


def _backends() -> list[str]:
    from torch._dynamo import list_backends  # takes seconds: only if a plan names another backend than ours

    return list(list_backends(exclude_tags=()))


def is_compiled(module: nn.Module) -> bool:
    """Whether the program compiled it, or a part of it, itself."""
    return any(
        m.__dict__.get(IMPL) is not None or type(m).__module__.startswith("torch._dynamo") for m in module.modules()
    )


def blocks_of(root: nn.Module) -> tuple[str, tuple[nn.Module, ...]]:
    """The type that most of a module's parameters lie in of which it holds several in a row, and those modules."""
    best: tuple[int, str, tuple[nn.Module, ...]] = (0, "", ())
    for container in root.modules():
        if not isinstance(container, (nn.ModuleList, nn.Sequential)):
            continue
        kinds = Counter(kind_name(child) for child in container)
        for kind, number in kinds.items():
            if number < 2 or kind.startswith("torch."):
                continue
            size = sum(p.numel() for child in container if kind_name(child) == kind for p in child.parameters())
            if size > best[0]:
                found = [m for m in root.modules() if kind_name(m) == kind]
                inner = {id(part) for m in found for part in m.modules() if part is not m}
                best = size, kind, tuple(m for m in found if id(m) not in inner)
    return best[1], best[2]


def roots_worth_compiling(scene: Scene) -> list[nn.Module]:
    """The outermost modules that are worth a compiler's time, by their time: that of their calls, and twice as much
    again if there is a backward."""
    seconds = scene.roots.seconds
    roots = sorted(scene.roots.modules, key=lambda root: -seconds.get(id(root), 0.0))
    return [root for root in roots if seconds.get(id(root), 0.0) >= _least_s(scene)][:MOST_ROOTS]


def _is_worth(scene: Scene, layers: Sequence[nn.Module]) -> bool:
    """Whether layers that are alike take enough time together, and none of them is compiled."""
    took = sum(scene.roots.seconds.get(id(layer), 0.0) for layer in layers)
    return took >= _least_s(scene) and not any(is_compiled(layer) for layer in layers)


def _least_s(scene: Scene) -> float:
    return WORTH * scene.wall / (1 + BACKWARD if scene.backward else 1)


def compile_options(candidate: Candidate) -> dict[str, Any]:
    """What ``torch.compile`` is given."""
    return {name: value for name, value in candidate.options if name not in TARGET_OPTIONS}


def compile_group(site: Site) -> str:
    """The group of what may stand in the place of a module's call: only one can."""
    return f"compile {site.root} {site.number} {site.path}".rstrip()


class _Optimization:
    name = "torch.compile"
    takes = Takes(
        ("module", "function"),
        {
            "mode": one_of(*COMPILERS_MODES), "backend": one_of("kernelworks", "inductor", more=_backends),
            "blocks": a_string, PART: a_string, STEP: a_string, ALIKE: a_whole_number(2),
        },
    )  # fmt: skip

    def candidates(self, scene: Scene) -> Iterator[Candidate]:
        if scene.roots.fresh:
            raise Impossible(MODULES_MADE_ANEW)
        missing = "" if scene.on_gpu else missing_compiler()
        if missing:
            raise Impossible(missing)
        layers = [found for found in layers_of(scene.roots.modules) if _is_worth(scene, found)]
        for found in layers:
            for mode in _modes(scene, found[-1]):
                yield self._layers(scene, found, mode)
        for root in roots_worth_compiling(scene):
            if any(root is layer for found in layers for layer in found):
                continue
            if is_compiled(root) or (isinstance(root, Function) and root.twice):
                continue  # torch.compile would take the two for one in later calls too
            kind, found = blocks_of(root)
            site = scene.site(root)
            if len(found) > 1:
                yield self._candidate(site, MODES[0], kind)
            for part in root.parts if isinstance(root, Function) else ():
                if not part.twice:
                    yield self._part(scene, part, site)
            for mode in _modes(scene, root):
                yield self._candidate(site, mode, written=root.source_name if isinstance(root, Function) else "")
        step = step_function(scene)
        if step is not None and not any(is_compiled(root) for root in scene.roots.modules):
            for mode in STEP_MODES:
                if scene.on_gpu or not mode.gpu:
                    yield self._step(scene, step, mode)

    def _candidate(self, site: Any, mode: Mode, blocks: str = "", written: str = "") -> Candidate:
        given = ", ".join(f'{name}="{value}"' for name, value in mode.how.items())
        if blocks:
            short = blocks.rpartition(".")[2]
            says = f"each {short} compiled{mode.says}"
            code = (
                f'for part in model.modules():\n    if type(part).__name__ == "{short}":\n        part.compile({given})'
            )
        else:
            says, code = f"compiled whole{mode.says}", f"model.compile({given})"
            if site.kind == "function":
                short = written or site.path
                code = f"{short} = torch.compile({', '.join(filter(None, (short, given)))})"
            elif site.type.startswith("torch."):  # of these model.compile() passes over the frames
                code = f"model = torch.compile({', '.join(filter(None, ('model', given)))})"
        options = tuple(mode.how.items()) + ((("blocks", blocks),) if blocks else ())
        return Candidate(
            self.name, site, says, code=code, options=options, group=compile_group(site),
            touches=frozenset({"ops"}), risky=mode.gpu,
        )  # fmt: skip

    def _layers(self, scene: Scene, layers: Sequence[nn.Module], mode: Mode) -> Candidate:
        """All modules of a kind that the program calls one after another."""
        made = self._candidate(scene.site(layers[-1]), mode)
        short, given = type(layers[0]).__name__, ", ".join(f'{name}="{value}"' for name, value in mode.how.items())
        return dataclasses.replace(
            made, says=f"each of the {len(layers)} {short} that it calls compiled{mode.says}, as one",
            code=f"for layer in layers:  # the {len(layers)} {short}\n    layer.compile({given})",
            options=(*mode.how.items(), (ALIKE, len(layers))),
        )  # fmt: skip

    def _part(self, scene: Scene, part: Function, root: Site) -> Candidate:
        """What a function calls again and again, compiled in place of the whole."""
        made = self._candidate(scene.site(part), MODES[0], written=part.source_name)
        return dataclasses.replace(
            made, says=f"{part.path}(), which {root} calls again and again, compiled", group=compile_group(root),
            options=((PART, str(root)),),
        )  # fmt: skip

    def _step(self, scene: Scene, step: Function, mode: Mode) -> Candidate:
        """The whole training step, in place of the modules that it calls."""
        first = next((scene.site(root) for root in roots_worth_compiling(scene)), None)
        made = self._candidate(Site("function", step.of, 0, step.path), mode, written=step.source_name)
        return dataclasses.replace(
            made, says=f"the training step {step.path}() compiled{mode.says}, its optimizer too", touches=STEP_TOUCHES,
            options=(*mode.how.items(), (STEP, kind_name(scene.optimizers[0]))),
            group=compile_group(first) if first is not None else made.group,
        )  # fmt: skip

    def predict(self, scene: Scene, candidate: Candidate) -> Promise:
        budget = scene.budget
        assert budget is not None
        budget.ask(f"torch.compile, {candidate.says}", self.expected_s(scene, candidate))
        if candidate.option(STEP):
            scene.say(f"running the program with {candidate.says}")
            try:
                with phases_told(scene.say), choosing_undisturbed():
                    return predict_step(scene, self.apply(scene, candidate))
            except (BudgetExceeded, Impossible):
                raise
            except Exception as error:
                raise Rejected(compile_error_text(error)) from error
        module = scene.at(candidate.site)
        scene.say(f"{type(module).__name__} {candidate.says}, and benchmarked on its inputs")
        from kernelworks.compile.inductor import races_within  # takes seconds: only if something is compiled
        from kernelworks.compile.progress import heard_by

        taken = self._taken(scene, candidate)[candidate.options] = CompileTimes()
        begin, graphs, own_s = time.perf_counter(), _graphs(), 0.0
        try:
            impls = self._impls(scene, candidate)
            impls = compile_within_budget(impls, budget) if candidate.option("blocks") else impls
            root = root_of(scene, module) if isinstance(module, Function) else module
            roots = changed_roots(scene, candidate) if candidate.option(ALIKE) else scene.scene_of(root).roots
            with (
                phases_told(scene.say), races_within(RACES * budget.seconds_left), heard_by(scene.say),
                choosing_undisturbed(),
            ):  # fmt: skip
                saves, first_s = share_saved(scene, Change(lambda: install_impls(impls)), roots)
            own_s = min(time.perf_counter() - begin, first_s)
        except Exception as error:
            own_s = time.perf_counter() - begin
            if isinstance(error, BudgetExceeded):
                raise
            raise Rejected(compile_error_text(error)) from error
        finally:
            taken.racing_s = time.perf_counter() - begin - own_s
            taken.compiling_s = max(own_s, scene.compiled.cold_s if scene.compiled is not None else 0.0)
            taken.graphs = _graphs() - graphs
        return Promise(saves, taken.compiling_s, how="benchmarked on the inputs that it is called with")

    def apply(self, scene: Scene, candidate: Candidate) -> Change:
        impls = self._impls(scene, candidate)
        stays = scene.program is None  # a plan that is applied
        made = Change(lambda: install_impls(impls, stays=stays), VERIFIED_AGAINST if candidate.option(STEP) else "")
        if scene.program is not None:  # a plan that is applied verifies nothing
            alike = self._impls(scene, candidate, drawing_alike=True)
            made.random = Change(lambda: install_impls(alike))
        return made

    def _impls(self, scene: Scene, candidate: Candidate, *, drawing_alike: bool = False) -> list[Impl]:
        """What is called in each module's place, made once. With ``drawing_alike`` it draws the original's random
        numbers."""
        root = function_at(scene, candidate.site) if candidate.option(STEP) else scene.at(candidate.site)
        modules = blocks_of(root)[1] if candidate.option("blocks") else (root,)
        modules = layers_at(scene, candidate) if candidate.option(ALIKE) else modules
        how = {name: backend_of(value) for name, value in compile_options(candidate).items()}
        how = _drawing_alike(how) if drawing_alike else how

        frame = scene.keep(
            ("frame", candidate.site, candidate.options), lambda: frame_of(candidate.site, candidate.options)
        )

        def compiled(fn: Callable[..., Any]) -> Callable[..., Any]:
            made: Callable[..., Any] = torch.compile(fn, **how)
            return with_answers_copied(made) if captures(candidate.option("mode")) else made

        def impl(m: nn.Module) -> Any:
            key = ("torch.compile", drawing_alike, id(m), candidate.options, scene.beneath)
            if isinstance(m, Function):
                return scene.keep(key, lambda: compiled(m.fn))
            return scene.keep(key, lambda: CompiledModule(m, compiled(MethodType(frame, m))).call)

        return [(m, impl(m)) for m in modules]

    # ------------------------------------------------------------ how long it takes

    def _taken(self, scene: Scene, candidate: Candidate) -> dict[Any, CompileTimes]:
        """What was compiled of a root so far, by the options."""
        found: dict[Any, CompileTimes] = scene.keep(("taken", candidate.group), dict)
        return found

    def expected_s(self, scene: Scene, candidate: Candidate) -> float:
        """Seconds that the compiler and the benchmark may take: from another mode of the same, or from its blocks, or
        from the number of modules with parameters."""
        if scene.compiled is not None:
            return scene.compiled.loads_s
        if candidate.option(STEP):
            return sum(_guess(scene, each) for each in scene.roots.modules) + step_seconds(scene)
        root: nn.Module = scene.at(candidate.site)
        factor = next(
            mode.costs
            for mode in MODES
            if dict(mode.how) == {n: v for n, v in candidate.options if n not in TARGET_OPTIONS}
        )
        known, tuning_s = self._taken(scene, candidate), 0.0
        if scene.on_gpu and str(candidate.option("mode", "")).startswith(TUNED_MODE):
            factor, tuning_s = 1.0, _tuning_s(scene)
        kind, blocks = blocks_of(root)
        whole, part = known.get(()), known.get((("blocks", kind),))
        if candidate.option("blocks"):
            return _guess(scene, blocks[0])
        if candidate.option(PART):
            return _guess(scene, root)
        if whole is not None:
            return factor * whole.compiling_s + whole.racing_s + tuning_s
        if part is not None:
            each = part.compiling_s / max(1, part.graphs)
            return factor * max(part.compiling_s, IN_A_GRAPH * each * len(blocks)) + part.racing_s + tuning_s
        return factor * _guess(scene, root) + tuning_s


def root_of(scene: Scene, part: Function) -> nn.Module:
    """The root that a function is a part of; itself if it is a root."""
    roots = (root for root in scene.roots.modules if isinstance(root, Function))
    return next((r for r in roots if any(each.fn is part.fn for each in r.parts)), part)


def _graphs() -> int:
    """How many graphs this process has handed to a compiler."""
    from torch._dynamo.utils import counters  # takes seconds: only if something is compiled

    return int(counters["stats"]["unique_graphs"])


def frame_of(site: Site, how: Sequence[tuple[str, Any]]) -> Callable[..., Any]:
    """What dynamo is to trace of the modules of one site, compiled in one way: called with the module first.

    ``nn.Module`` calls all modules through one code object, and dynamo keeps its guards by code: it takes sizes that
    differ between two modules for dynamic ones, and compiles the second module for any size. It also skips the frames
    of torch's own modules (a Sequential's). So each site has a frame of ours, with a code of its own.
    """

    def frame(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return module._call_impl(*args, **kwargs)

    name = re.sub(r"\W+", "_", f"{site.root}_{site.number}_{dict(how)}")
    code = frame.__code__.replace(co_name=f"call_{name}")
    return FunctionType(code, frame.__globals__, "frame")


def _drawing_alike(how: dict[str, Any]) -> dict[str, Any]:
    """The same options, with random numbers as eager torch draws them: compiled code draws others by default."""
    made = dict(how)
    mode = made.pop("mode", None)
    options = dict(torch._inductor.list_mode_options(mode)) if mode else {}
    return made | {"options": options | {"fallback_random": True}}


def compile_within_budget(impls: list[Impl], budget: Budget) -> list[Impl]:
    """These, whose first calls compile them, as long as all of them fit the budget: the rest are taken to need as long
    as the last one. The first says little: it starts the compiler, and the others may reuse its result."""
    took: list[float] = []

    def asked(impl: Callable[..., Any]) -> Callable[..., Any]:
        compiled = False

        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal compiled
            if compiled:
                return impl(*args, **kwargs)
            if len(took) > 1:
                budget.ask(f"compiling {len(impls)} blocks", took[-1] * (len(impls) - len(took)))
            begin = time.perf_counter()
            answer = impl(*args, **kwargs)
            took.append(time.perf_counter() - begin)
            compiled = True
            return answer

        return call

    return [(module, asked(impl)) for module, impl in impls]


def _guess(scene: Scene, module: nn.Module) -> float:
    """Seconds for a module if nothing like it was compiled yet."""
    if isinstance(module, Function):
        size = PER_CALL_S * _calls_of(scene, module)
    else:
        each = PER_MODULE_ON_GPU_S if scene.on_gpu else PER_MODULE_S
        size = each * sum(bool(m._parameters) for m in module.modules())
        per_call = PER_UNROLLED_CALL_ON_GPU_S if scene.on_gpu else PER_UNROLLED_CALL_S
        size = max(size, per_call * _calls_in(scene, module))
    return (LEAST_S + size) * (BACKWARD if scene.backward else 1.0)


def _tuning_s(scene: Scene) -> float:
    """Seconds to tune a program's products on a GPU, where every template of each is compiled and timed, one after the
    other. Those that differ in how many rows they are given are one: a compiler makes those sizes dynamic."""
    timeline = getattr(scene.forecaster, "timeline", None)
    calls = (call for outer in (timeline.calls if timeline is not None else ()) for call in outer.everything)
    named = [(call.name.removeprefix("aten::"), call.shapes) for call in calls]
    found = {
        (name, str([sizes for sizes in shapes if sizes][-1:])) for name, shapes in named if name in PER_TUNED_PRODUCT_S
    }
    return sum(PER_TUNED_PRODUCT_S[name] for name, _ in found)


def _calls_in(scene: Scene, root: nn.Module) -> float:
    """How many of torch's functions a call of an outermost module makes: its share, by time, of all in modules; 0 for
    what is none."""
    timeline, took = getattr(scene.forecaster, "timeline", None), scene.roots.seconds.get(id(root), 0.0)
    if timeline is None or not took:
        return 0.0
    inside = sum(bool(call.place.path) and not call.backward for call in timeline.calls)
    share = took / sum(scene.roots.seconds.values())
    return share * inside / max(1, scene.roots.calls.get(id(root), 1))


def _calls_of(scene: Scene, function: Function) -> float:
    """How many of torch's functions a call of it makes, its loops unrolled: by its share of what functions of the
    program's own take, of the calls outside of modules."""
    if scene.forecaster is None:
        return 0.0
    outside = sum(not call.place.path and not call.backward for call in scene.forecaster.timeline.calls)
    seconds = {id(m): scene.roots.seconds.get(id(m), 0.0) for m in scene.roots.modules if isinstance(m, Function)}
    share = seconds.get(id(function), 0.0) / (sum(seconds.values()) or 1.0)
    return share * outside / max(1, scene.roots.calls.get(id(function), 1))


def compile_error_text(error: Exception) -> str:
    """A compiler's error, or the program's, in one line; with the cause if it names one ("... raised:")."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = " ".join(lines[:2]) if lines and lines[0].endswith(":") else "".join(lines[:1])
    return f"compiled, it raises {type(error).__name__}{f': {text[:200]}' if text else ''}"


OPTIMIZATION = _Optimization()
