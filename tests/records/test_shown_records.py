"""What a verb returns shows itself in a notebook and is kept whole, as JSON or as a page."""

from __future__ import annotations

import dataclasses
import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch

import kernelworks as kw
from kernelworks.records import (
    AutotunedCall,
    AutotuneResult,
    ConfigTuning,
    Explanation,
    SwapRecord,
    from_json,
    to_document,
)
from kernelworks.records.base import Record, Records
from kernelworks.records.climb import Climb
from kernelworks.records.json_text import format_lines
from kernelworks.records.schema import read_record
from kernelworks.report import html

LADDERS = Path(__file__).resolve().parents[2] / "ladders"
NASTY = '<script>alert("&")</script>'
NAMES = (
    "peaks", "diagnosis", "fix", "verification", "verifications", "bench", "benches", "map", "explanation", "settled",
    "swapped",
    "climb",
)  # fmt: skip


@pytest.fixture
def handed(ceilings: Any, diagnosis: Any, proofs: Any, benches: Any, map_ops: Any) -> dict[str, Any]:
    nasty = dataclasses.replace(diagnosis, program=NASTY)
    explanation = Explanation(
        "rms_norm", "x float32[4, 1024]", "avx512", "1.8x torch", (("triton", NASTY),), 2, 1e4, 3e4, 0.5, 0.9, "memory"
    )
    call = AutotunedCall("gelu", "forward", "x float32[4, 8]", "avx512", "torch", NASTY, 3.0, 4.0, 0.7, 0.02, 9, 0.3)
    return {
        "peaks": ceilings,
        "diagnosis": nasty,
        "fix": dataclasses.replace(diagnosis.fix, notes=(NASTY,)),
        "verification": proofs[0],
        "verifications": Records(proofs),
        "bench": benches[0],
        "benches": Records(dataclasses.replace(b, case=NASTY) for b in benches),
        "map": Records(map_ops),
        "explanation": explanation,
        "settled": AutotuneResult(("kind",), 2, (call,), 0.4, notes=(NASTY,)),
        "swapped": SwapRecord(("replaced 1 of 2:", f"  {NASTY}"), ({"path": "0"},), ()),
        "climb": from_json(Climb, (LADDERS / "cpu-sgemm" / "results.json").read_text(encoding="utf-8")),
    }


VOID = {"br", "input", "meta", "link", "wbr", "path", "use", "circle", "rect", "line", "polyline"}


class Balance(HTMLParser):
    """The elements of a page, each closed where it was opened, and the text in them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.text = ""
        self.style = ""
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("style", "script"):
            self.style += data
        else:
            self.text += data


def levels(css: str) -> list[str]:
    """The selectors of the outermost rules."""
    depth, found, at = 0, [], 0
    for i, sign in enumerate(css):
        if sign == "{":
            if depth == 0:
                found.append(css[at:i].strip())
            depth += 1
        elif sign == "}":
            depth -= 1
            at = i + 1
            assert depth >= 0
    assert depth == 0
    return found


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_shows_it_without_touching_the_rest(name: str, handed: dict[str, Any]) -> None:
    record = handed[name]
    text = record._repr_html_()
    page = Balance(text)
    assert "script" not in page.tags and "body" not in page.tags
    assert "alert(" not in text or NASTY in page.text  # as words
    assert {selector.split()[0] for selector in levels(page.style)} == {".kernelworks"} and ":root" not in page.style
    assert text.count('<div class="kernelworks">') == 1


@pytest.mark.parametrize("name", NAMES)
def test_it_is_kept(name: str, handed: dict[str, Any], tmp_path: Path) -> None:
    record = handed[name]
    page = record.save(tmp_path / "deep" / "it.html")
    written = Balance(page.read_text(encoding="utf-8"))
    assert page == tmp_path / "deep" / "it.html" and written.tags[0] == "html"
    assert "http" not in page.read_text(encoding="utf-8").replace("http-equiv", "").replace("http://www.w3.org", "")
    kept = json.loads(record.save(str(tmp_path / "it.json")).read_text(encoding="utf-8"))
    assert kept == json.loads(to_document(record))
    assert all(one["schema"].endswith("/1") for one in (kept if isinstance(kept, list) else [kept]))
    assert read_record(tmp_path / "it.json") == (list(record) if isinstance(kept, list) else record)
    if isinstance(record, Record):
        assert from_json(type(record), json.dumps(kept)) == record
    with pytest.raises(ValueError, match=r"path must end in .json or .html, got .*it\.csv"):
        record.save(tmp_path / "it.csv")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["deep", "it.json"]


def test_a_file_is_replaced_whole_or_not_at_all(
    handed: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = handed["verifications"].save(tmp_path / "it.html")
    before = path.read_bytes()
    monkeypatch.setitem(html.RENDERERS, type(handed["verification"]), lambda some: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        handed["verifications"].save(path)
    assert path.read_bytes() == before and len(list(tmp_path.iterdir())) == 1


def test_text_stays_as_it_was(handed: dict[str, Any]) -> None:
    assert repr(handed["verifications"]) == repr(list(handed["verifications"]))
    assert repr(handed["verification"]).startswith("Verification(op='softmax', kernel='avx512'")
    assert str(Records([1, 2])) == "[1, 2]"


def test_every_record_that_is_handed_out_has_a_face() -> None:
    for kind in Record.__subclasses__():
        assert kind in html.RENDERERS or kind.record is not Record.record, kind  # else it hands a record on
    assert ConfigTuning in html.RENDERERS


def test_a_swap(tmp_path: Path) -> None:
    swapped = kw.swap(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh()), verbose=False)
    try:
        kept = json.loads(swapped.save(tmp_path / "swap.json").read_text(encoding="utf-8"))
        assert kept["lines"] == swapped.lines()
        assert len(kept["replaced"]) + len(kept["left"]) == 2
        assert swapped.lines()[0] in Balance(swapped._repr_html_()).text
    finally:
        swapped.undo()


def test_the_words_are_the_terminals(handed: dict[str, Any]) -> None:
    text = " ".join(Balance(handed["verifications"]._repr_html_()).text.split())
    for words in ("softmax.avx512", "REFUSED", "6 of 6", "again: kernelworks verify softmax.avx2 --case 'length 17'"):
        assert words in text


@pytest.mark.parametrize(
    ("value", "lines"),
    [
        ({"a": 1, "b": [1, 2]}, 4),
        ({"format": 1, "tuning_records": [{"op": "a", "halves": [1, 2]}, {"op": "b", "whole": {"us": 1.5}}]}, 7),
        ([{"op": "a"}, {"op": "b"}, {"op": "c"}], 5),
        ({}, 2),
        ([], 1),
        ([1.5, None, "\n"], 1),
    ],
)
def test_a_file_has_a_line_for_each_field_and_each_record(value: object, lines: int) -> None:
    text = format_lines(value)
    assert json.loads(text) == value and len(text.split("\n")) == lines
