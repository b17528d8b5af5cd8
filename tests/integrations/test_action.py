"""The GitHub Action: its one step, run as a runner runs it."""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
RECORD = {
    "program": "p.py:f", "wall_s": 1.0,
    "hotspots": [{"op": "gelu", "module": "m", "source": "a.py:1", "seconds": 0.3}],
    "time_breakdown": {"at peak": 0.9, "unexplained": 0.1}, "peaks": {"name": "M", "kind": "k"}, "threads": 2,
    "date": "2026-01-01", "versions": {"torch": "2"}, "fix": None, "ambiguous": "", "rough": False,
}  # fmt: skip


def parse_action() -> dict[str, Any]:
    """The file's mappings, scalars and one block of text: a runner's YAML needs no more here."""
    return _block((ROOT / "action.yml").read_text(encoding="utf-8").splitlines(), 0)[0]


def _block(lines: list[str], indent: int) -> tuple[dict[str, Any], list[str]]:
    found: dict[str, Any] = {}
    while lines:
        line = lines[0]
        depth = len(line) - len(line.lstrip().removeprefix("- "))
        if line.strip() and depth < indent:
            break
        lines = lines[1:]
        if not line.strip():
            continue
        name, _, value = line.strip().removeprefix("- ").partition(":")
        if value.strip() == "|":
            taken = _until(lines, indent)
            lines = lines[len(taken) :]
            found[name] = "\n".join(one[indent + 2 :] for one in taken) + "\n"
        elif value.strip():
            found[name] = value.strip().strip("\"'")
        else:
            found[name], lines = _block(lines, indent + (4 if name == "steps" else 2))
    return found, lines


def _until(lines: list[str], indent: int) -> list[str]:
    taken = []
    for line in lines:
        if line.strip() and len(line) - len(line.lstrip()) <= indent:
            break
        taken.append(line)
    return taken


class Job:
    """One run of the step in a folder of its own."""

    def __init__(self, folder: Path, **inputs: str) -> None:
        action = parse_action()
        step = action["runs"]["steps"]
        given = {name: inputs.get(name, spec.get("default", "")) for name, spec in action["inputs"].items()}
        assert set(inputs) <= set(given)
        environment = dict(os.environ) | {
            name: re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda m: given[m[1]], value)
            for name, value in step["env"].items()
        }
        self.output, self.summary, script = folder / "output", folder / "summary", folder / "step.sh"
        script.write_text(step["run"], encoding="utf-8")
        self.output.write_text("")
        self.summary.write_text("")
        environment |= {"GITHUB_OUTPUT": str(self.output), "GITHUB_STEP_SUMMARY": str(self.summary)}
        self.done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", str(script)], cwd=folder, env=environment,
            capture_output=True, text=True, check=False,
        )  # fmt: skip

    @property
    def outputs(self) -> dict[str, str]:
        return dict(line.split("=", 1) for line in self.output.read_text().splitlines())


@pytest.fixture
def records(tmp_path: Path) -> dict[str, str]:
    found = {}
    for name, change in (
        ("main", {}), ("same", {}), ("slower", {"wall_s": 1.2}), ("elsewhere", {"peaks": {"name": "N", "kind": "o"}}),
        ("nasty", {"wall_s": 1.2, "program": "`|<script>\n::error::x"}),
    ):  # fmt: skip
        path = tmp_path / f"{name} record.json"  # with a space
        path.write_text(json.dumps({**copy.deepcopy(RECORD), **change}))
        found[name] = path.name
    (tmp_path / "broken.json").write_text("{")
    return {**found, "broken": "broken.json", "absent": "absent.json", "dash": "--help"}


@pytest.mark.parametrize(
    ("candidate", "options", "code", "verdict"),
    [
        ("same", {}, 0, "same"),
        ("slower", {}, 1, "slower"),
        ("slower", {"fail-if-slower": "30%"}, 0, "same"),
        ("slower", {"fail-if-slower": ""}, 0, "same"),
        ("elsewhere", {}, 0, "ambiguous"),
        ("elsewhere", {"on-ambiguous": "fail"}, 3, "ambiguous"),
        ("same", {"on-ambiguous": "shrug"}, 2, "error"),
        ("same", {"fail-if-slower": "much"}, 2, "error"),
        ("broken", {}, 2, "error"),
        ("absent", {}, 2, "error"),
        ("dash", {}, 2, "error"),
        ("nasty", {}, 1, "slower"),
    ],
)
def test_the_step(
    candidate: str, options: dict[str, str], code: int, verdict: str, records: dict[str, str], tmp_path: Path
) -> None:
    job = Job(tmp_path, baseline=records["main"], candidate=records[candidate], python=sys.executable, **options)
    assert job.done.returncode == code, job.done.stdout + job.done.stderr
    assert job.outputs["verdict"] == verdict
    summary = job.summary.read_text()
    assert summary.startswith("### kernelworks compare: ") is (verdict != "error")
    commands = re.findall(r"^::\w+.*", job.done.stdout, re.M)
    assert len(commands) == (code != 0 or verdict == "ambiguous"), commands
    assert "<script>" not in re.sub(r"`[^`]*`", "", summary)


def test_a_summary_that_is_not_wanted(records: dict[str, str], tmp_path: Path) -> None:
    wanted = {"baseline": records["main"], "candidate": records["slower"], "python": sys.executable}
    job = Job(tmp_path, summary="false", **wanted)
    assert job.done.returncode == 1 and job.summary.read_text() == ""
    assert "slower" in job.done.stdout


def test_an_interpreter_that_has_no_kernelworks(records: dict[str, str], tmp_path: Path) -> None:
    job = Job(tmp_path, baseline=records["main"], candidate=records["same"], python="/nonexistent/python")
    assert job.done.returncode == 127 and job.outputs == {"verdict": "error", "exit-code": "127"}


def test_inputs_stay_out_of_the_script() -> None:
    """What a pull request may name is read from the environment, never pasted into the shell."""
    assert "${{" not in parse_action()["runs"]["steps"]["run"]
