"""Files of problems and candidates that are none: each is told by what came, and none ends the judge or keeps it."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attacked import DEFINITION, PROBLEMS, WORKLOADS

from kernelworks.judge.formats import read_candidate, read_problem
from kernelworks.judge.problem import Misread

ROBUST = """
import torch
from torch import nn


def forward_fn(x):
    return x.tanh()


class Model(nn.Module):
    def forward(self, x, fn=forward_fn):
        return fn(x)


def get_inputs(n=8):
    return [torch.randn(n, n)]
"""

WRONG: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a shape of lists": (lambda d: d["inputs"]["a"].update(shape=[["M"], "N"]), r"inputs.a.shape is \[\['M'\], 'N'\]"),
    "an entry that is a list": (lambda d: d.update(custom_inputs_entrypoint=["run"]), "custom_inputs_entrypoint is"),
    **{
        f"the size {expression[:12]}": (
            lambda d, e=expression: d["axes"].update(K={"type": "expr", "expression": e}), "axes.K.expression is"
        )
        for expression in ("9**9**9**9", "2.0**-4096**4", "1e400", "-" * 50_000 + "1", "(" * 3000 + "1" + ")" * 3000)
    },
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_definition_that_is_none_is_told_by_what_came(name: str, tmp_path: Path) -> None:
    change, said = WRONG[name]
    wrong = copy.deepcopy(DEFINITION)
    change(wrong)
    (tmp_path / "definition.json").write_text(json.dumps(wrong), encoding="utf-8")
    with pytest.raises(Misread, match=said) as found:
        read_problem(tmp_path / "definition.json")
    assert len(str(found.value)) < 500


def test_a_size_that_follows_from_others_is_still_one(tmp_path: Path) -> None:
    right = copy.deepcopy(DEFINITION)
    right["axes"]["K"] = {"type": "expr", "expression": "2**10 * N // 3 + 7 % 4"}
    (tmp_path / "definition.json").write_text(json.dumps(right), encoding="utf-8")
    assert read_problem(tmp_path / "definition.json").name == "sizes"


def test_workloads_of_one_name_are_sizes_of_their_own(tmp_path: Path) -> None:
    """And so is one that has the name of what every problem is asked."""
    (tmp_path / "definition.json").write_text(json.dumps(DEFINITION), encoding="utf-8")
    lines = [
        json.dumps({**work, "uuid": name}) for work, name in zip(WORKLOADS, ("a", "a", "other weights"), strict=True)
    ]
    (tmp_path / "workload.jsonl").write_text("\n".join(lines), encoding="utf-8")
    shapes = read_problem(tmp_path / "definition.json").shapes
    assert [s.name for s in shapes] == ["a", "a, workload 1", "other weights, workload 2"]
    assert [s.sizes["M"] for s in shapes] == [work["axes"]["M"] for work in WORKLOADS]


@pytest.mark.parametrize("said", ["[]", "5", '"x"', "null"])
def test_settings_that_are_no_object_are_told(said: str, tmp_path: Path) -> None:
    (tmp_path / "func_forward.py").write_text(ROBUST, encoding="utf-8")
    (tmp_path / "config_forward.json").write_text(said, encoding="utf-8")
    with pytest.raises(Misread, match="an object of lists is accepted"):
        read_problem(tmp_path / "func_forward.py")


def test_a_mark_at_the_beginning_of_a_file_is_none_of_its_text(tmp_path: Path) -> None:
    (tmp_path / "norm.py").write_text(PROBLEMS["norm"], encoding="utf-8-sig")
    (tmp_path / "mine.py").write_text("class ModelNew:\n    pass\n", encoding="utf-8-sig")
    problem = read_problem(tmp_path / "norm.py")
    assert read_candidate(tmp_path / "mine.py", problem).files == {"candidate.py": "class ModelNew:\n    pass\n"}


@pytest.mark.parametrize("style", ["no", 0, []])
def test_a_style_that_is_no_truth_value_is_told(style: Any, tmp_path: Path) -> None:
    (tmp_path / "definition.json").write_text(json.dumps(DEFINITION), encoding="utf-8")
    spec = {"language": "python", "entry_point": "main.py::run", "destination_passing_style": style}
    said = {
        "name": "mine",
        "definition": "sizes",
        "spec": spec,
        "sources": [{"path": "main.py", "content": "run = abs"}],
    }
    (tmp_path / "solution.json").write_text(json.dumps(said), encoding="utf-8")
    with pytest.raises(Misread, match=r"destination_passing_style is .*; true or false is accepted"):
        read_candidate(tmp_path / "solution.json", read_problem(tmp_path / "definition.json"))
