"""A compiler that is still at work when the budget is over is ended, nothing else is, and the next one works."""

from __future__ import annotations

import itertools
import sys
import time
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from kernelworks.diagnose.fix import watchdog
from kernelworks.diagnose.fix.watchdog import Stopping
from kernelworks.profile.budget import Budget, BudgetExceeded

MOST_S = 100.0  # of work that nobody ends
BUSY = "def {name}(seconds, then=None):\n    end = now() + seconds\n    while now() < end: then and then()"


def busy(name: str, file: str = "/site-packages/torch/_dynamo/convert_frame.py") -> Callable[..., None]:
    """A function of that name and file that is at work for so many seconds."""
    space: dict[str, Any] = {"now": time.perf_counter}
    exec(compile(BUSY.format(name=name), file, "exec"), space)
    found: Callable[..., None] = space[name]
    return found


def spent(act: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    said = r"a compiler: the compiler was stopped after .* a budget of \d+ s may do"
    with pytest.raises(BudgetExceeded, match=said), Stopping(Budget(0.1, 0.0), "a compiler"):
        act()
    return time.perf_counter() - begin


def test_a_compiler_ends_when_the_budget_does() -> None:
    assert spent(lambda: busy("compile_inner")(MOST_S)) < 0.8 * MOST_S


def test_what_a_callback_swallows_is_raised_again_and_nobody_hears_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", heard.append)

    swallowed = itertools.count()

    def callbacks() -> None:
        held = Budget(1.0, 0.0)
        gone = weakref.ref(held, lambda _: None if next(swallowed) else busy("in_a_callback")(1.0))
        del held
        assert gone() is None

    assert spent(lambda: busy("compile_inner")(MOST_S, callbacks)) < 0.8 * MOST_S
    assert not heard and sys.unraisablehook == heard.append


@pytest.mark.parametrize(
    "work",
    [
        lambda: busy("compile_inner", "/site-packages/theirs.py")(0.6),  # the program's own
        lambda: busy("_compile_inner")(0.6),
        lambda: busy("compile_inner")(0.3, lambda: busy("__exit__", "/contextlib.py")(0.3)),
    ],
    ids=["elsewhere", "of another name", "what puts things back"],
)
def test_nothing_else_is_interrupted(work: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    with Stopping(Budget(0.4, 0.0), "a compiler") as stopping:
        work()
    assert not stopping.fired


def test_one_that_fits_the_budget_is_left_alone() -> None:
    with Stopping(Budget(60.0, 0.0), "a compiler") as stopping:
        busy("compile_inner")(0.6)
    assert not stopping.fired and not stopping._watch.is_alive()


def test_torchs_own_is_ended_and_the_next_compiles() -> None:
    def never(graph: Any, inputs: Any) -> Any:
        busy("backend", "backend.py")(MOST_S)
        return graph.forward

    def program(x: Tensor) -> Tensor:
        return x.sin() + 1

    x = torch.ones(3)
    torch.compile(program, backend="eager")(x)  # what it loads the first time is not counted
    torch.compiler.reset()
    assert spent(lambda: torch.compile(program, backend=never)(x)) < 0.8 * MOST_S
    graphs: list[Any] = []

    def kept(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    torch.testing.assert_close(torch.compile(program, backend=kept)(x), x.sin() + 1)
    assert len(graphs) == 1


def test_what_waits_for_a_compiler_of_cpp_is_dropped_and_may_be_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import concurrent.futures
    import functools
    import sys

    @functools.lru_cache(1)
    def pool() -> concurrent.futures.ThreadPoolExecutor:
        return concurrent.futures.ThreadPoolExecutor(1)

    cache: dict[str, Any] = {}
    names = {"async_compile": SimpleNamespace(AsyncCompile=SimpleNamespace(pool=pool))}
    names["codecache"] = SimpleNamespace(CppCodeCache=SimpleNamespace(cache=cache))
    for name, module in names.items():
        monkeypatch.setitem(sys.modules, f"torch._inductor.{name}", module)  # type: ignore[arg-type]
    watchdog._drop_waiting()  # nobody has asked for any
    running, waiting = (pool().submit(time.sleep, seconds) for seconds in (0.2, 60))
    cache["key"] = waiting.result
    watchdog._drop_waiting()
    assert waiting.cancelled() and not cache and running.result() is None
    assert pool().submit(int).result() == 0
