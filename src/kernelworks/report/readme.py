"""The generated parts of README.md and docs/results.md: ``python -m kernelworks.report.readme [--check] [FOLDER]``.

What stands between ``<!-- generated: NAME -->`` and ``<!-- end generated -->`` is written anew from
``benchmarks/results/``. ``--check`` writes nothing and exits with 1 where a page is out of date.

| part | from | shows |
|---|---|---|
| ``diagnose`` | ``diagnose-minilm.json``, a Diagnosis | the sentence, the worst regions, the bar, the fix |
| ``models`` | ``models.json`` | models before and after a swap |
| ``ops`` | ``ops-2-threads.json`` | one line an op: the median speedup over its cases |
| ``cases`` | ``ops-*-threads.json`` | every case |

A part whose file is not there is left empty: no figure stands in the page that no file holds.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from kernelworks.records import BenchResult, Diagnosis, from_json
from kernelworks.report import bench, diagnose, quantity

__all__ = ["PAGES", "generate", "main", "outdated"]

PAGES = ("README.md", "docs/results.md")
RESULTS = Path("benchmarks") / "results"
PART = re.compile(r"(<!-- generated: (?P<name>\w+) -->\n).*?(<!-- end generated -->)", re.S)
WIDTH = 100
SHOWN_REGIONS = 5


def _read(root: Path, name: str) -> dict[str, Any] | None:
    path = root / RESULTS / name
    if not path.is_file():
        return None
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if "results" in found:  # a document of `kernelworks bench`
        results = [from_json(BenchResult, json.dumps(item)) for item in found["results"]]
        found |= {"rows": [_row(r) for r in results], "threads": results[0].threads if results else 0}
    return found


def _row(result: BenchResult) -> dict[str, Any]:
    """A bench result as the line of a table."""
    us = {("ours" if arm.name == bench.OURS else arm.name): arm.median_us for arm in result.arms}
    over = {name: us[name] / us["ours"] for name in us if name != "ours" and us.get("ours")}
    return {
        "case": f"{result.op} {result.dtype} {result.case}",
        "us": us,
        "over_eager": over.get("eager", 0.0),
        "over_inductor": over.get("inductor"),
        "wrong": bool(result.gate) or "eager" not in over,
    }


def _provenance(found: dict[str, Any], name: str) -> str:
    versions = ", ".join(f"{package} {version}" for package, version in found["versions"].items())
    link = f"[{name}]({{up}}{RESULTS.as_posix()}/{name})"
    pieces = (
        found["machine"]["name"],
        f"{found['threads']} threads",
        versions,
        found["date"][:10],
        f"commit {found['commit']}",
    )
    return f"<sub>{', '.join(p for p in pieces if p)}; {link}</sub>"


# ---------------------------------------------------------------- the parts


def _diagnose(root: Path) -> str:
    path = root / RESULTS / "diagnose-minilm.json"
    if not path.is_file():
        return ""
    record = from_json(Diagnosis, path.read_text(encoding="utf-8"))
    console = Console(width=WIDTH, force_terminal=False, no_color=True, highlight=False)
    with console.capture() as captured:
        console.print(diagnose.summary(record, WIDTH, SHOWN_REGIONS))
    lines = [line.rstrip() for line in captured.get().strip("\n").splitlines()]
    return "\n".join(["```text", *lines, "```", ""])


def _models(root: Path) -> str:
    found = _read(root, "models.json")
    if found is None:
        return ""
    lines = [
        "| model | torch eager | after `kw.swap` | speedup over eager | undo |",
        "|---|---:|---:|---:|---|",
    ]
    for row in found["rows"]:
        eager, ours = (quantity.seconds(row[key] / 1e3) for key in ("eager_ms", "swapped_ms"))
        undo = {True: "bit-identical", False: "DIFFERS"}.get(row.get("undo_exact"), "")
        lines.append(f"| {row['case']} | {eager} | {ours} | **{quantity.ratio(row['speedup'])}** | {undo} |")
    return "\n".join([*lines, "", _provenance(found, "models.json"), ""])


def _ops(root: Path) -> str:
    name = "ops-2-threads.json"
    found = _read(root, name)
    if found is None:
        return ""
    lines = [
        "| op | cases | over torch eager, median (least to most) | over torch.compile, median |",
        "|---|---:|---:|---:|",
    ]
    for op in dict.fromkeys(row["case"].split()[0] for row in found["rows"]):
        rows = [r for r in found["rows"] if r["case"].split()[0] == op and not r["wrong"]]
        if not rows:
            continue
        eager = [r["over_eager"] for r in rows]
        compiled = [r["over_inductor"] for r in rows if r.get("over_inductor")]
        median, least, most = (quantity.ratio(f(eager)) for f in (statistics.median, min, max))
        beside = quantity.ratio(statistics.median(compiled)) if compiled else ""
        lines.append(f"| `{op}` | {len(rows)} | **{median}** ({least} to {most}) | {beside} |")
    return "\n".join([*lines, "", _provenance(found, name), ""])


def _cases(root: Path) -> str:
    parts = []
    for path in sorted((root / RESULTS).glob("ops-*-threads.json"), reverse=True):
        found = _read(root, path.name)
        if found is None:
            continue
        title = f"## {found['threads']} thread{'s' if found['threads'] > 1 else ''}"
        lines = [
            title, "",
            "| case | torch eager, us | torch.compile, us | kernelworks, us | over eager | over torch.compile |",
            "|---|---:|---:|---:|---:|---:|",
        ]  # fmt: skip
        for row in found["rows"]:
            times = (
                quantity.figures(row["us"][arm]) if arm in row["us"] else "" for arm in ("eager", "inductor", "ours")
            )
            over = quantity.ratio(row["over_inductor"]) if row.get("over_inductor") else ""
            eager = "WRONG" if row["wrong"] else quantity.ratio(row["over_eager"])
            lines.append(f"| {row['case']} | {' | '.join(times)} | {eager} | {over} |")
        parts.append("\n".join([*lines, "", _provenance(found, path.name), ""]))
    return "\n".join(parts)


PARTS: dict[str, Callable[[Path], str]] = {"diagnose": _diagnose, "models": _models, "ops": _ops, "cases": _cases}


# ---------------------------------------------------------------- the pages


def generate(root: Path, page: str) -> str:
    """The text of one page with its generated parts as the results have them now. KeyError for an unknown part."""
    up = "../" * page.count("/")

    def part(match: re.Match[str]) -> str:
        return match[1] + PARTS[match["name"]](root).replace("{up}", up) + match[3]

    return PART.sub(part, (root / page).read_text(encoding="utf-8"))


def outdated(root: Path) -> list[str]:
    """The pages that ``main`` would change."""
    return [page for page in PAGES if generate(root, page) != (root / page).read_text(encoding="utf-8")]


def main(arguments: list[str]) -> int:
    check = "--check" in arguments
    root = Path(next((a for a in arguments if not a.startswith("-")), "."))
    stale = outdated(root)
    for page in stale:
        if not check:
            (root / page).write_text(generate(root, page), encoding="utf-8")
        print(f"{page}: {'out of date' if check else 'written'}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
