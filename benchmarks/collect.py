"""Puts figures on record: adds machine, date, commit and versions, and writes ``benchmarks/results/NAME.json``.

    python benchmarks/collect.py ops-2-threads FIGURES.json      {"threads": 2, "rows": [{"case": ..., "us": {...}}]}
    python benchmarks/collect.py models FIGURES.json --threads 2 [{"case": ..., "eager_ms": ..., "swapped_ms": ...}]
    python benchmarks/collect.py diagnose-minilm out/minilm.json a diagnosis carries its own machine, date, versions
    python benchmarks/collect.py NAME --threads 2 -- python SCRIPT.py ARGUMENTS

The last runs a script that writes its figures to the file behind its own ``--json``, a list of rows or a dictionary
that has them, and keeps with them how it was called, the last line that it printed, its exit code and how busy others
kept the cores meanwhile. With ``--device cuda`` the machine is the GPU.

Then ``make docs`` writes README.md and docs/reference/results.md anew from what is on record.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from kernelworks.build.cpp import toolchain
from kernelworks.measure.bench.results import commit, head
from kernelworks.measure.clock import noise
from kernelworks.records.json_text import format_lines

RESULTS = Path(__file__).resolve().parent / "results"


def record(figures: Any, threads: int | None, device: str = "cpu", **more: Any) -> dict[str, Any]:
    """The figures under a head that says where they come from. A diagnosis has one, but for the commit."""
    if isinstance(figures, dict) and "time_breakdown" in figures:
        figures["versions"]["commit"] = commit()
        return figures
    said = figures if isinstance(figures, dict) else {"rows": figures}
    known = threads or said.get("threads")
    if not known:
        raise SystemExit("the figures do not say how many threads they were measured with: give --threads")
    here = head(device, ("transformers", "triton"))  # whose versions figures depend on too
    here["versions"]["compiler"] = toolchain()
    return {
        **here,
        "threads": known,
        **more,
        **{name: value for name, value in said.items() if name not in ("rows", "threads", "torch")},
        "rows": said["rows"],
    }


def measured(command: list[str]) -> tuple[Any, dict[str, Any]]:
    """Runs a script to its end, which is shown; its figures, and what is to be known of the run. A script may end with
    another exit code than 0 if a figure is short of a bar: that is on record too."""
    before, last = _times(), ""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "figures.json"
        with subprocess.Popen([*command, "--json", str(path)], stdout=subprocess.PIPE, text=True) as run:
            assert run.stdout is not None
            for line in run.stdout:
                print(line, end="", flush=True)
                last = line.strip() or last
        if not path.is_file():
            raise SystemExit(f"{command[0]} ended with {run.returncode} and wrote no figures")
        figures = json.loads(path.read_text(encoding="utf-8"))
    after = _times()
    words = [Path(word).name if "/" in word else word for word in command]  # folders are this machine's
    return figures, {
        "command": " ".join(words), "exit_code": run.returncode, "said": last,
        "others_share_of_the_cores": round(noise.foreign_share(before, after), 3),
        "seconds": round(after.wall_s - before.wall_s, 1),
    }  # fmt: skip


def _times() -> noise.CpuTimes:
    """With the processes of our own that have ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    now = noise.cpu_times()
    return now._replace(own_s=now.own_s + ended.ru_utime + ended.ru_stime)


def main() -> None:
    split = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    command = sys.argv[split + 1 :]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="of the file below benchmarks/results, without .json")
    parser.add_argument("figures", type=Path, nargs="?", help="the JSON file that was measured")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    asked = parser.parse_args(sys.argv[1:split])
    if (asked.figures is None) == (not command):
        parser.error("give a file of figures, or behind -- the command that measures them")
    if command:
        figures, more = measured(command)
    else:
        figures, more = json.loads(asked.figures.read_text(encoding="utf-8")), {}
    kept = record(figures, asked.threads, asked.device, **more)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{asked.name}.json").write_text(format_lines(kept) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
