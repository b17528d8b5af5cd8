"""Reports of real runs, printed from their records at 60, 80 and 120 columns: what a reader meets, and its sums."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import os
import random
import re
import shlex
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from printed import printed
from typer.main import get_command
from typer.testing import CliRunner, Result

from kernelworks.cli import app
from kernelworks.records import Diagnosis, to_document
from kernelworks.records.schema import NoRecord, read_record
from kernelworks.records.wall_clocks import CONTENTION
from kernelworks.report import diagnose, page
from kernelworks.report.hotspots import bound_by, causes, op_label, recoverable
from kernelworks.report.next_steps import MOST_STEPS, Files, next_steps

RECORDS = sorted((Path(__file__).parent / "records").glob("*.json"))
WIDTHS = (60, 80, 120)
SECTIONS = ("RESULT", "NEXT ", "WHERE THE TIME GOES", "HOTSPOTS", "OPTIMIZATIONS", "NEXT STEPS")
# Of no use to who reads a report: what says nothing, and what is ours alone.
BANNED = (
    r"nothing (to be had|recoverable|worth)", r"had back", r"mallopt", r"\bx86_64-", r"\bsm_\d+-", r" by \[\d",
    r"noisy hour", r"\blatency\b", r"\bin/out\b", r"remed(y|ies)", r"\bfor 0 s\b", r"\bnan\b", r"\binf\b", r"\bNone\b",
)  # fmt: skip


def record_of(path: Path) -> Diagnosis:
    found = read_record(path)
    assert isinstance(found, Diagnosis)
    return found


def report(record: Diagnosis, width: int, *, verbose: bool = False) -> str:
    files = Files(
        "kernelworks-out/p.html", "kernelworks-out/p.json", "p.plan.json" * bool(record.fix and record.fix.plan)
    )
    return printed(diagnose.diagnosis(record, width, verbose=verbose, files=files), width)


each_record = pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
each_width = pytest.mark.parametrize("width", WIDTHS)


def test_there_are_records_of_each_sort() -> None:
    found = [record_of(path) for path in RECORDS]
    assert any(r.fix and r.fix.rounds for r in found) and any(r.fix and not r.fix.rounds for r in found)
    assert any(r.fix is None for r in found) and any(r.rough for r in found)


@each_record
@each_width
@pytest.mark.parametrize("verbose", [False, True])
def test_no_line_is_wider_than_the_terminal(path: Path, width: int, verbose: bool) -> None:
    """And no word is cut, nor stands upright in a column too narrow for it."""
    record = record_of(path)
    text = report(record, width, verbose=verbose)
    wide = [line for line in text.splitlines() if len(line) > width and len(line.split()) > 1]
    assert not wide, wide
    upright = re.findall(r"^ +\w{1,2}\n +\w{1,2}$", text, re.M)
    assert not upright
    words = set(text.split())
    own = [r for r in diagnose.sort_worst_first(record.hotspots) if r.op != CONTENTION]
    for hotspot in (r for r in own[:3] if r.share > 0.01):
        said = "" if hotspot.applied else hotspot.action
        assert op_label(hotspot) in text and not set(said.split()) - words


@each_record
@each_width
def test_the_sections_stand_in_their_order(path: Path, width: int) -> None:
    record = record_of(path)
    text = report(record, width)
    at = [text.index(f"\n{name}") for name in SECTIONS if f"\n{name}" in text]
    assert at == sorted(at)
    assert {"RESULT", "WHERE THE TIME GOES", "HOTSPOTS"} <= {name for name in SECTIONS if f"\n{name}" in text}
    assert ("\nOPTIMIZATIONS" in text) == (record.fix is not None)


@each_record
@each_width
def test_there_are_at_most_three_numbered_steps_and_the_first_stands_on_top(path: Path, width: int) -> None:
    record = record_of(path)
    text = report(record, width)
    last = text.partition("NEXT STEPS")[2]
    steps = re.findall(r"^ (\d)\. ", last, re.M)
    assert len(steps) != 1 and len(steps) <= MOST_STEPS and steps == [str(i + 1) for i in range(len(steps))]
    if steps:
        (first,) = re.findall(r"^ 1\. (.{20})", last, re.M)
        assert f"\nNEXT {first}" in re.sub(" +", " ", text)


@each_record
@each_width
def test_each_command_can_be_pasted(path: Path, width: int) -> None:
    """As a shell reads it, backslashes and all, the command line accepts it."""
    record = dataclasses.replace(record_of(path), command=("my dir/minilm.py:embed", "--", "--epochs", "3"))
    verbs: dict[str, Any] = getattr(get_command(app), "commands", {})
    text = report(record, width)
    found = re.findall(r"kernelworks (?:[^\n]*\\\n)*[^\n]*", text.partition("WHERE")[0])
    assert found
    for words in [
        shlex.split(found[0].replace("\\\n", "")),
        *(list(s.command) for s in next_steps(record) if s.command),
    ]:
        assert words[0] == "kernelworks"
        context = verbs[words[1]].make_context(words[1], words[2:])
        assert words[1] != "diagnose" or context.params["program"] == "my dir/minilm.py:embed"
        assert words[1] != "diagnose" or list(context.params["arguments"]) == ["--epochs", "3"]


@each_record
@each_width
def test_no_line_says_nothing(path: Path, width: int) -> None:
    record = record_of(path)
    if path.stem.startswith("older"):  # its findings and actions are in the words of then
        plain = tuple(dataclasses.replace(r, action="") for r in record.hotspots)
        record = dataclasses.replace(record, hotspots=plain, findings=())
    text = report(record, width)
    found = [re.search(pattern, text) for pattern in BANNED]
    assert not any(found), [match[0] for match in found if match]
    lines = [line.strip() for line in text.splitlines() if len(line.split()) > 3]
    repeated = {line for line in lines if lines.count(line) > 3}
    assert not repeated
    figures = text.partition("WHERE THE TIME GOES")[2].partition("NEXT STEPS")[0].partition("OPTIMIZATIONS")[0]
    assert "rough" not in figures.lower()  # it is said once, in the header


@each_record
def test_a_millisecond_has_one_cause(path: Path) -> None:
    record = record_of(path)
    assert math.isclose(sum(record.time_breakdown.values()), record.wall_s, rel_tol=1e-6)
    for hotspot in record.hotspots:
        found = causes(hotspot)
        assert math.isclose(sum(found.values()), sum(hotspot.parts.values()), rel_tol=1e-9)
        assert math.isclose(sum(found.values()), hotspot.seconds, rel_tol=1e-3, abs_tol=1e-6)
        shares = [int(share) for share in re.findall(r"(\d+)%", bound_by(hotspot))]
        assert sum(shares) <= 101
        faults = hotspot.parts.get("allocation (page faults)", 0.0)
        assert faults < 0.5 * hotspot.seconds or bound_by(hotspot).startswith("page faults")
    for width in WIDTHS:
        section = report(record, width).partition("WHERE THE TIME GOES")[2].partition("wall clock")[0]
        printed_shares = [float(share) for share in re.findall(r"(\d+\.\d)%", section)]
        assert round(sum(printed_shares), 1) == 100.0


@each_record
@each_width
def test_the_result_does_not_contradict_the_table(path: Path, width: int) -> None:
    record = record_of(path)
    text = " ".join(report(record, width).split())
    head = text.partition("WHERE THE TIME GOES")[0]
    predicted = sum(r.high_s for r in record.hotspots if not r.applied)
    if "optimization is predicted to gain" in head:
        assert predicted < 0.02 * record.wall_s
    if record.fix is not None and not record.fix.refused:
        for outcome in ("applied", "rejected"):
            count = sum(o.outcome == outcome and not o.advice for o in record.fix.optimizations)
            assert (f"{count} {outcome}" in head) == (count > 0)
            assert text.partition("OPTIMIZATIONS")[2].partition("NEXT STEPS")[0].count(f" {outcome} ") >= 0
    if record.fix is not None and record.fix.rounds:
        assert "predicted" in head and "+-" in head


def test_a_rough_gain_is_called_so_beside_it_and_names_its_clock() -> None:
    record = record_of(Path(__file__).parent / "records" / "minilm.json")
    assert record.fix is not None
    others = "other processes used 86% of the cores"
    told = tuple(dataclasses.replace(o, rough=o.applied, why=others) for o in record.fix.optimizations)
    fix = dataclasses.replace(record.fix, ambiguous=others, rough=True, optimizations=told)
    for width in (80, 120):
        text = " ".join(report(dataclasses.replace(record, fix=fix), width).split())
        assert "1.08x, rough." in text and "wall clocks with CPU contention in them" in text
        assert ("got: rough, other processes" if width == 80 else "applied, rough:") in text
    html = page.diagnosis(dataclasses.replace(record, fix=fix))
    assert "1.08x, rough" in html and "applied, rough" in html and "wall clocks with CPU contention in them" in html
    assert "rough." not in report(record, 80).partition("WHERE")[0].partition("RESULT")[2]


@each_record
def test_the_page_says_what_the_terminal_says(path: Path) -> None:
    """The share of the peak, each hotspot's recoverable time, and how many optimizations were not tried."""
    record = record_of(path)
    html, text = page.diagnosis(record), " ".join(report(record, 140).split())
    share = re.search(r"runs at (.*?) of what this machine can do", text)
    if share and record.walls_s and "% has no model" not in html:  # without its runs a record has no such range
        assert f'<div class="big">{share[1]}</div>' in html
    cells = re.findall(r'data-label="recoverable" data-value="([^"]+)"><div>(.*?)</div>', html)
    assert [unescape(shown) for _, shown in cells] == [recoverable(r) for r in record.hotspots]
    order = [float(value) for value, _ in cells]
    assert sorted(order, reverse=True) == [
        order[record.hotspots.index(r)] for r in diagnose.sort_worst_first(record.hotspots)
    ]
    if record.fix is not None:
        left = sum(one.outcome == "not tried" and not one.advice for one in record.fix.optimizations)
        assert (f"{left} not tried" in text) == (f"{left} not tried" in html) == (left > 0)
        for one in record.fix.optimizations:
            assert one.place or one.advice or one.outcome != "not tried" or one.why in text
    assert "1 threads" not in page.diagnosis(dataclasses.replace(record, threads=1))


def test_shares_are_of_the_programs_own_time_and_a_column_of_dashes_is_left_out() -> None:
    record = record_of(Path(__file__).parent / "records" / "busy-minilm.json")
    own = record.wall_s - record.time_breakdown[CONTENTION]
    text = report(record, 120)
    figures = text.partition("HOTSPOTS")[2].partition("OPTIMIZATIONS")[0]
    assert "of own" in figures and "of wall" not in figures
    largest = max((r for r in record.hotspots if r.op != CONTENTION), key=lambda r: r.seconds)
    assert f"{100 * largest.seconds / own:.0f}%" in text.partition("HOTSPOTS")[2]
    plain = tuple(dataclasses.replace(r, parts={"in ops": r.seconds}) for r in record.hotspots)
    assert "bound by" not in report(dataclasses.replace(record, hotspots=plain), 120)
    assert "bound by" in text


def test_hotspots_of_layers_are_named_and_backward_is_said_once() -> None:
    record = record_of(Path(__file__).parent / "records" / "fix-step.json")
    first = max(record.hotspots, key=lambda r: r.seconds * (r.op != CONTENTION))
    named = dataclasses.replace(
        first, op="convolution_backward (backward)", module="Net.features.*", layers="Net.features.4, .8", calls=6,
        high_s=0.0, allows_s=record.wall_s,
    )  # fmt: skip
    lone = dataclasses.replace(
        named, layers="", module="a_network_of_a_long_name.features.*", allows_s=0.9 * record.wall_s
    )
    record = dataclasses.replace(record, hotspots=(named, lone))
    text = report(record, 60)
    assert " 1 convolution_backward x6  Net.features.4, .8\n" in text
    assert " 2 convolution_backward x6  ..features.*\n" in text and "(backward)" not in text
    assert "Net.<wbr>features.<wbr>4, .<wbr>8" in page.diagnosis(record) and "(backward)" not in page.diagnosis(record)


# ---------------------------------------------------------------- show


def show(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["show", *arguments])


@each_record
def test_show_prints_what_diagnose_printed(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    record = record_of(path)
    result = show(str(path))
    assert result.exit_code == 0, result.output
    expected = printed(diagnose.diagnosis(record, 80, files=Files(record=str(path))), 80)
    assert result.stdout == expected
    assert len(show(str(path), "--verbose").stdout) > len(result.stdout)
    again = tmp_path / "again.json"
    again.write_text(show(str(path), "--json").stdout, encoding="utf-8")
    assert record_of(again) == record
    assert show(str(path), "--html", "page.html").exit_code == 0
    assert "<svg" in Path("page.html").read_text(encoding="utf-8")


def test_show_with_a_patch_ends_with_what_to_do_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = next(path for path in RECORDS if (found := record_of(path).fix) is not None and found.patch)
    result = show(str(path), "--patch", "fix.diff")
    assert result.exit_code == 0 and Path("fix.diff").read_text(encoding="utf-8")
    assert result.output.splitlines()[-1].startswith("the patch: fix.diff, for `git ")
    assert "NEXT    git " in result.stdout  # not once more to write it


def changed(tmp_path: Path, change: Any) -> str:
    value = json.loads(RECORDS[0].read_text(encoding="utf-8"))
    changed = change(value)
    value = value if changed is None else changed
    path = tmp_path / "changed.json"
    path.write_text(json.dumps(value), encoding="utf-8")
    return str(path)


WRONG = {
    "of a newer version": (lambda v: v.update(schema="Diagnosis/2"), "newer kernelworks"),
    "of an unknown kind": (lambda v: v.update(schema="Trace/1"), "schema is 'Trace/1'"),
    "with no version": (lambda v: v.update(schema="Diagnosis"), "schema is 'Diagnosis'"),
    "with a schema of another type": (lambda v: v.update(schema=[1]), "schema is '[1]'"),
    "without a field": (lambda v: v.pop("wall_s") and None, "is no Diagnosis that can be read"),
    "with text for a number": (lambda v: v.update(wall_s="1"), "is no Diagnosis that can be read"),
    "of what is not finite": (lambda v: v.update(wall_s=math.inf), "not finite"),
    "a list of nothing": (lambda v: [], "an empty list"),
    "a list of numbers": (lambda v: [1, 2], "no record"),
    "a number": (lambda v: 1, "no record"),
    "an object of somebody else": (lambda v: {"a": 1}, "the fields of none"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_record_is_usage(name: str, tmp_path: Path) -> None:
    change, says = WRONG[name]
    result = show(changed(tmp_path, change))
    assert result.exit_code == 2 and result.stdout == ""
    assert says in result.stderr and len(result.stderr.strip().splitlines()) == 1


def test_what_is_no_file_is_usage(tmp_path: Path) -> None:
    deep = tmp_path / "deep.json"
    deep.write_text("[" * 100_000, encoding="utf-8")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (deep, pipe, tmp_path, tmp_path / "none", Path("/dev/zero")):
        result = show(str(path))
        assert result.exit_code == 2 and len(result.stderr.strip().splitlines()) == 1, path


def test_a_record_without_a_schema_and_one_with_more_fields_are_read(tmp_path: Path) -> None:
    def more(value: dict[str, Any]) -> None:
        value["drawn"] = {"by": "a later version"}
        value["hotspots"][0]["drawn"] = ["x = 1"]

    assert show(changed(tmp_path, lambda v: v.pop("schema", None) and None)).exit_code == 0
    assert show(changed(tmp_path, more)).exit_code == 0


def test_no_text_of_a_record_moves_the_cursor(tmp_path: Path) -> None:
    def evil(value: dict[str, Any]) -> None:
        value["program"] = "\x1b]0;title\x07\x1b[2J\x9b31m\u202ep.py"
        value["hotspots"][0]["op"] = "mm\r\x1b[1A"

    result = show(changed(tmp_path, evil), "--verbose")
    assert result.exit_code == 0
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", result.stdout)


def _mutated(value: Any, draw: random.Random) -> Any:
    """The value with one thing in it replaced or taken away."""
    at = value
    while True:
        keys: list[Any] = list(at) if isinstance(at, dict) else list(range(len(at)))
        if not keys:
            return value
        key = draw.choice(keys)
        if isinstance(at[key], (dict, list)) and at[key] and draw.random() < 0.8:
            at = at[key]
            continue
        odd = (
            None,
            -1,
            0,
            0.0,
            1e308,
            -1e-300,
            "",
            "x" * 500,
            "\u4e2d\u6587" * 40,
            [],
            {},
            [[]],
            {"": ""},
            True,
            10**400,
        )
        if draw.random() < 0.2 and isinstance(at, dict):
            del at[key]
        else:
            at[key] = copy.deepcopy(draw.choice(odd))
        return value


@pytest.mark.parametrize("seed", range(8))
def test_a_damaged_record_is_shown_or_refused(seed: int, tmp_path: Path) -> None:
    """Never a fault of ours, whatever stands where."""
    draw = random.Random(seed)
    whole = json.loads(draw.choice(RECORDS).read_text(encoding="utf-8"))
    for _ in range(25):
        value = copy.deepcopy(whole)
        for _ in range(draw.choice((1, 1, 3))):
            value = _mutated(value, draw)
        path = tmp_path / "damaged.json"
        path.write_text(json.dumps(value), encoding="utf-8")
        try:
            record = read_record(path)
        except NoRecord:
            continue
        if isinstance(record, Diagnosis):
            for width in (60, 120):
                report(record, width, verbose=draw.random() < 0.5)


def test_a_document_names_its_kind_and_version() -> None:
    record = record_of(RECORDS[0])
    assert json.loads(to_document(record))["schema"] == "Diagnosis/1"
    assert [one["schema"] for one in json.loads(to_document([record.peaks, record.peaks]))] == ["Peaks/1", "Peaks/1"]


def test_the_report_in_the_docs_is_what_is_printed() -> None:
    """docs/diagnose.md shows the report of a record that is here: after a change, print it anew."""
    root = Path(__file__).resolve().parents[2]
    page = next((root / "docs").rglob("diagnose.md")).read_text(encoding="utf-8")
    record = record_of(Path(__file__).parent / "records" / "minilm.json")
    text = printed(diagnose.diagnosis(record, 80), 80)
    blocks = re.findall(r"```text\n(.*?)\n```", page, re.S)
    assert len(blocks) == 2
    assert all(block in text for block in blocks)
