"""Which of KernelBench's calls have an op here: docs/reference/kernelbench.md, which ``reference_pages.py`` writes.

The problems and the calls of each are data (``benchmarks/kernelbench_calls.toml``). Which op computes a call is found:
the op of its name, the op that stands in for torch's function of that name, or what the data says computes the same.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kernelworks import ops
from kernelworks.dispatch.op import OPS
from kernelworks.dispatch.signature import torch_signatures

__all__ = ["Coverage", "page"]

DATA = "benchmarks/kernelbench_calls.toml"
FUNCTIONS = {"fuse": "fuse.md"}  # that are no ops, and their pages
HEAD = """# KernelBench's problems by their calls

Which of torch's functions the problems of [KernelBench](https://github.com/ScalingIntelligence/KernelBench) call, and
which of these calls have an op here. This page is made of `benchmarks/kernelbench_calls.toml` by
`python tools/reference_pages.py`. The calls of levels 2 and 3 are those that a run of the problems' texts makes, each
once, without views; a problem of level 1 stands with the operator that it is about. An op says nothing of speed: where
it does not beat torch, torch's own function runs ([tuning records](../explanation/tuning-records.md)). What the judge
makes of the problems is [another page](check-problem-kernelbench.md).
"""


class Coverage:
    """What computes each call: the name of an op or of a function of ours, "" of none."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data
        self.same = {call: entry["by"] for entry in data["same"] for call in entry["calls"]}
        self.moves = frozenset(data["moves"]["calls"])
        unknown = sorted({by for by in self.same.values() if by not in OPS and by not in FUNCTIONS})
        if unknown:
            raise ValueError(f"{DATA} names {', '.join(unknown)}, which no op here is called")

    def by(self, call: str) -> str:
        """What computes a call here."""
        if call in OPS:
            return call
        found = torch_signatures().get(call)
        return self.same.get(call, "") if found is None else str(found.op.name)

    def missing(self, calls: Iterable[str]) -> list[str]:
        """The calls that compute something and have no op."""
        return [call for call in calls if call not in self.moves and not self.by(call)]


def _family(name: str) -> str:
    return next((family for family, names in ops.FAMILIES.items() if name in names), name)


def _linked(coverage: Coverage, call: str) -> str:
    by = coverage.by(call)
    if by in FUNCTIONS:
        return f"[`{call}`]({FUNCTIONS[by]})"
    return f"[`{call}`](ops.md#{_family(by)})" if by else f"`{call}`"


def page(root: Path) -> str:
    """The text of docs/reference/kernelbench.md."""
    coverage = Coverage(tomllib.loads((root / DATA).read_text(encoding="utf-8")))
    lines = [HEAD, "| level | problems | every call has one | distinct calls | an op of that name | another | none |",
             "|---|--:|--:|--:|--:|--:|--:|"]  # fmt: skip
    tables: list[str] = []
    for level in coverage.data["level"]:
        problems = {name: calls.split() for name, calls in level["problems"].items()}
        whole = sum(not coverage.missing(calls) for calls in problems.values())
        distinct = {call for calls in problems.values() for call in calls} - coverage.moves
        none, another = len(coverage.missing(distinct)), len(distinct & coverage.same.keys())
        counts = (len(problems), whole, len(distinct), len(distinct) - none - another, another, none)
        lines.append(f"| {level['number']}: {level['title']} | {' | '.join(map(str, counts))} |")
        tables += _table(coverage, f"Level {level['number']}: {level['title']}", problems)
    moves = ", ".join(f"`{call}`" for call in sorted(coverage.moves))
    lines += ["", f"{moves} move elements and compute nothing: they are torch's, and count for nothing here.", "",
              "What computes calls that no op has the name of:", "", "| call | by | how |",
              "|---|---|---|"]  # fmt: skip
    for entry in coverage.data["same"]:
        lines.append(f"| {', '.join(f'`{call}`' for call in entry['calls'])} | `{entry['by']}` | {entry['how']} |")
    return "\n".join([*lines, *tables, ""])


def _table(coverage: Coverage, title: str, problems: dict[str, list[str]]) -> list[str]:
    made = [f"\n## {title}\n", "| problem | families | calls | without |", "|---|---|---|---|"]
    for name, calls in problems.items():
        families = dict.fromkeys(_family(by) for by in map(coverage.by, calls) if by)
        linked = ", ".join(_linked(coverage, call) for call in calls)
        without = ", ".join(f"`{call}`" for call in coverage.missing(calls))
        made.append(f"| {name} | {', '.join(families)} | {linked} | {without} |")
    return made
