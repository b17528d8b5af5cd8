"""Two records side by side: what is judged, what is noise, what cannot be compared, and the exit codes."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kernelworks.cli import app
from kernelworks.records.compare import NoRecord, compare

HEAD = {
    "machine": {"kind": "k", "name": "M"}, "date": "2026-01-01", "commit": "c", "threads": 2, "versions": {"torch": "2"}
}  # fmt: skip
FIX = {"rounds": 5, "after_s": 0.8, "noise_s": 0.02}
REGION = {"op": "gelu", "module": "m", "source": "a.py:1", "seconds": 0.3}
DIAGNOSIS = {
    "program": "p.py:f", "wall_s": 1.0, "hotspots": [REGION, {**REGION, "op": "linear", "seconds": 0.7}],
    "time_breakdown": {"useful": 0.9, "unexplained": 0.1}, "peaks": {"name": "M", "kind": "k"}, "threads": 2,
    "date": "2026-01-01", "versions": {"torch": "2"}, "fix": FIX, "ambiguous": "", "rough": False,
}  # fmt: skip
ARM = {"name": "kernelworks", "median_us": 100.0, "low_us": 98.0, "high_us": 102.0, "samples": 16}
BENCH = {
    "op": "norm", "case": "8x8", "dtype": "float32", "threads": 2, "cache": "warm", "variants": [ARM], "gate": "",
    "device": "cpu", "rough": "",
}  # fmt: skip
BENCHES = {**HEAD, "results": [BENCH]}
SUITE = {
    **HEAD,
    "rows": [
        {"program": "a", "mode": "default", "share": 0.8, "spread": 0.01},
        {"program": "a", "mode": "fix", "before_s": 1.0, "after_s": 0.5, "noise_s": 0.01},
        {"program": "a", "mode": "reduce-overhead", "failed": "took more than 9 s"},
    ],
}


def changed(record: dict[str, Any], change: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    found = copy.deepcopy(record)
    change(found)
    return found


def files(folder: Path, *records: Any) -> list[str]:
    paths = [folder / f"{name}.json" for name, _ in zip("ab", records, strict=True)]
    for path, record in zip(paths, records, strict=True):
        path.write_text(json.dumps(record))
    return [str(path) for path in paths]


CASES = [  # what the second record has otherwise, and the exit code with --fail-if-slower 3%
    ("the same", DIAGNOSIS, lambda d: None, 0),
    ("slower", DIAGNOSIS, lambda d: d.update(wall_s=1.1), 1),
    ("faster", DIAGNOSIS, lambda d: d.update(wall_s=0.9), 0),
    ("slower by less than asked", DIAGNOSIS, lambda d: d.update(wall_s=1.029), 0),
    ("slower within the noise", DIAGNOSIS, lambda d: d.update(wall_s=1.1, fix={**FIX, "noise_s": 0.2}), 3),
    ("the fix is slower", DIAGNOSIS, lambda d: d["fix"].update(after_s=0.9), 1),
    ("a region alone", DIAGNOSIS, lambda d: d["hotspots"][0].update(seconds=0.6), 0),
    ("another machine", DIAGNOSIS, lambda d: d["peaks"].update(name="N"), 3),
    ("other threads", DIAGNOSIS, lambda d: d.update(threads=1), 3),
    ("a busy machine", DIAGNOSIS, lambda d: d.update(ambiguous="others took 40%", time_breakdown={}, hotspots=[]), 3),
    ("another kind of machine of the same name", DIAGNOSIS, lambda d: d["peaks"].update(kind="l"), 3),
    ("slower, roughly", DIAGNOSIS, lambda d: d.update(wall_s=1.1, rough=True), 3),
    ("no slower, roughly", DIAGNOSIS, lambda d: d.update(rough=True), 0),
    ("a fix that others disturbed", DIAGNOSIS, lambda d: d["fix"].update(after_s=0.9, ambiguous="others took 20%"), 3),
    ("a slower case", BENCHES, lambda d: d["results"][0]["variants"][0].update(median_us=110.0), 1),
    ("a slower case, roughly", BENCHES,
     lambda d: d["results"][0].update(rough="others", variants=[{**ARM, "median_us": 110.0}]), 3),
    ("a case without a figure", {**BENCHES, "results": [BENCH, {**BENCH, "case": "9"}]},
     lambda d: d["results"][1].update(gate="wrong"), 0),
    ("a program's fix", SUITE, lambda d: d["rows"][1].update(after_s=0.6), 1),
    ("a program's switch, with noise", SUITE, lambda d: d["rows"][0].update(share=0.9, spread=0.2), 3),
    ("a program's switch, while others worked", SUITE, lambda d: d["rows"][0].update(share=0.9, loud=True), 3),
    ("a mode that failed before", SUITE, lambda d: d["rows"][2].update(failed="otherwise"), 0),
]  # fmt: skip


@pytest.mark.parametrize(("first", "change", "code"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_the_exit_code_says_what_came_of_it(
    first: dict[str, Any], change: Callable[[dict[str, Any]], Any], code: int, tmp_path: Path
) -> None:
    paths = files(tmp_path, first, changed(first, change))
    assert CliRunner().invoke(app, ["compare", *paths]).exit_code == 0  # nothing was asked for
    asked = CliRunner().invoke(app, ["compare", *paths, "--fail-if-slower", "3%"])
    assert asked.exit_code == code, asked.output
    document = json.loads(CliRunner().invoke(app, ["compare", *paths, "--fail-if-slower", "3%", "--json"]).stdout)
    assert document["verdict"] == {0: "", 1: "slower", 3: "ambiguous"}[code]
    assert "\x1b[" not in asked.output


def test_it_says_where_the_time_went(tmp_path: Path) -> None:
    second = changed(DIAGNOSIS, lambda d: (d.update(wall_s=1.3), d["hotspots"][0].update(seconds=0.6)))
    text = CliRunner().invoke(app, ["compare", *files(tmp_path, DIAGNOSIS, second), "--fail-if-slower", "5%"]).output
    assert "gelu m a.py:1" in text and "+100.0%" in text
    assert "linear" not in text, "what did not move is not among what did"
    assert "slower by more than 5%: wall clock (+30.0%)" in text


BUSY = changed(
    DIAGNOSIS,
    lambda d: d.update(
        rough=True, wall_s=1.4, walls_s=[1.0, 1.1, 1.4, 1.7, 1.8], fix=None,
        time_breakdown={**d["time_breakdown"], "CPU contention": 0.4},
        hotspots=[*d["hotspots"], {**REGION, "op": "CPU contention", "module": "", "source": "", "seconds": 0.4}],
    ),
)  # fmt: skip
CALM = changed(BUSY, lambda d: d.update(rough=False))


def test_of_rough_records_there_is_no_verdict(tmp_path: Path) -> None:
    text = CliRunner().invoke(app, ["compare", *files(tmp_path, DIAGNOSIS, BUSY)], env={"COLUMNS": "120"}).output
    assert "no verdict (rough)" in text and "slower, rough" not in text
    assert "1 figure: 0 slower, 0 faster, 1 without a verdict (rough)" in text


def test_what_others_took_is_not_compared(tmp_path: Path) -> None:
    found = compare(*files(tmp_path, DIAGNOSIS, CALM))
    figure = next(c for c in found.compared if c.judged)
    assert figure.name == "wall clock without CPU contention" and figure.after == pytest.approx(1.0)
    text = CliRunner().invoke(app, ["compare", *files(tmp_path, DIAGNOSIS, CALM)], env={"COLUMNS": "120"}).output
    assert "1 figure: 0 slower, 0 faster" in text
    later = changed(CALM, lambda d: d.update(wall_s=2.8))  # slower by itself
    assert [c.name for c in compare(*files(tmp_path, CALM, later)).slower()] == [figure.name]


def test_the_noise_is_that_of_the_records_own_intervals(tmp_path: Path) -> None:
    noise = next(c for c in compare(*files(tmp_path, CALM, CALM)).compared if c.judged).noise
    assert noise == pytest.approx(2**0.5 * 0.35)  # quartiles at 1.05 and 1.75


def test_contention_stands_in_one_line_and_no_percentage_is_of_nothing(tmp_path: Path) -> None:
    second = changed(CALM, lambda d: d["time_breakdown"].update({"CPU contention": 1.3}))
    text = CliRunner().invoke(app, ["compare", *files(tmp_path, CALM, second)], env={"COLUMNS": "120"}).output
    lines = [line for line in text.splitlines() if "CPU contention" in line and "wall clock" not in line]
    assert len(lines) == 1 and "appeared" in lines[0] and "%" not in lines[0] and " ms" in lines[0]


def test_other_versions_are_said_first(tmp_path: Path) -> None:
    second = changed(BENCHES, lambda d: d["versions"].update(torch="3"))
    found = compare(*files(tmp_path, BENCHES, second))
    assert found.remarks == ("other versions: torch 2 -> 3",)


@pytest.mark.parametrize(
    ("first", "second"), [(DIAGNOSIS, BENCHES), (BENCHES, {**BENCHES, "results": []}), (SUITE, {"a": 1}), (SUITE, 3)]
)
def test_what_cannot_be_compared_is_usage(first: Any, second: Any, tmp_path: Path) -> None:
    paths = files(tmp_path, first, second)
    with pytest.raises(NoRecord):
        compare(*paths)
    assert CliRunner().invoke(app, ["compare", *paths]).exit_code == 2


@pytest.mark.parametrize("limit", ["3", "x%", "-1%", "nan%"])
def test_a_limit_is_a_percentage(limit: str, tmp_path: Path) -> None:
    paths = files(tmp_path, BENCHES, BENCHES)
    assert CliRunner().invoke(app, ["compare", *paths, "--fail-if-slower", limit]).exit_code == 2
    assert CliRunner().invoke(app, ["compare", paths[0], str(tmp_path / "none.json")]).exit_code == 2


def test_a_busy_machine_s_figures_have_no_verdict(tmp_path: Path) -> None:
    busy = changed(DIAGNOSIS, lambda d: d.update(ambiguous="others took 40%", wall_s=0.1))
    text = " ".join(CliRunner().invoke(app, ["compare", *files(tmp_path, DIAGNOSIS, busy)]).output.split())
    assert "gives no verdict: others took 40%" in text and "no verdict (rough)" in text
    assert "2 without a verdict" in text and "0 slower, 0 faster" in text
