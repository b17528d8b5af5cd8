"""The pytest plug-in of kernelworks: ``kernelworks_speed`` fails a test that got slower than its stored baseline.

    def test_attention(kernelworks_speed):
        out = kernelworks_speed(attention, q, k, v)

``pytest --kernelworks-update`` measures and stores, ``pytest --kernelworks-max-slowdown 5%`` measures and judges; if
neither is given, the function is called once. This module loads with every run of pytest if kernelworks is installed,
so it imports nothing but pytest: torch and kernelworks are loaded when something is measured.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

__all__ = ["Speed", "kernelworks_speed", "pytest_addoption", "pytest_configure", "pytest_terminal_summary"]

LIMIT, UPDATE = "--kernelworks-max-slowdown", "--kernelworks-update"
PROPERTY = "kernelworks_speed"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("kernelworks", "kernelworks: tests that fail if something got slower")
    group.addoption(
        LIMIT, metavar="PERCENT", default=None,
        help="fail a test whose kernelworks_speed is slower than its baseline by more than that and than the noise",
    )  # fmt: skip
    group.addoption(UPDATE, action="store_true", help="measure, and store the baselines of this kind of machine")
    parser.addini("kernelworks_max_slowdown", f"the default of {LIMIT}", default="")


def _limit(config: pytest.Config) -> float | None:
    """The share, None if nothing is judged. Raises UsageError for what is no percentage."""
    given = str(config.getoption(LIMIT) or config.getini("kernelworks_max_slowdown") or "").strip()
    if not given:
        return None
    try:
        value = float(given.removesuffix("%")) / 100
    except ValueError:
        value = -1.0
    if not given.endswith("%") or not 0 <= value < 10:
        raise pytest.UsageError(f"{LIMIT} takes a percentage such as 5%, got {given!r}")
    return value


def pytest_configure(config: pytest.Config) -> None:
    _limit(config)


class Speed:
    """What the fixture gives: call it with a function and its arguments."""

    def __init__(self, request: pytest.FixtureRequest, say: Callable[[str, object], None]) -> None:
        self._config, self._say, self._seen = request.config, say, set[str]()
        self._file = Path(request.node.path)
        self._test = request.node.nodeid.partition("::")[2] or request.node.name

    def __call__(self, fn: Callable[..., Any], /, *args: Any, name: str = "", **kwargs: Any) -> Any:
        """Measures ``fn(*args, **kwargs)`` and gives what its first call returned.

        Fails the test if it is slower than the baseline by more than the limit and more than the noise; skips it if
        there is no baseline of this kind of machine, or if other processes used the machine. ``name`` tells several
        measurements of one test apart. ``fn`` is called many times: it must do the same work each time.
        """
        test = f"{self._test} {name}".rstrip()
        if test in self._seen:
            raise ValueError(f"{test} is measured twice: give each measurement a name=")
        self._seen.add(test)
        limit, update = _limit(self._config), bool(self._config.getoption(UPDATE))
        call = functools.partial(fn, *args, **kwargs)
        if limit is None and not update:
            return call()
        from kernelworks.integrations import speed

        path, results = speed.baseline_path(self._file), list[Any]()

        def measure() -> speed.SpeedBaseline:
            found, result = speed.measure_speed(test, call)
            results.append(result)
            return found

        if update:
            self._store(path, measure, test)
            return results[0]
        try:
            known = speed.read_baselines(path)
        except speed.BrokenBaseline as error:
            pytest.fail(str(error), pytrace=False)
        assert limit is not None
        verdict = speed.compare_speed(test, known, path, limit, measure)
        self._say(PROPERTY, f"{test}: {verdict}")
        if verdict.skipped:
            pytest.skip(f"kernelworks_speed: {verdict.skipped}")
        if verdict.is_slower(limit):
            pytest.fail(f"{test} got slower by more than {100 * limit:g}%: {verdict}", pytrace=False)
        return results[0]

    def _store(self, path: Path, measure: Callable[[], Any], test: str) -> None:
        from kernelworks.integrations import speed

        found = measure()
        found = measure() if found.noisy else found
        if found.noisy:
            self._say(PROPERTY, f"{test}: not stored: measurement too noisy")
            pytest.skip("kernelworks_speed: not stored, measurement too noisy: other processes used the machine")
        try:
            remark = speed.store_baseline(path, found)
        except OSError as error:
            pytest.fail(f"could not write {path}: {error.strerror or error}", pytrace=False)
        self._say(PROPERTY, f"{test}: stored in {path.name}" + (f"; {remark}" if remark else ""))


@pytest.fixture
def kernelworks_speed(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> Speed:
    """Measures a function against its stored baseline: ``kernelworks_speed(fn, *args)`` gives what ``fn`` returns."""
    return Speed(request, record_property)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    reports = [one for some in terminalreporter.stats.values() for one in some if getattr(one, "when", "") == "call"]
    lines = [value for one in reports for key, value in one.user_properties if key == PROPERTY]
    if lines:
        terminalreporter.section("kernelworks speed")
        for line in sorted(lines):
            terminalreporter.line(str(line))
