"""A cache of fixed size for a model that generates, and its decoding steps compiled.

transformers' default cache grows by ``cat``: it is copied at every token, and its shapes change at each, so steps
cannot be compiled or replayed as a graph. With ``cache_implementation="static"`` it is allocated once, for all tokens.
On a GPU, where a step is mostly launches, ``generate`` then compiles its decoding steps by itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from kernelworks.diagnose.optimization import Candidate, Change, CombinedChange, Impossible, Promise, Rejected, Scene
from kernelworks.diagnose.optimizations.accepted_options import Takes
from kernelworks.diagnose.optimizations.program_trial import check_numbers, in_turns
from kernelworks.measure.clock.work_beside import untimed_section
from kernelworks.records.fix import MODULES_MADE_ANEW

__all__ = ["OPTIMIZATION"]

GENERATE_ATTRIBUTES = (
    "_compiled_call",
    "_last_compile_config",
    "_previous_max_cache_length",
)  # set by generate on the model
STATIC = "static"
STEPS = 4  # calls: a run with so many is taken for one that generates
CODE = 'model.generation_config.cache_implementation = "static"'
COMPILING_S, PER_MODULE_S = 10.0, 0.1


class _Optimization:
    name = "static cache"
    takes = Takes(("module",))

    def candidates(self, scene: Scene) -> Iterator[Candidate]:
        if scene.training:
            return
        for root in scene.roots.modules:
            if not _generates(scene, root):
                continue
            if scene.roots.fresh:
                raise Impossible(MODULES_MADE_ANEW)
            compiled = " and its decoding compiled" if scene.on_gpu else ""
            site = scene.site(root)
            yield Candidate(
                self.name, site, f"a cache of fixed size{compiled}", code=CODE,
                group=f"cache {site.root} {site.number}", touches=frozenset({"ops"}),
            )  # fmt: skip

    def predict(self, scene: Scene, candidate: Candidate) -> Promise:
        module, change = scene.at(candidate.site), self.apply(scene, candidate)
        if scene.budget is not None and scene.on_gpu:
            held = sum(bool(m._parameters) for m in module.modules())
            scene.budget.ask("compiling decoding steps", COMPILING_S + PER_MODULE_S * held)
        scene.say(f"{type(module).__name__} with {candidate.says}")
        first = _generating_s(scene, change, module)
        found = in_turns(scene, change)
        if found.saves > 0:
            check_numbers(scene, change)
        first_s = max(0.0, first - found.after_s) + found.first_s
        return Promise(found.saves, first_s, how="the program was run with it, and its tokens compared")

    def apply(self, scene: Scene, candidate: Candidate) -> Change:
        module: Any = scene.at(candidate.site)
        config = getattr(module, "generation_config", None)
        if config is None:
            raise Impossible("the model has no generation_config here")
        kept: dict[str, Any] = scene.keep((self.name, id(module)), dict)

        def put() -> Callable[[], None]:
            before = config.cache_implementation
            had = {name: module.__dict__.pop(name) for name in GENERATE_ATTRIBUTES if name in module.__dict__}
            config.cache_implementation = STATIC
            module.__dict__.update(kept)

            def back() -> None:
                if config.cache_implementation == STATIC:  # otherwise somebody has set another since
                    config.cache_implementation = before
                for name in GENERATE_ATTRIBUTES:
                    if name in module.__dict__:
                        kept[name] = module.__dict__.pop(name)
                module.__dict__.update(had)

            return back

        return Change(put, verified_against="the program's own tokens")


def _generating_s(scene: Scene, change: Change, module: Any) -> float:
    """Seconds of the first changed run. Raises Rejected if it does not call the model's ``generate``, which alone reads
    the setting."""
    assert scene.program is not None
    called, own, had = False, module.generate, module.__dict__.get("generate")

    def generate(*args: Any, **kwargs: Any) -> Any:
        nonlocal called
        called = True
        return own(*args, **kwargs)

    module.__dict__["generate"] = generate
    try:
        with untimed_section(), CombinedChange((*scene.taken, change)):
            begin = time.perf_counter()
            scene.program.run()
            seconds = time.perf_counter() - begin
    finally:
        del module.__dict__["generate"]
        if had is not None:
            module.__dict__["generate"] = had
    if not called:
        raise Rejected("the program does not call generate: it makes its cache itself")
    return seconds


def _generates(scene: Scene, root: nn.Module) -> bool:
    """Whether transformers' ``generate`` may call it with a growing cache, and supports a static one."""
    config = getattr(root, "generation_config", None)
    if config is None or getattr(config, "cache_implementation", None) is not None:
        return False
    if not getattr(root, "_can_compile_fullgraph", False) or scene.roots.calls.get(id(root), 0) < STEPS:
        return False
    caches = [s.kwargs.get("past_key_values") for s in scene.roots.samples if s.module is root]
    return any(type(cache).__name__ in ("DynamicCache", "EncoderDecoderCache") for cache in caches)


OPTIMIZATION = _Optimization()
