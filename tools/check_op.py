"""Checks one op in two minutes: ``make check OP=softmax``, the inner loop of an op's recipe.

Its files and pages, what is generated from it, the linters, its whole verification, and of this op all tests that are
asked of every one: mutants, bounds, interpreted Triton on a few cases, sm_90 without spills, dispatch, compile, calling
conventions. Prints each step with its seconds, and what failed with the line that repeats it.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Step", "failed_tests", "main", "missing_places", "steps_of"]

ROOT = Path(__file__).resolve().parents[1]
PYTHON = sys.executable
BIN = Path(PYTHON).parent
# A line of pytest's summary: a test's id, whose parameters may hold blanks, and what it said.
FAILURE = re.compile(r"^(?:FAILED|ERROR) (\S+?\.py(?:::[^\s\[]+(?:\[.*?\](?= - |$))?)?)", re.M)
HOUSE = ("test_tree", "test_names", "test_words")


@dataclass(frozen=True)
class Step:
    """A command of the check; if it writes what it checks, ``writes`` names the files."""

    name: str
    command: tuple[str, ...]
    writes: tuple[str, ...] = ()


def steps_of(name: str, package: Path) -> tuple[list[Step], list[Step]]:
    """What runs beside each other: the generated files, then the tests; the linters."""
    folder = str(package.relative_to(ROOT))
    pytest = (PYTHON, "-m", "pytest", "-q", "-rfE", "--no-header")
    reference = "docs/reference/ops.md"
    tests = [
        Step("schemas", (PYTHON, "tools/schemas.py"), ("src/kernelworks/ops/generated.py",)),
        Step("page of ops", (PYTHON, "-m", "kernelworks", "map", "--markdown", reference), (reference,)),
        Step("verification", (PYTHON, "-m", "kernelworks", "verify", name)),
        Step("tests of the op", (*pytest, "--op", name)),
    ]
    linters = [
        Step("ruff", (str(BIN / "ruff"), "check", ".")),
        Step("ruff format", (str(BIN / "ruff"), "format", "--check", ".")),
        Step("imports", (str(BIN / "lint-imports"), "--no-cache")),
        Step("names, sizes and words", (*pytest, *(f"tests/house/{stem}.py" for stem in HOUSE))),
        Step("mypy", (str(BIN / "mypy"), "--strict", folder)),
    ]
    return tests, linters


def missing_places(name: str, package: Path, root: Path = ROOT) -> Iterator[str]:
    """Where an op has to stand and does not. The entries of a table share its README, its types are generated."""
    entry = package.name != name.rstrip("_")
    if not (package / "README.md").is_file():
        yield f"{package.relative_to(root)}/README.md: mathematics, gradient, bound, cost, sources, choices"
    typed = root / "tests" / "house" / "typed.py"
    if not entry and not re.search(rf"\bkw\.{name}\(", typed.read_text(encoding="utf-8")):
        yield f"{typed.relative_to(root)}: a line that says what kw.{name}(...) returns"
    odd = root / "tests" / "nn" / "test_odd_arguments.py"
    sibling = re.sub(r"\d(?=d$)", "{dims}", name)  # of several numbers of dimensions
    if (
        odd.is_file()
        and _stands_in(name)
        and not any(f'"{n}"' in odd.read_text(encoding="utf-8") for n in (name, sibling))
    ):
        yield f"{odd.relative_to(root)}: a value for each argument of the torch function that {name} stands in for"


def _stands_in(name: str) -> bool:
    """Whether a swap puts the op in the place of a function of torch's, by torch's name for it."""
    from kernelworks.nn.functional import FUNCTIONS

    return name in FUNCTIONS and name != "linear_cross_entropy"  # of which torch has a draft


def failed_tests(output: str) -> list[str]:
    """The ids of the tests that failed, as pytest's summary has them."""
    return [match[1] for match in FAILURE.finditer(output)]


def _text(path: str) -> str:
    file = ROOT / path
    return file.read_text(encoding="utf-8") if file.is_file() else ""


def _run(step: Step) -> tuple[list[str], str]:
    """What is wrong, each line with what repeats or mends it, and what the command printed."""
    before = [_text(path) for path in step.writes]
    begin = time.monotonic()
    done = subprocess.run(step.command, cwd=ROOT, capture_output=True, text=True, check=False)
    seconds = time.monotonic() - begin
    said = done.stdout + done.stderr
    repeat = " ".join(Path(word).name if word == PYTHON else word for word in step.command)
    wrong = []
    if done.returncode:
        tests = failed_tests(said)
        wrong = [f"python -m pytest '{test}'" for test in tests] or [repeat]
    elif any(_text(path) != text for path, text in zip(step.writes, before, strict=True)):
        wrong = [f"{', '.join(step.writes)} was out of date and is written anew: look at it, and commit it"]
    print(f"{'failed' if wrong else 'ok':8}{seconds:6.1f} s  {step.name}", flush=True)
    return wrong, said if done.returncode else ""


def main(arguments: list[str]) -> int:
    from kernelworks.dispatch.op import OPS

    if len(arguments) != 1 or arguments[0] not in OPS:
        given = " ".join(arguments) or "nothing"
        print(f"usage: make check OP=NAME, NAME one of {', '.join(OPS)}; got {given}", file=sys.stderr)
        return 2
    (name,) = arguments
    package = OPS[name].op_package
    wrong = list(missing_places(name, package))
    texts = []
    with ThreadPoolExecutor(2) as pool:
        for found in pool.map(lambda steps: [_run(step) for step in steps], steps_of(name, package)):
            wrong += [line for lines, _ in found for line in lines]
            texts += [text for _, text in found if text]
    for text in texts:
        print(f"\n{text[-6000:].rstrip()}")
    if wrong:
        print(f"\n{name}: {len(wrong)} to mend; each line repeats or names one:")
        print("\n".join(f"    {line}" for line in wrong))
        return 1
    print(f"{name}: all of it holds. It is verified, and certified here.")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
