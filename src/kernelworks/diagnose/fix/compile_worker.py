"""The process that compiles one form of a program beside a search: ``python -m`` with the numbers of a socket and of
the file that keeps the program's standard input.

It builds the program anew, puts in place what comes beneath, and calls what a trial calls first, so that inductor's
caches on disk hold all of it. It measures nothing and keeps no choice that is made by times. Then it ends.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import torch

from kernelworks.diagnose import optimizations
from kernelworks.diagnose.fix.channel import started_worker
from kernelworks.diagnose.fix.compile_forms import candidate_of
from kernelworks.diagnose.fix.outcome import in_a_line
from kernelworks.diagnose.optimization import Candidate, Change, CombinedChange, Scene
from kernelworks.diagnose.optimizations.alike_layers import ALIKE, changed_roots
from kernelworks.diagnose.optimizations.compiled_step import STEP
from kernelworks.diagnose.optimizations.compiler_choices import choosing_nothing
from kernelworks.diagnose.optimizations.torch_compile import root_of
from kernelworks.diagnose.optimizations.trial import call_once
from kernelworks.diagnose.sites.functions import Function, find_function
from kernelworks.diagnose.sites.modules import Roots, find_roots
from kernelworks.profile.program import Program, from_target
from kernelworks.records.json_text import parse_json

__all__ = ["main"]

NICE = 5  # the search's own compiler goes before
LOADS_S, LOADS_SHARE = 1.0, 0.05  # to load what was compiled: at the least, and of the compiler's time
UNKNOWN_SHARE = 0.5  # of the compiler's time, where its parts are unknown


def main() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which ends what stands still when its supervisor is gone
    os.nice(NICE)
    channel, request = started_worker()
    if request is None:
        return
    try:
        channel.send("compiled", **_compiled(request))
    except BaseException as error:
        channel.send("failed", why=in_a_line(error) if isinstance(error, Exception) else type(error).__name__)
        sys.exit(1)


def _compiled(request: dict[str, Any]) -> dict[str, Any]:
    form = parse_json(request["key"])
    candidate, beneath = candidate_of(form["candidate"]), [candidate_of(one) for one in form["beneath"]]
    program = from_target(request["target"], request["args"], module=request["module"])
    scene = _scene(program, (candidate, *beneath))
    for one in beneath:
        scene.taken.append(_optimization(one).apply(scene, one))
        scene.beneath = (*scene.beneath, str(one))
    change: Change | None = _optimization(candidate).apply(scene, candidate)
    if form["random"]:
        change = change.random if change is not None else None
        if change is None:
            raise ValueError("it draws no other random numbers")
    changed = CombinedChange((*scene.taken, change)) if change is not None else CombinedChange(scene.taken)
    begin = time.perf_counter()
    with choosing_nothing():
        if not candidate.option(STEP):
            call_once(_changed(scene, candidate), changed, _with_sync, backward=request["backward"])
        with changed:
            _with_sync(program.run)()
    return _seconds(time.perf_counter() - begin, program, changed)


def _optimization(candidate: Candidate) -> Any:
    return next(one for one in optimizations.OPTIMIZATIONS if one.name == candidate.optimization)


def _scene(program: Program, candidates: tuple[Candidate, ...]) -> Scene:
    """What is known of the program, its functions among those that the candidates name."""
    program.run()
    sites = {one.site for one in candidates if one.site.kind == "function" and not one.option(STEP)}
    found = (find_function(site.root, site.path, program.entry) for site in sites)
    roots: Roots = find_roots(program.run, functions=[function for function in found if function is not None])
    return Scene(roots, program, roots.optimizers, walls=(1.0,))


def _changed(scene: Scene, candidate: Candidate) -> Roots:
    """The outermost modules that it changes, with their calls."""
    if candidate.option(ALIKE):
        return changed_roots(scene, candidate)
    if candidate.site.kind not in ("module", "function"):
        return scene.roots
    module = scene.at(candidate.site)
    return scene.scene_of(root_of(scene, module) if isinstance(module, Function) else module).roots


def _with_sync(call: Any) -> Any:
    def whole() -> Any:
        found = call()
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        return found

    return whole


def _seconds(took: float, program: Program, changed: CombinedChange) -> dict[str, Any]:
    """What the compiler took, and what it will take with its caches: dynamo traces once more, the rest is loaded.
    Raises ValueError if inductor keeps nothing of it."""
    from torch._dynamo.utils import compilation_time_metrics, counters

    kept = counters["inductor"]["fxgraph_cache_miss"] + counters["inductor"]["fxgraph_cache_hit"]
    kept += counters["aot_autograd"]["autograd_cache_hit"]
    if not kept:
        raise ValueError("inductor keeps nothing of it")
    begin = time.perf_counter()
    with changed:
        _with_sync(program.run)()
    cold_s = max(0.0, took - (time.perf_counter() - begin))
    traced = sum(compilation_time_metrics.get("_compile.compile_inner", ()))
    behind = sum(compilation_time_metrics.get("OutputGraph.call_user_compiler", ()))
    loads_s = traced - behind if traced else UNKNOWN_SHARE * cold_s
    bypassed = counters["aot_autograd"]["autograd_cache_bypass"]
    loads_s = max(loads_s, UNKNOWN_SHARE * cold_s) if bypassed else loads_s
    return {"cold_s": cold_s, "loads_s": loads_s + LOADS_S + LOADS_SHARE * cold_s}


if __name__ == "__main__":
    main()
