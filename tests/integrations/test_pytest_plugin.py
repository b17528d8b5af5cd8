"""The pytest plug-in, run by pytest in a process of its own on small suites."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kernelworks.integrations import speed
from kernelworks.integrations.speed import SpeedBaseline, compare_speed, measure_speed, read_baselines, store_baseline
from kernelworks.machine import kind_of

ROOT = Path(__file__).resolve().parents[2]
SUITE = """
    import torch
    x = torch.ones(200, 200)

    def test_product(kernelworks_speed):
        assert kernelworks_speed(torch.mm, x, x)[0, 0] == 200
"""


class Ran(NamedTuple):
    returncode: int
    stdout: str


def prepare(folder: Path, options: Sequence[str], suite: str) -> list[str]:
    (folder / "test_it.py").write_text(textwrap.dedent(suite))
    (folder / "pytest.ini").touch()
    given = ("-q", "-rs", "-p", "no:cacheprovider", "-p", "pytest_kernelworks", "--import-mode=importlib", *options)
    return [*given, "--rootdir", str(folder), "-c", str(folder / "pytest.ini"), str(folder)]


def run_pytest(folder: Path, *options: str, suite: str = SUITE) -> Ran:
    """In a process of its own, which has loaded nothing."""
    command = [sys.executable, "-m", "pytest", *prepare(folder, options, suite)]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return Ran(done.returncode, done.stdout + done.stderr)


@pytest.fixture
def run(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    """In this process, which has torch already."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setattr(speed, "DUELS", 1)

    def inner(*options: str, suite: str = SUITE) -> Ran:
        capfd.readouterr()
        monkeypatch.delitem(sys.modules, "test_it", raising=False)  # of another run
        code = pytest.main(prepare(tmp_path, options, suite))
        return Ran(int(code), "".join(capfd.readouterr()))

    return inner


def baseline(test: str = "test_product", **changes: Any) -> SpeedBaseline:
    import torch

    made = SpeedBaseline(
        test, kind_of("cpu"), torch.get_num_threads(), torch.__version__, 1.0, 0.01, 1e-3, "2026-01-01"
    )
    return SpeedBaseline(**{**vars(made), **changes})


def test_without_options_the_function_is_called_once_and_nothing_is_loaded(tmp_path: Path) -> None:
    ran = run_pytest(tmp_path, suite="""
        calls = []

        def test_it(kernelworks_speed):
            assert kernelworks_speed(lambda a, *, b: calls.append(a) or a + b, 1, b=2) == 3
            assert calls == [1]

        def test_that_nothing_is_loaded():
            import sys
            assert "pytest_kernelworks" in sys.modules
            assert "torch" not in sys.modules and "kernelworks" not in sys.modules
    """)  # fmt: skip
    assert ran.returncode == 0, ran.stdout
    assert not (tmp_path / "test_it.speed.json").exists() and "kernelworks speed" not in ran.stdout


def test_update_and_judge(tmp_path: Path, run: Callable[..., Ran]) -> None:
    """A baseline a hundred times as slow passes on any machine, one a hundred times as quick fails on any."""
    ran = run("--kernelworks-max-slowdown", "5%")
    assert ran.returncode == 0 and "1 skipped" in ran.stdout
    assert f"no baseline of this kind of machine ({kind_of('cpu')}) in test_it.speed.json" in ran.stdout
    path = tmp_path / "test_it.speed.json"
    ran = run("--kernelworks-update")
    if "too noisy" in ran.stdout:  # said, and nothing stored
        assert "1 skipped" in ran.stdout and not path.exists()
        store_baseline(path, baseline())
    (stored,) = read_baselines(path)
    assert stored.test == "test_product" and stored.kind == kind_of("cpu") and stored.ratio > 0
    for factor, code, word in ((100.0, 0, "faster"), (0.01, 1, "slower")):
        store_baseline(path, baseline(ratio=stored.ratio * factor, seconds=stored.seconds * factor))
        ran = run("--kernelworks-max-slowdown=5%")
        if "too noisy" not in ran.stdout:
            assert ran.returncode == code, ran.stdout
            assert re.search(rf"test_product: [+-]\d+\.\d% \+- \d+\.\d%, {word} \(", ran.stdout), ran.stdout
            assert ("got slower by more than 5%" in ran.stdout) is bool(code)


@pytest.mark.parametrize("given", ["5", "much", "-3%", "2000%", "nan%", "%"])
def test_a_limit_that_is_no_percentage(given: str, run: Callable[..., Ran]) -> None:
    ran = run(f"--kernelworks-max-slowdown={given}")
    assert ran.returncode == 4 and "takes a percentage such as 5%" in ran.stdout


def test_the_limit_of_the_configuration(tmp_path: Path, run: Callable[..., Ran]) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nkernelworks_max_slowdown = 7%\n")
    store_baseline(tmp_path / "test_it.speed.json", baseline(kind="another"))
    ran = run()
    assert ran.returncode == 0 and "1 skipped" in ran.stdout


BROKEN = [
    "", "{", "[]", "7", '{"version": 1, "measurements": [{}]}', '{"version": 2, "measurements": []}', "<<<<<<< HEAD\n",
    '{"version": 1, "measurements": [{"test": "test_product", "kind": "k", "threads": 2, "torch": "2", "ratio": NaN, '
    '"spread": 0.1, "seconds": 1.0, "date": ""}]}',
    "[" * 100_000, "\x00\x01",
]  # fmt: skip


@pytest.mark.parametrize("content", BROKEN)
def test_a_broken_file(content: str, tmp_path: Path) -> None:
    path = tmp_path / "it.speed.json"
    path.write_text(content)
    with pytest.raises(speed.BrokenBaseline, match="--kernelworks-update writes it anew") as refused:
        read_baselines(path)
    assert "\n" not in str(refused.value)
    assert store_baseline(path, baseline()) == "it.speed.json could not be read: it is it.speed.json.broken now"
    assert read_baselines(path) == [baseline()] and (tmp_path / "it.speed.json.broken").read_text() == content


def test_a_broken_file_fails_the_test_in_one_line(tmp_path: Path, run: Callable[..., Ran]) -> None:
    (tmp_path / "test_it.speed.json").write_text("{")
    ran = run("--kernelworks-max-slowdown=5%")
    assert ran.returncode == 1 and "is no file of baselines" in ran.stdout and "Traceback" not in ran.stdout


def test_a_baseline_that_is_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "it.speed.json")
    with pytest.raises(speed.BrokenBaseline, match="no regular file"):
        read_baselines(tmp_path / "it.speed.json")


def test_others_stay(tmp_path: Path) -> None:
    path = tmp_path / "it.speed.json"
    others = [baseline("test_b"), baseline(kind="another"), baseline("test_a[1-x]")]
    for one in others:
        assert store_baseline(path, one) == ""
    store_baseline(path, baseline(ratio=3.0))
    store_baseline(path, baseline(ratio=4.0))
    assert sorted(read_baselines(path), key=str) == sorted([*others, baseline(ratio=4.0)], key=str)
    assert len(path.read_text().splitlines()) == 6 + len(others)  # a line each: what changed is what a diff shows
    assert [p.name for p in tmp_path.iterdir()] == ["it.speed.json"]


def store_many(path: Path, name: str, count: int) -> None:
    for i in range(count):
        store_baseline(path, baseline(f"{name} {i}"))


def test_writers_at_once_and_one_that_is_killed(tmp_path: Path) -> None:
    path, forks = tmp_path / "it.speed.json", multiprocessing.get_context("fork")
    writers = [forks.Process(target=store_many, args=(path, name, 10)) for name in "abc"]
    doomed = forks.Process(target=store_many, args=(path, "d", 1_000_000))
    for writer in (doomed, *writers):
        writer.start()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    doomed.kill()
    doomed.join()
    found = {one.test for one in read_baselines(path)}
    assert {f"{name} {i}" for name in "abc" for i in range(10)} <= found
    store_baseline(path, baseline())  # its lock went with it
    assert json.loads(path.read_text())["version"] == 1


def test_workers_of_xdist(tmp_path: Path) -> None:
    suite = """
        import pytest, torch
        x = torch.ones(64, 64)

        @pytest.mark.parametrize("n", range(4))
        def test_it(n, kernelworks_speed):
            kernelworks_speed(torch.mm, x, x, name="product")
    """
    (tmp_path / "conftest.py").write_text("from kernelworks.integrations import speed\nspeed.DUELS = 1\n")
    ran = run_pytest(tmp_path, "--kernelworks-update", "-p", "xdist.plugin", "-n", "2", suite=suite)
    assert ran.returncode == 0, ran.stdout
    lines = re.findall(r"^test_it\[\d\] product: (?:stored|not stored)", ran.stdout, re.M)
    assert len(lines) == 4, ran.stdout
    stored = ran.stdout.count(": stored")
    assert not stored or len(read_baselines(tmp_path / "test_it.speed.json")) == stored


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "it.speed.json").mkdir()
    (tmp_path / "it.speed.json" / "x").touch()
    with pytest.raises(speed.BrokenBaseline):
        read_baselines(tmp_path / "it.speed.json")


def test_a_name_for_each_measurement(tmp_path: Path, run: Callable[..., Ran]) -> None:
    ran = run(suite="""
        def test_it(kernelworks_speed):
            kernelworks_speed(list)
            kernelworks_speed(list, name="again")
            kernelworks_speed(list, name="again")
    """)  # fmt: skip
    assert ran.returncode == 1 and "test_it again is measured twice: give each measurement a name=" in ran.stdout


# ---------------------------------------------------------------- the judgement


def judged(*measured: SpeedBaseline, limit: float = 0.05, **before: Any) -> tuple[speed.SpeedVerdict, int]:
    """The verdict on measurements that come one after the other, the last again and again; and how many came."""
    came = list[int]()

    def measure() -> SpeedBaseline:
        came.append(1)
        return measured[min(len(came), len(measured)) - 1]

    return compare_speed("test_product", [baseline(**before)], Path("x.speed.json"), limit, measure), len(came)


@pytest.mark.parametrize(
    ("ratio", "spread", "slower", "word"),
    [
        (1.2, 0.01, True, "slower"), (1.2, 0.3, False, "not significant"), (1.04, 0.001, False, "slower"),
        (1.015, 0.001, False, "not significant"), (1.0, 0.01, False, "not significant"), (0.7, 0.01, False, "faster"),
        (1.06, 0.06, False, "not significant"),
    ],
)  # fmt: skip
def test_slower_means_beyond_limit_and_noise(ratio: float, spread: float, slower: bool, word: str) -> None:
    found, came = judged(baseline(ratio=ratio, spread=spread))
    assert found.is_slower(0.05) is slower and word in str(found)
    assert came == (1 + speed.RETRIES if slower else 1)


def test_one_slow_measurement_is_none() -> None:
    found, came = judged(baseline(ratio=1.5), baseline(ratio=1.01))
    assert not found.is_slower(0.05) and came == 2 and found.change == pytest.approx(0.01)


def test_what_cannot_be_compared() -> None:
    noisy = baseline(noisy=True)
    assert "too noisy" in judged(noisy)[0].skipped
    assert judged(noisy, baseline())[0].skipped == ""
    assert "of 99 threads" in judged(baseline(), threads=99)[0].skipped
    found, came = judged(baseline(), kind="another")
    assert "no baseline of this kind" in found.skipped and came == 0
    found, came = judged(baseline(), test="test_b")
    assert "no baseline" in found.skipped and came == 0
    gpu = f"{kind_of('cpu')}+sm_90"
    assert gpu in judged(baseline(kind=gpu))[0].skipped


def test_with_another_torch_the_times_are_compared() -> None:
    found, _ = judged(baseline(ratio=1.0, seconds=2e-3), torch="1.0")
    assert found.is_slower(0.05) and "with torch 1.0" in str(found)
    found, _ = judged(baseline(ratio=9.0, seconds=1e-3), torch="1.0")
    assert not found.is_slower(0.05)


def test_what_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice the work is near twice the ratio, of short calls and of long ones, whatever the clock."""
    import torch

    x = torch.ones(128, 128)

    def work(times: int) -> Any:
        for _ in range(times):
            torch.mm(x, x)
        return times

    monkeypatch.setattr(speed, "DUELS", 1)
    for few in (1, 200):
        (one, first), (two, second) = (
            measure_speed("a", lambda n=few: work(n)),
            measure_speed("b", lambda n=4 * few: work(n)),
        )
        assert (first, second) == (few, 4 * few)
        assert one.seconds < two.seconds and one.ratio < two.ratio
        assert one.kind == kind_of("cpu") and one.threads == torch.get_num_threads()


def test_what_the_function_raises_is_raised(tmp_path: Path, run: Callable[..., Ran]) -> None:
    ran = run("--kernelworks-update", suite="""
        def test_raises(kernelworks_speed):
            kernelworks_speed(lambda: 1 / 0)
    """)  # fmt: skip
    assert ran.returncode == 1 and "ZeroDivisionError" in ran.stdout


def test_the_entry_point() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["entry-points"]["pytest11"] == {"kernelworks": "pytest_kernelworks"}
    assert "src/pytest_kernelworks.py" in project["tool"]["hatch"]["build"]["targets"]["wheel"]["only-include"]
