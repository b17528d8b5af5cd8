"""Reports, help texts and pages use the field's words: none of those that a reader of PyTorch would have to learn."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
from typer.main import get_command

from kernelworks.cli import app

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"])

# Each pattern with what to write instead. Rows of a matrix or of a table are rows; so the patterns for a kernel's old
# name ask for its neighbours.
INSTEAD = {
    r"\brows? of ours\b|\bour rows\b|\bno row of\b|\brow=|`row`": "kernel",
    r"\b(prove[sdn]?|proving|proofs?|unproved)\b": "verify, verification",
    r"\b(settle[sd]?|settling)\b": "autotune",
    r"\braced\b": "benchmarked",
    r"\bkinds? of calls?\b": "call signature",
    r"\bremed(y|ies)\b": "optimization",
    r"\bcan be had back\b|\bhad back\b": "recoverable",
    r"\bthe bound allows\b": "at the roofline",
    r"\bwaits? on (compute|memory|latency|launch|dispatch|DRAM|L[123])\b": "bound by",
    r"\bwhat (it|each|every \w+) waits on\b": "what bounds it",
    r"\bceilings?\b": "measured peak",
    r"\bfooter\b": "time breakdown",
    r"\buseful at (the )?ceiling\b": "at peak",
    r"\b(compute|memory) excess\b": "above the roofline",
    r"\bnot watched\b": "not attributed",
    r"\btaken by other processes\b": "CPU contention",
    r"\bnoisy hour\b": "measurement too noisy",
    r"\blint-problem\b": "check-problem",
    r"\bkernelworks (truth|tune)\b": "kernelworks predictions, kernelworks autotune",
    r"\bpeers?\b": "baseline",
    r"\barms?\b": "variant",
    r"\b(this|the|a|its|each|every) room\b|\brooms\b": "op package",
    r"\bspellings?\b": "torch pattern",
    r"\bmemory pyramid\b|\bpyramid\b": "memory hierarchy",
}
# Where a word has its ordinary meaning.
ALLOWED = (
    r"\barm64\b", r"\bARM\b", r"peer-to-peer", r"\bno room\b", r"\bpeer review",
)  # fmt: skip


def private_words(text: str) -> list[str]:
    """Each line of a text that uses a word of ours, with the field's word for it."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        kept = line
        for pattern in ALLOWED:
            kept = re.sub(pattern, "", kept)
        for pattern, instead in INSTEAD.items():
            match = re.search(pattern, kept)
            if match:
                found.append(f"line {number}: {match[0]!r}, write {instead!r}: {line.strip()[:100]}")
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_pages_use_the_fields_words(page: Path) -> None:
    assert private_words(page.read_text(encoding="utf-8")) == []


def _commands(command: click.Command, name: str) -> list[tuple[str, click.Command]]:
    inner = getattr(command, "commands", {})
    return [(name, command), *(pair for n, c in inner.items() for pair in _commands(c, f"{name} {n}"))]


COMMANDS = _commands(get_command(app), "kernelworks")


@pytest.mark.parametrize(("name", "command"), COMMANDS, ids=[name for name, _ in COMMANDS])
def test_help_texts_use_the_fields_words(name: str, command: click.Command) -> None:
    with click.Context(command, info_name=name) as context:
        assert private_words(command.get_help(context)) == []


def test_reports_use_the_fields_words() -> None:
    """Every string that the package's reports print stands in the source of ``report`` or of what names the parts."""
    folders = [ROOT / "src/kernelworks/report", ROOT / "src/kernelworks/cli"]
    found = []
    for file in (p for folder in folders for p in sorted(folder.rglob("*.py"))):
        for text in re.findall(
            r'"((?:[^"\\\n]|\\.)*)"', re.sub(r'""".*?"""', "", file.read_text(encoding="utf-8"), flags=re.S)
        ):
            found += [f"{file.name}: {said}" for said in private_words(text)]
    assert found == []


TERMS = (
    "achieved", "applied", "at peak", "at the roofline", "autotune", "baseline", "bound by", "bottleneck",
    "call signature", "certificate", "CPU contention", "hotspot", "judge", "kernel", "ladder", "measured peak",
    "memory hierarchy", "mutant", "not attributed", "not significant", "not tried", "op package", "op template",
    "optimization", "predicted", "problem check", "Python overhead (host)", "recoverable", "reference", "rejected",
    "roofline", "stale", "time breakdown", "torch pattern", "tuning record", "variant", "verify",
)  # fmt: skip


@pytest.mark.parametrize("term", TERMS)
def test_the_glossary_defines(term: str) -> None:
    glossary = (ROOT / "docs/glossary.md").read_text(encoding="utf-8").lower()
    assert re.search(rf"^\*\*{re.escape(term.lower())}\*\*", glossary, flags=re.M) or f"**{term.lower()}**" in glossary


@pytest.mark.parametrize("text", ["what can be had back", "row of ours", "it was raced and settled", "the footer"])
def test_a_private_word_is_found(text: str) -> None:
    assert private_words(text)
