"""One run of a program under torch's profiler, which is read when somebody asks for it."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch._C._profiler import _ExperimentalConfig
from torch.autograd import profiler as autograd_profiler
from torch.autograd.profiler import profile, record_function

from kernelworks.profile.calls import Place
from kernelworks.profile.cupti import cupti_detached_after
from kernelworks.profile.extensions import annotate_extension_calls
from kernelworks.profile.inductor.compiled_graphs import annotate_kernels
from kernelworks.profile.inductor.dynamo import breaks, recompilations
from kernelworks.profile.inputs import inputs_of
from kernelworks.profile.trace import (
    RUN_ANNOTATION,
    Trace,
    event_of_run,
    is_device_work,
    is_on_device,
    read_trace,
    without_collection,
)

__all__ = ["Recording", "record", "recording_of"]

OWN_PROFILER = "the program starts torch's profiler itself, which ends ours: take it out to diagnose the program"


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps the profiler's own lines (torch 2.13 has no switch for them) out of the user's terminal."""
    sys.stderr.flush()
    kept, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(null)


@dataclass
class Recording:
    """One run under the profiler, not read yet: that takes a second for some ten thousand ops."""

    results: Any
    places: list[Place]
    output: Any
    survey: Any
    compiled: Any
    gpu: bool

    @property
    def seconds(self) -> float:
        """Of the run, as the profiler's own record has it."""
        run = event_of_run(self.results.events())
        return (run.end_ns() - run.start_ns()) / 1e9 if run is not None else 0.0

    @property
    def works_on_device(self) -> bool:
        """Whether a device did anything in it."""
        return any(is_device_work(event) for event in self.results.events() if is_on_device(event))

    def read(self) -> Trace:
        """Raises RuntimeError if the profiler recorded nothing."""
        surveyed = self.survey is not None
        with without_collection():
            cut = surveyed and self.survey.cut
            inputs = inputs_of(self.results) if surveyed else None
            graphs = self.compiled.graphs(self.survey.modules if surveyed else ()) if surveyed or self.gpu else ()
            events = self.results.events()
            trace = read_trace(events, self.places, self.output, inputs, cut=cut, compiled=graphs)
            trace.broken, trace.recompiled = (tuple(breaks()), tuple(recompilations())) if surveyed else ((), ())
            return trace


def record(
    run: Callable[[], Any],
    *,
    survey: Any = None,
    gpu: bool = False,
    raw: Callable[[Any, list[Place]], None] | None = None,
    every_thread: bool = False,
) -> Trace:
    """``recording_of`` a run, read. ``raw`` is given the profiler's own results and the places before that."""
    made = recording_of(run, survey=survey, gpu=gpu, every_thread=every_thread)
    if raw is not None:
        raw(made.results, made.places)
    return made.read()


def recording_of(
    run: Callable[[], Any], *, survey: Any = None, gpu: bool = False, every_thread: bool = False
) -> Recording:
    """Runs the program once under the profiler. With ``survey`` (a ``places.Survey``) shapes and places are recorded,
    with ``gpu`` what the device did too; the program is then to wait for the device before it returns. Ops that the
    program's other threads run are seen with ``every_thread`` alone. A survey that has seen enough ends the profiler
    before the program ends.

    Raises what the program raises.
    """
    survey_too = survey is not None
    profiler = profile(
        use_cpu=True,
        use_device="cuda" if gpu else None,
        use_kineto=gpu,  # else the device is timed by events, not traced
        record_shapes=survey_too,
        profile_memory=survey_too,
        experimental_config=_ExperimentalConfig(capture_overload_names=survey_too, profile_all_threads=every_thread),
    )
    places: list[Place] = []
    with contextlib.ExitStack() as whole:
        compiled = whole.enter_context(annotate_kernels())
        whole.enter_context(annotate_extension_calls(survey.annotate_frame if survey is not None else None))
        if survey is not None:
            whole.enter_context(_quiet())  # the memory profiler warns of every block that is older than it
        with _quiet():
            profiler.__enter__()
        ended = False

        def end() -> None:
            nonlocal ended
            if not ended:
                ended = True
                with _quiet(), cupti_detached_after() if gpu else contextlib.nullcontext():
                    profiler.__exit__(None, None, None)

        if survey is not None:
            survey.full = end
        try:
            with survey or contextlib.nullcontext(places) as places, record_function(RUN_ANNOTATION):
                output = run()
                if not (ended or autograd_profiler._is_profiler_enabled):
                    raise RuntimeError(OWN_PROFILER)
        except RuntimeError as error:
            if "rofiler is already enabled" in str(error):
                raise RuntimeError(OWN_PROFILER) from error
            raise
        finally:
            end()
    return Recording(profiler.kineto_results, places, output, survey, compiled, gpu)
