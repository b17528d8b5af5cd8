"""Puts the reports of docs/tutorial.md on record:

    python benchmarks/tutorial.py [--only before,fix,after]

takes the program from the page, diagnoses it as the page says, and writes ``benchmarks/results/tutorial-*.json``; then
``make docs`` writes the page. On a quiet machine; some four minutes. A diagnosis that is ambiguous writes nothing.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
PAGE, RESULTS = HERE / "docs" / "tutorial.md", HERE / "benchmarks" / "results"
OPTIONS = {"before": [], "fix": ["--fix", "--budget", "90"], "after": []}


def programs(page: str) -> dict[str, str]:
    """The program of the page as it stands there, and with the change that its fifth step makes."""
    source = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)[0]
    change = re.search(r"^    (attended = .*scaled_dot_product_attention.*)$", page, re.M)
    by_hand = re.search(r"^( +)scores = .*\n.*\n", source, re.M)
    if change is None or by_hand is None:
        raise ValueError("the page has no attention by hand, or no change of it")
    return {"before": source, "fix": source, "after": source.replace(by_hand[0], f"{by_hand[1]}{change[1]}\n")}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(OPTIONS), help="which of before, fix, after")
    names = parser.parse_args().only.split(",")
    sources = programs(PAGE.read_text(encoding="utf-8"))
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "encode.py").write_text(sources[name], encoding="utf-8")
            command = [sys.executable, "-m", "kernelworks", "diagnose", "encode.py:encode", "--json", *OPTIONS[name]]
            done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            return done.returncode
        (RESULTS / f"tutorial-{name}.json").write_text(done.stdout, encoding="utf-8")
        print(f"tutorial-{name}.json: written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
