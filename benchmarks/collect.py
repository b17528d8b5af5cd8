"""Puts figures on record: adds machine, date, commit and versions, and writes ``benchmarks/results/NAME.json``.

    python benchmarks/collect.py ops-2-threads FIGURES.json      {"threads": 2, "rows": [{"case": ..., "us": {...}}]}
    python benchmarks/collect.py models FIGURES.json --threads 2 [{"case": ..., "eager_ms": ..., "swapped_ms": ...}]
    python benchmarks/collect.py diagnose-minilm out/minilm.json a diagnosis carries its own machine, date, versions

Then ``make docs`` writes README.md and docs/results.md anew from what is on record.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
from pathlib import Path
from typing import Any

import torch

from kernelworks.bench.results import commit
from kernelworks.layout import in_lines
from kernelworks.machine import machine

RESULTS = Path(__file__).resolve().parent / "results"


def record(figures: Any, threads: int | None) -> dict[str, Any]:
    """The figures under a head that says where they come from. A diagnosis has one, but for the commit."""
    if isinstance(figures, dict) and "footer" in figures:
        figures["versions"]["commit"] = commit()
        return figures
    rows = figures if isinstance(figures, list) else figures["rows"]
    known = threads or (figures.get("threads") if isinstance(figures, dict) else None)
    if not known:
        raise SystemExit("the figures do not say how many threads they were measured with: give --threads")
    return {
        "machine": {"kind": machine().kind, "name": machine().name, "cores": machine().cores},
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "versions": {"python": platform.python_version(), "torch": str(torch.__version__)},
        "threads": known,
        "rows": rows,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="of the file below benchmarks/results, without .json")
    parser.add_argument("figures", type=Path, help="the JSON file that was measured")
    parser.add_argument("--threads", type=int)
    given = parser.parse_args()
    kept = record(json.loads(given.figures.read_text(encoding="utf-8")), given.threads)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{given.name}.json").write_text(in_lines(kept) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
