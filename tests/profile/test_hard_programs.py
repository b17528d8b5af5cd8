"""Programs that are hard on whoever runs them: each is diagnosed or refused with one line, and leaves no trace."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import forked
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import kernelworks as kw
from kernelworks.profile.process_state import read_settings
from kernelworks.records import Diagnosis, Peaks, from_json

X = torch.ones(64, 64)


def diagnosed(fn: Callable[..., Any], *args: Any, peaks: Peaks, fix: bool = False) -> Diagnosis:
    return kw.diagnose(fn, *args, peaks=peaks, budget_s=0.05, fix=fix, rough=True)


# ---------------------------------------------------------------- programs that only promise their work


async def coroutine() -> Tensor:
    await asyncio.sleep(0)
    return X @ X


async def async_generator() -> AsyncIterator[Tensor]:
    for _ in range(3):
        yield X @ X


def generator() -> Iterator[Tensor]:
    for _ in range(3):
        yield X @ X


class Awaited:
    async def __call__(self) -> Tensor:
        return X @ X


PROMISES: dict[str, Callable[[], Any]] = {
    "coroutine": coroutine,
    "async generator": async_generator,
    "generator": generator,
    "a function that returns a generator": lambda: (X @ X for _ in range(3)),
    "a function that returns a coroutine": lambda: coroutine(),
    "map": lambda: map(X.matmul, (X, X)),
    "an object with an async call": Awaited(),
}


@pytest.mark.parametrize("name", list(PROMISES))
def test_promised_work_is_done(name: str, ceilings: Peaks) -> None:
    found = diagnosed(PROMISES[name], peaks=ceilings)
    assert any(region.op in ("mm", "matmul") for region in found.hotspots), [r.op for r in found.hotspots]


def test_async_in_a_running_loop_is_refused(ceilings: Peaks) -> None:
    async def whole() -> None:
        with pytest.raises(RuntimeError, match="is async, and an event loop is running in this thread"):
            diagnosed(coroutine, peaks=ceilings)

    asyncio.run(whole())


# ---------------------------------------------------------------- programs that end, fork, raise


def test_exit_with_0_is_an_end_and_with_another_code_is_said(ceilings: Peaks) -> None:
    def leaves(code: int | None) -> None:
        X @ X
        sys.exit(code)

    assert diagnosed(leaves, None, peaks=ceilings).hotspots
    assert diagnosed(leaves, 0, peaks=ceilings).hotspots
    with pytest.raises(RuntimeError, match=r"leaves exited with 3"):
        diagnosed(leaves, 3, peaks=ceilings)


def test_forked_children_do_not_come_back(ceilings: Peaks, tmp_path: Path) -> None:
    def forks() -> Tensor:
        child = os.fork()
        if child:
            os.waitpid(child, 0)
        return X + X

    here = os.getpid()
    diagnosed(forks, peaks=ceilings)
    with open(tmp_path / "pids", "a") as file:
        file.write(f"{os.getpid()}\n")
    assert (tmp_path / "pids").read_text() == f"{here}\n"


@pytest.mark.parametrize("at", [1, 2, 3, 4, 5, 6])
def test_a_program_that_raises_midway_leaves_nothing_behind(at: int, ceilings: Peaks) -> None:
    runs = 0
    net = nn.Linear(4, 4)

    def raises() -> Tensor:
        nonlocal runs
        runs += 1
        if runs == at:
            raise LookupError("midway")
        return net(torch.ones(2, 4))

    call, settings = nn.Module.__call__, read_settings()
    with pytest.raises(LookupError, match="midway"):
        diagnosed(raises, peaks=ceilings)
    assert nn.Module.__call__ is call and read_settings() == settings
    assert not torch.autograd.profiler._is_profiler_enabled
    assert not torch._C._len_torch_function_stack()
    assert not nn.modules.module._global_forward_pre_hooks and not nn.modules.module._global_forward_hooks


# ---------------------------------------------------------------- what the process shares


CHANGES: dict[str, Callable[[], Any]] = {
    "the default dtype": lambda: torch.set_default_dtype(torch.float64),
    "the number of threads": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    "gradients": lambda: torch.set_grad_enabled(False),
    "deterministic algorithms": lambda: torch.use_deterministic_algorithms(True),
    "the precision of float32 products": lambda: torch.set_float32_matmul_precision("medium"),
    "the working folder": lambda: os.chdir("/"),
    "the limit of recursion": lambda: sys.setrecursionlimit(5000),
}


@pytest.mark.parametrize("name", list(CHANGES))
def test_settings_are_put_back_and_said(name: str, ceilings: Peaks) -> None:
    before = read_settings()

    def program() -> Tensor:
        CHANGES[name]()
        return X + X

    try:
        found = diagnosed(program, peaks=ceilings)
        assert read_settings() == before
        assert any(f"the program set {name} from" in line for line in found.findings), found.findings
    finally:
        torch.set_default_dtype(torch.float32)


def test_handlers_environment_random_numbers_and_arguments_are_put_back(ceilings: Peaks) -> None:
    given = torch.zeros(3)

    def of_torch(*_: object) -> None:
        pass

    of_torch.__module__ = "torch.utils.data._utils.signal_handling"

    def program(x: Tensor) -> Tensor:
        signal.signal(signal.SIGUSR1, lambda *_: None)
        signal.signal(signal.SIGUSR2, of_torch)
        os.environ["SET_BY_THE_PROGRAM"] = "1"
        torch.manual_seed(1)
        random.seed(1)
        np.random.seed(1)
        return x.add_(1)

    handler = signal.getsignal(signal.SIGUSR1)
    torch.manual_seed(5), random.seed(5), np.random.seed(5)
    expected = torch.rand(2), random.random(), np.random.rand()
    torch.manual_seed(5), random.seed(5), np.random.seed(5)
    found = diagnosed(program, given, peaks=ceilings)
    assert signal.getsignal(signal.SIGUSR1) is handler and "SET_BY_THE_PROGRAM" not in os.environ
    assert (
        torch.equal(torch.rand(2), expected[0]) and random.random() == expected[1] and np.random.rand() == expected[2]
    )
    assert torch.equal(given, torch.zeros(3))
    assert signal.getsignal(signal.SIGUSR2) is of_torch  # torch, which sets SIGCHLD's once, counts on it from then on
    signal.signal(signal.SIGUSR2, signal.SIG_DFL)
    assert any("SIGUSR1" in line and "SIGUSR2" not in line for line in found.findings)
    assert any("writes its tensor argument 0" in line for line in found.findings)


@pytest.mark.parametrize("profile", [torch.profiler.profile, torch.autograd.profiler.profile])
def test_a_running_profiler_is_not_ended(profile: Any, ceilings: Peaks) -> None:
    with profile() as theirs:
        X + X
        with pytest.raises(RuntimeError, match="torch's profiler is running in this process"):
            diagnosed(lambda: X + X, peaks=ceilings)
        X * X
    assert {"aten::add", "aten::mul"} <= {event.key for event in theirs.key_averages()}


@pytest.mark.parametrize("profile", [torch.profiler.profile, torch.autograd.profiler.profile])
def test_a_program_that_profiles_itself_is_refused(profile: Any, ceilings: Peaks) -> None:
    def program() -> None:
        with profile():
            X @ X

    with pytest.raises(RuntimeError, match="starts torch's profiler itself"):
        diagnosed(program, peaks=ceilings)


def test_threads_of_the_program_are_said(ceilings: Peaks) -> None:
    def program() -> None:
        workers = [threading.Thread(target=lambda: [X @ X for _ in range(20)]) for _ in range(2)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

    found = kw.diagnose(program, peaks=ceilings, budget_s=1.0, rough=True)
    assert any("thread" in line for line in (found.sentence, *found.notes)), found


# ---------------------------------------------------------------- the budget


@pytest.mark.parametrize("budget", [float("nan"), float("inf"), -float("inf"), 0, -1.0])
def test_a_budget_that_is_none_is_refused_before_anything_runs(budget: float) -> None:
    with pytest.raises(ValueError, match=r"budget_s must be a finite number of seconds above 0, got"):
        kw.diagnose(lambda: pytest.fail("ran"), budget_s=budget)


@pytest.mark.parametrize("budget", [None, "3", True])
def test_a_budget_of_another_type_is_refused(budget: Any) -> None:
    with pytest.raises(TypeError, match="budget_s must be a number of seconds, got"):
        kw.diagnose(lambda: pytest.fail("ran"), budget_s=budget)


def test_programs_of_very_many_calls_cost_what_the_budget_says(ceilings: Peaks) -> None:
    """What is surveyed is bounded, and every call is still on the page. The factor is wide: the machine may be busy."""
    small = torch.ones(4)

    def program() -> Tensor:
        y = small
        for _ in range(8_000):
            y = y + small
        return y

    start = time.process_time()  # of this process: others may have the cores meanwhile
    program()
    plain = time.process_time() - start
    start = time.process_time()
    found = kw.diagnose(program, peaks=ceilings, budget_s=0.5, rough=True)
    seconds = time.process_time() - start
    assert sum(r.calls for r in found.hotspots if r.op == "add") == 8_000
    assert not any("add" in line for line in found.unmodelled)
    assert any("of 8000 calls the first 20" in line for line in found.notes), found.notes
    assert seconds < 8 * 0.5 + 40 * plain + 3, seconds
    assert sum(found.time_breakdown.values()) == pytest.approx(found.wall_s)


# ---------------------------------------------------------------- a fix


def test_whatever_happens_in_a_fix_the_diagnosis_is_reported(ceilings: Peaks, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib

    def breaks(*given: Any) -> Any:
        raise OverflowError("unforeseen")

    monkeypatch.setattr(importlib.import_module("kernelworks.diagnose.fix.program_roots"), "find_roots", breaks)
    found = diagnosed(nn.Linear(4, 4), torch.ones(2, 4), peaks=ceilings, fix=True)
    assert found.hotspots and found.fix is not None
    assert not found.fix.agrees and not found.fix.against and not found.fix.rounds
    assert "OverflowError: unforeseen" in found.fix.refused


@pytest.mark.usefixtures("quick_processes")
def test_a_program_that_raises_when_it_is_swapped_keeps_its_diagnosis(ceilings: Peaks) -> None:
    class Looks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            if "forward" in self.linear.__dict__:
                raise ValueError("somebody was here")
            return self.linear(x)

    net = Looks()
    found = diagnosed(net, torch.ones(2, 8), peaks=ceilings, fix=True)
    assert found.fix is not None and found.hotspots
    if "somebody was here" not in found.fix.refused:
        assert not found.fix.replaced or found.fix.rounds == 0
    assert "forward" not in net.linear.__dict__


# ---------------------------------------------------------------- from the command line

FILE = """
import os, subprocess, sys, torch
x = torch.ones(64, 64)
def prints():
    print("from Python")
    os.write(1, b"from a descriptor\\n")
    subprocess.run(["echo", "from a process"])
    return x @ x
def boom():
    raise ValueError("the user's own")
def chained():
    try:
        boom()
    except ValueError as error:
        raise KeyError("second") from error
def odd():
    raise BaseException("odd")
def leaves():
    sys.exit(4)
def needs(a): ...
number = 3
class Model(torch.nn.Module):
    def forward(self, a): return a
model = Model()
class Holder:
    def method(self): ...
import atexit
atexit.register(print, "at the very end")
"""

COMMAND = """
import sys, importlib
from kernelworks.records import Peaks, from_json
peaks = from_json(Peaks, open(sys.argv.pop(1)).read())
importlib.import_module("kernelworks.diagnose").measured_peaks = lambda *args, **more: peaks
from kernelworks.cli import main
main()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, ceilings: Peaks) -> Path:
    from kernelworks.records import to_json

    made = tmp_path_factory.mktemp("programs")
    (made / "p.py").write_text(FILE)
    (made / "wrong.py").write_text("def f(:\n")
    (made / "zero.py").write_text("1 / 0\n")
    (made / "book.ipynb").write_text("{}")
    package = made / "pack" / "inner"
    package.mkdir(parents=True)
    for place in (package, package.parent):
        (place / "__init__.py").touch()
    (package.parent / "base.py").write_text("SIZE = 3\n")
    (package / "mod.py").write_text(
        "from ..base import SIZE\nimport torch\ndef f(): return torch.ones(SIZE) + 1\n"
        'if __name__ == "__main__":\n    f()\n'
    )
    (made / "ceilings.json").write_text(to_json(ceilings))
    return made


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return forked.python("ceilings.json", *arguments, code=f"import os\nos.chdir({str(folder)!r})\n{COMMAND}")


def test_json_is_one_document_whatever_the_program_prints(folder: Path) -> None:
    line = [sys.executable, "-c", COMMAND, "ceilings.json", "diagnose", "p.py:prints", "--json", "--rough"]
    done = subprocess.run(line, capture_output=True, text=True, check=False, cwd=folder, timeout=120)
    assert done.returncode == 0, done.stderr[-500:]
    assert from_json(Diagnosis, done.stdout).program == "p.py:prints"
    assert json.loads(done.stdout)
    for text in ("from Python", "from a descriptor", "from a process", "at the very end"):
        assert text in done.stderr


TARGETS = {
    "p.py:nothing": "p.py has no function 'nothing'",
    "p.py:needs": "p.py:needs must take no arguments, got a",
    "p.py:model": "p.py:model must take no arguments, got a",
    "p.py:Model": "p.py:Model must be a function, got a class",
    "p.py:number": "p.py:number must be a function, got int",
    "p.py:Holder.method": "must name a function of the file, got 'Holder.method'",
    "p.py:": "names no function after the colon",
    "nowhere.py": "no file 'nowhere.py'",
    "nowhere.py:f": "no file 'nowhere.py'",
    ".": "got the folder '.'",
    "book.ipynb": "program must be a Python file, got 'book.ipynb'",
}


@pytest.mark.parametrize("target", ["p.py:nothing", "nowhere.py:f"])
@pytest.mark.parametrize("verb", ["diagnose", "swap"])
def test_a_target_that_cannot_be_run_is_one_line(verb: str, target: str, folder: Path) -> None:
    done = command(folder, verb, target)
    assert done.returncode == 2 and done.stdout == ""
    assert len(done.stderr.splitlines()) == 1 and TARGETS[target] in done.stderr


@pytest.mark.parametrize("target", list(TARGETS))
def test_a_target_says_what_is_wrong_with_it(target: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kernelworks.profile.program import TargetError, from_target

    monkeypatch.chdir(folder)
    with pytest.raises(TargetError) as caught:
        from_target(target)
    assert TARGETS[target] in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("target", "first", "last"),
    [
        ("p.py:boom", "Traceback (most recent call last):", "ValueError: the user's own"),
        ("p.py:chained", "Traceback (most recent call last):", "KeyError: 'second'"),
        ("p.py:odd", "Traceback (most recent call last):", "BaseException: odd"),
        ("wrong.py", '  File "', "SyntaxError: invalid syntax"),
        ("zero.py", "Traceback (most recent call last):", "ZeroDivisionError: division by zero"),
    ],
)
def test_the_programs_own_exception_comes_first_and_without_our_frames(
    target: str, first: str, last: str, folder: Path
) -> None:
    done = command(folder, "diagnose", target)
    said = done.stderr.splitlines()
    assert done.returncode == 1
    assert said[0].startswith(first) and said[-2] == last and said[-1].startswith("kernelworks: the program raised")
    assert "kernelworks/" not in done.stderr and "runpy" not in done.stderr


def test_modules_and_files_of_packages(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kernelworks.profile.program import NoFile, from_target

    monkeypatch.chdir(folder)
    search, argv = list(sys.path), list(sys.argv)
    assert from_target("pack/inner/mod.py:f").run().shape == (3,)
    assert from_target("pack.inner.mod:f", module=True).run().shape == (3,)
    from_target("pack.inner.mod", module=True).run()
    from_target("pack/inner/mod.py").run()
    with pytest.raises(NoFile, match="a module that python -m finds"):
        from_target("pack.nothing", module=True)
    assert (sys.path, sys.argv) == (search, argv)
    for name in [n for n in sys.modules if n.split(".")[0] == "pack"]:
        del sys.modules[name]


def test_a_script_that_changes_folder_runs_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kernelworks.profile.program import from_target

    (folder / "moves.py").write_text("import os\nos.chdir('/')\n")
    monkeypatch.chdir(folder)
    program = from_target("moves.py")
    program.run()
    program.run()
    assert Path.cwd() == folder


WRONG = {
    ("verify", "softmax", "--dtype", "float7"): "dtype must be one of float32, bfloat16, float16, got 'float7'",
    ("verify", "softmax", "--jobs", "0"): "Invalid value for '--jobs'",
    ("bench", "softmax", "--kernel", "nothing"): "got 'nothing'",
    ("bench", "softmax", "--threads", "many"): "Invalid value for '--threads'",
    ("explain", "softmax", "4x8", "dim=abc"): "dim must be an int, got 'abc'",
    ("explain", "rms_norm", "4x8", "8", "eps=abc"): "eps must be a float, got 'abc'",
    ("explain", "softmax", "x=4x8", "x=4x8"): "x is given twice",
    ("explain", "rope", "1x2x3x4", "1x2x3x4", "3x4", "3x4", "interleaved=maybe"): "interleaved must be true or false",
    ("explain", "softmax", "99999999x99999999x99"): "cannot be made here",
    ("machine", "--device", "tpu"): "--device must be cpu or cuda, got 'tpu'",
    ("climb", "nothing"): "there is no ladder 'nothing'",
    ("autotune", "softmax", "--look"): "--kernel, --case, --keep and --look need --configs",
    ("map", "nothing", "--stale", "--json"): "no op is named 'nothing'",
    ("swap", "p.py:needs"): "p.py:needs must take no arguments, got a",
    ("swap", "p.py"): "the model must be given as FILE.py:FUNCTION, got 'p.py'",
    ("diagnose",): "name a program (a script, or FILE.py:FUNCTION)",
    ("diagnose", "-m", "no.such.module"): "a module that python -m finds from here, got 'no.such.module'",
    ("frobnicate",): "No such command 'frobnicate'",
    ("--colour",): "No such option: --colour",
}


@pytest.mark.parametrize("arguments", list(WRONG), ids=" ".join)
def test_what_the_command_line_has_wrong_is_one_line_that_names_it(arguments: tuple[str, ...], folder: Path) -> None:
    done = command(folder, *arguments)
    said = done.stderr.splitlines()
    assert done.returncode == 2 and done.stdout == "", done
    assert len(said) == 1 and said[0].startswith("kernelworks: ") and WRONG[arguments] in said[0], done.stderr


def test_a_watched_coroutine_leaves_transforms_as_they_were() -> None:
    """A thread that asked for the frames of one that ran a coroutine broke torch.func for the rest of the process."""
    from kernelworks.profile.sampler import watch_program

    def gradients() -> Tensor:
        return torch.vmap(torch.func.grad(lambda x: nn.functional.gelu(x, approximate="tanh").square().sum()))(X)

    before = gradients()
    watch_program(lambda: asyncio.run(coroutine()))
    assert torch.equal(gradients(), before)
