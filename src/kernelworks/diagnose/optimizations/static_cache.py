"""A cache of fixed size for a model that generates, and its decoding steps compiled.

transformers' default cache grows by ``cat``: it is copied at every token, and its shapes change at each, so steps
cannot be compiled or replayed as a graph. With ``cache_implementation="static"`` it is allocated once, for all tokens.
On a GPU, where a step is mostly launches, ``generate`` then compiles its decoding steps by itself.

Each call of ``generate`` is looked at. One whose cache somebody else has or gets (a chat of several turns, an
assistant model) takes torch's growing one, as a cache of fixed size has no room for more; so does one that returns maps
of attention, whose shapes would differ, and one in training mode, whose dropout would draw other numbers.
"""

from __future__ import annotations

import copy
import inspect
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import nn

from kernelworks.diagnose.optimization import Candidate, Change, CombinedChange, Impossible, Promise, Rejected, Scene
from kernelworks.diagnose.optimizations.accepted_options import Takes
from kernelworks.diagnose.optimizations.callers import placed_in
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
CACHE_OPTION = "cache_implementation"
GIVEN_ARGUMENTS = ("past_key_values", "assistant_model", "custom_generate", "negative_prompt_ids")  # to a call alone
SET_OPTIONS = (  # by a call, its configuration or the model's: another cache, or one that is handed out
    CACHE_OPTION, "cache_config", "return_dict_in_generate", "prompt_lookup_num_tokens", "penalty_alpha", "dola_layers",
)  # fmt: skip
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
        first = _generating_s(scene, change)
        found = in_turns(scene, change)
        if found.saves > 0:
            check_numbers(scene, change)
        first_s = max(0.0, first - found.after_s) + found.first_s
        return Promise(found.saves, first_s, how="the program was run with it, and its tokens compared")

    def apply(self, scene: Scene, candidate: Candidate) -> _StaticCache:
        module: Any = scene.at(candidate.site)
        if getattr(module, "generation_config", None) is None or not hasattr(type(module), "generate"):
            raise Impossible("the model does not generate here: it has no generation_config, or no generate")
        if "generate" in module.__dict__ and module not in _PLACED:
            raise Impossible("the model has a generate of its own")
        kept: dict[str, Any] = scene.keep((self.name, id(module)), dict)
        return _StaticCache(module, kept)


_PLACED: weakref.WeakSet[nn.Module] = weakref.WeakSet()


class _StaticCache(Change):
    """``served`` counts the calls that had a cache of fixed size."""

    def __init__(self, module: Any, kept: dict[str, Any]) -> None:
        super().__init__(self._place, verified_against="the program's own tokens")
        self.module, self.kept, self.served = module, kept, 0

    def _place(self) -> Callable[[], None]:
        module, kept = self.module, self.kept
        plain = type(module).generate
        had = {name: module.__dict__.pop(name) for name in GENERATE_ATTRIBUTES if name in module.__dict__}
        module.__dict__.update(kept)
        remove = placed_in(module, {"generate": (plain, self._generate(plain))})
        first = module not in _PLACED
        _PLACED.add(module)

        def back() -> None:
            remove()
            if first:
                _PLACED.discard(module)
            for name in GENERATE_ATTRIBUTES:
                if name in module.__dict__:
                    kept[name] = module.__dict__.pop(name)
            module.__dict__.update(had)

        return back

    def _generate(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(plain)

        def generate(model: Any, *args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(model, *args, **kwargs)
            given = {**bound.arguments, **bound.arguments.get("kwargs", {})}
            if not _keeps_its_cache(model, given):
                return plain(model, *args, **kwargs)
            self.served += 1
            if given.get("generation_config") is None:
                return plain(model, *args, **{**kwargs, CACHE_OPTION: STATIC})
            bound.arguments["generation_config"] = config = copy.copy(given["generation_config"])
            setattr(config, CACHE_OPTION, STATIC)
            return plain(*bound.args, **bound.kwargs)

        return generate


def _keeps_its_cache(model: Any, given: Mapping[str, Any]) -> bool:
    """Whether a call of ``generate`` makes the cache that it uses, and lets go of it."""
    if model.training or any(given.get(name) is not None for name in GIVEN_ARGUMENTS):
        return False
    configs = given.get("generation_config"), getattr(model, "generation_config", None)

    def value(name: str) -> Any:
        found = (given.get(name), *(getattr(config, name, None) for config in configs))
        return next((each for each in found if each is not None), None)

    return not any(value(name) for name in SET_OPTIONS) and value("use_cache") is not False


def _generating_s(scene: Scene, change: _StaticCache) -> float:
    """Seconds of the first changed run. Raises Rejected if no call of the model's ``generate`` takes the cache."""
    assert scene.program is not None
    before = change.served
    with untimed_section(), CombinedChange((*scene.taken, change)):
        begin = time.perf_counter()
        scene.program.run()
        seconds = time.perf_counter() - begin
    if change.served == before:
        raise Rejected("the program does not call generate, or has its cache from elsewhere or for more than the call")
    return seconds


def _generates(scene: Scene, root: nn.Module) -> bool:
    """Whether transformers' ``generate`` may call it with a growing cache, and supports a static one."""
    config = getattr(root, "generation_config", None)
    if config is None or getattr(config, CACHE_OPTION, None) is not None or root in _PLACED:
        return False
    if not getattr(root, "_can_compile_fullgraph", False) or scene.roots.calls.get(id(root), 0) < STEPS:
        return False
    caches = [s.kwargs.get("past_key_values") for s in scene.roots.samples if s.module is root]
    return any(type(cache).__name__ in ("DynamicCache", "EncoderDecoderCache") for cache in caches)


OPTIMIZATION = _Optimization()
