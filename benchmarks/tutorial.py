"""Puts the reports of docs/tutorial.md on record:

    python benchmarks/tutorial.py [--out FOLDER] [--rough]

takes the program from the page and does what the page says: diagnoses it, fixes it, puts the fix's diff into the source
with ``git apply``, makes the change that the page makes by hand, and diagnoses it again. Writes
``benchmarks/results/tutorial-{before,fix,after}.json``, all three or none; then ``make docs`` writes the page. On a
quiet machine, some four minutes. A diagnosis that is ambiguous, or a fix that gains nothing, ends it, and nothing is
written.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
PAGE, RESULTS = HERE / "docs" / "tutorial.md", HERE / "benchmarks" / "results"
PROGRAM = "classify.py"
BEFORE, FIX, AFTER = ["--out", "before"], ["--fix", "--budget", "90"], ["--out", "after"]


def program(page: str) -> str:
    """The program as it stands on the page."""
    return str(re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)[0])


def changes(page: str) -> list[tuple[str, str]]:
    """The lines that the page changes by hand, each with what takes its place: its last diff."""
    diff = re.findall(r"^```diff\n(.*?)^```", page, re.M | re.S)[-1]
    return re.findall(r"^-(.*)\n\+(.*)$", diff, re.M)


def changed_by_hand(source: str, page: str) -> str:
    """The program with those changes. Raises ValueError if a line is not there once."""
    for old, new in changes(page):
        if source.count(f"{old}\n") != 1:
            raise ValueError(f"the program has {source.count(old)} lines {old!r}")
        source = source.replace(f"{old}\n", f"{new}\n")
    return source


def diagnosed(folder: Path, *options: str) -> str:
    """The record of a diagnosis of the program in a folder. Raises SystemExit if there is none."""
    command = [sys.executable, "-m", "kernelworks", "diagnose", f"{PROGRAM}:epoch", "--json", *options]
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.returncode)
    return done.stdout


def patch_of(record: str) -> str:
    """The diff of a fix. Raises SystemExit if there is none to apply."""
    fix: dict[str, Any] = json.loads(record)["fix"] or {}
    if not fix.get("patch") or fix["gain_s"] <= fix["noise_s"]:
        raise SystemExit("the fix gained nothing, or has no diff: nothing is written")
    print(f"fix: {1e3 * fix['before_s']:.4g} ms -> {1e3 * fix['after_s']:.4g} ms")
    return str(fix["patch"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the records")
    parser.add_argument("--rough", action="store_true", help="beside other processes, to see whether it works")
    given = parser.parse_args()
    rough = ["--rough"] if given.rough else []
    page = PAGE.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        path = folder / PROGRAM
        path.write_text(program(page), encoding="utf-8")
        records = {"before": diagnosed(folder, *BEFORE, *rough), "fix": diagnosed(folder, *FIX, *rough)}
        (folder / "fix.diff").write_text(patch_of(records["fix"]), encoding="utf-8")
        subprocess.run(["git", "apply", "fix.diff"], cwd=folder, check=True)
        path.write_text(changed_by_hand(path.read_text(encoding="utf-8"), page), encoding="utf-8")
        records["after"] = diagnosed(folder, *AFTER, *rough)
    for name, text in records.items():
        (given.out / f"tutorial-{name}.json").write_text(text, encoding="utf-8")
        print(f"tutorial-{name}.json: written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
