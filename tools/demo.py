"""The demo: measures this machine, diagnoses two programs and fixes them. ``make demo`` sets up and runs it.

Each step says what it does, how long it takes and where the result is kept. The last lines are what was predicted and
got, the pages, and what to type next. A machine that others use too gets rough figures, which are marked.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelworks.machine import environment
from kernelworks.measure.peaks import cached_peaks

__all__ = ["Program", "main", "next_commands", "result_line"]

OUT = Path("out")
FAILED, AMBIGUOUS = 1, 3  # exit codes: no fix is to be kept; the machine was too busy
COMMAND = ".venv/bin/kernelworks"


@dataclass(frozen=True)
class Program:
    """One program of the demo. ``budget_s`` is for the optimizations that ``--fix`` tries."""

    name: str
    entry: str
    says: str
    budget_s: int

    @property
    def file(self) -> str:
        """What its record and page are called."""
        return self.entry.replace(".py:", "-")


# One that a compiler fuses on any CPU, and one that gains by another setting of what torch already has.
PROGRAMS = (
    Program("augment", "augment.py:augment", "16 pictures augmented in float32: many passes over memory", 40),
    Program("train_ranker", "train_ranker.py:step", "a training step of a ranking model, with AdamW", 40),
)


class Demo:
    """The steps, with what they take. ``rough`` once the machine was too busy for exact figures."""

    def __init__(self, budget_s: int | None) -> None:
        self.budget_s, self.rough = budget_s, False
        self.steps, self.step = 1 + len(PROGRAMS), 0

    def say(self, text: str) -> None:
        self.step += 1
        print(f"\n[{self.step}/{self.steps}] {text}", flush=True)

    def run(self, *arguments: str) -> int:
        """The exit code of ``kernelworks ARGUMENTS``, which prints for itself. A busy machine gets rough figures."""
        command = [sys.executable, "-m", "kernelworks", *arguments]
        begin = time.monotonic()
        code = subprocess.run([*command, *(["--rough"] if self.rough else [])], check=False).returncode
        if code == AMBIGUOUS and not self.rough:
            print("Other programs use the cores: from here on figures are rough, and marked.", flush=True)
            self.rough = True
            code = subprocess.run([*command, "--rough"], check=False).returncode
        print(f"({time.monotonic() - begin:.0f} s)", flush=True)
        return code

    def measure(self) -> None:
        kept = environment.cache_dir("peaks")
        if cached_peaks() is not None:
            self.say(f"The peak rates of this machine are known from an earlier run ({kept}).")
        else:
            self.say(
                "First run here: measuring the peak rates of this machine (memory, arithmetic, calls), about 30 s,\n"
                f"      kept in {kept}"
            )
        if self.run("machine", "--html", str(OUT / "machine.html")):
            raise SystemExit(1)

    def diagnose(self, program: Program) -> dict[str, Any]:
        budget = self.budget_s or program.budget_s
        self.say(
            f"examples/{program.entry}: {program.says}.\n"
            f"      Diagnosis, about 15 s; then optimizations are tried for about {budget} s: predicted, verified, "
            f"measured.\n      Kernels that are built and verified on the way are kept in "
            f"{environment.cache_dir('build').parent}"
        )
        code = self.run(
            "diagnose", f"examples/{program.entry}", "--fix", "--budget", str(budget), "--out", str(OUT),
            "--patch", str(OUT / f"{program.file}.patch"),
        )  # fmt: skip
        if code not in (0, FAILED, AMBIGUOUS):
            raise SystemExit(code)
        record: dict[str, Any] = json.loads((OUT / f"{program.file}.json").read_text(encoding="utf-8"))
        return record


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"


def is_faster(record: dict[str, Any]) -> bool:
    """Whether a fix was applied and its gain is more than the noise."""
    fix = record.get("fix") or {}
    return bool(fix.get("rounds")) and not fix["refused"] and fix["gain_s"] > fix["noise_s"]


def result_line(program: Program, record: dict[str, Any]) -> str:
    """What the fix of one program came to: before, after, predicted beside got, and the page."""
    fix, page = record.get("fix") or {}, f"page: {OUT / program.file}.html"
    if not is_faster(record):
        return f"  {program.name:<14} no optimization was faster within its budget   {page}"
    predicted = None if fix["unknown_prediction"] else fix["predicted_gain_s"]
    said = "unknown on this machine" if predicted is None else _ms(predicted)
    rough = ", rough" if fix["rough"] else ""
    return (
        f"  {program.name:<14} {_ms(fix['before_s'])} -> {_ms(fix['after_s'])}, "
        f"{fix['before_s'] / fix['after_s']:.2f}x{rough}   gain predicted {said}, got {_ms(fix['gain_s'])}   {page}"
    )


def next_commands(results: list[tuple[Program, dict[str, Any]]], factor: int = 4) -> list[tuple[str, str]]:
    """The three commands that go on from here, and what each does. If a program got no faster, its longer search is
    first."""
    found = [
        (
            f"{COMMAND} diagnose examples/{program.entry} --fix --budget {factor * program.budget_s}",
            f"searches longer, about {factor * program.budget_s // 60 + 1} min",
        )
        for program, record in results
        if not is_faster(record)
    ]
    found += [
        (f"git apply {OUT / program.file}.patch", "puts what was found into the program's source")
        for program, record in results
        if is_faster(record) and record["fix"].get("patch")
    ][:1]
    found.append((f"{COMMAND} diagnose YOUR_PROGRAM.py --fix", "the same for a program of yours"))
    found.append((f"{COMMAND} predictions", "each gain that was predicted, beside the one that was got"))
    return found[:3]


def main(arguments: list[str] | None = None) -> None:
    """Runs the demo in the checkout that it lies in."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", type=int, help="seconds for the optimizations of each program")
    given = parser.parse_args(arguments)
    begin = time.monotonic()
    demo = Demo(given.budget)
    OUT.mkdir(exist_ok=True)
    demo.measure()
    results = [(program, demo.diagnose(program)) for program in PROGRAMS]
    print(f"\nDone in {time.monotonic() - begin:.0f} s.\n")
    for program, record in results:
        print(result_line(program, record))
    print(f"  {'this machine':<14} page: {OUT / 'machine.html'}\n\nNext:")
    for number, (command, says) in enumerate(next_commands(results), 1):
        print(f"  {number}. {command}\n     {says}")


if __name__ == "__main__":
    main()
