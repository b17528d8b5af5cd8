"""Kernels of ours on a GPU with other launch constants: which there are, a text that says them, and that it computes
the same. None of this needs a GPU."""

from __future__ import annotations

import tomllib
from pathlib import Path

import forked
import pytest

from kernelworks.build.configs import with_configs
from kernelworks.dispatch.op import OPS
from kernelworks.judge.formats import op_packages, problem_on_device, read_problem, text
from kernelworks.judge.problem import Misread
from kernelworks.search import keep, loop, our_kernels_cpp, our_kernels_gpu
from kernelworks.search.space import space_in

SIZED = [
    "softmax:8192x4096",
    "softmax:6x40x12 bfloat16",
    "rms_norm:64x24576 float16",
    "gelu:tanh 16x1024 float32",
    "sum:9x80 float32",
]


@pytest.mark.parametrize("name", [*SIZED, "linear:64x256x512 bfloat16", "cross_entropy:33x8192 mean"])
def test_a_kernel_says_how_else_it_may_be_launched(name: str) -> None:
    problem = read_problem(name, "cuda")
    source = our_kernels_cpp.texts_of(problem)[0]  # the best listed; long rows have another
    assert (
        text.language(source) == "triton"
        and op_packages.candidate_in(Path("a.py"), source, problem).entry == problem.entry
    )
    space = space_in(source)
    assert space is not None and space.size > 3
    assert all(value in space.choices[name] for name, value in space.at.items())
    assert all(1 <= warps <= 32 for n, its in space.choices.items() if n.endswith("NUM_WARPS") for warps in its)
    picks = our_kernels_gpu.picked_configs(problem.entry, problem.shapes[0].name)["triton"]
    assert our_kernels_gpu.sets_in(problem, source) == ("triton", picks)


def test_what_the_op_package_lists_is_what_is_tried() -> None:
    (source,) = our_kernels_cpp.texts_of(read_problem("softmax:8192x4096", "cuda"))
    space = space_in(source)
    assert space is not None and dict(space.choices) == {"FORWARD_ROWS": (1, 2), "FORWARD_NUM_WARPS": (4, 8, 16)}


def test_of_a_text_at_another_point_what_is_launched_is_known_and_of_another_text_nothing() -> None:
    problem = read_problem("rms_norm:64x24576 float16", "cuda")
    source = our_kernels_cpp.texts_of(problem)[0]  # the best listed; long rows have another
    space, holds = space_in(source), our_kernels_cpp.own_text_predicate(problem)
    assert space is not None
    other = space.text_at({"FORWARD_NUM_WARPS": 8, "FORWARD_CHUNK": 2048})
    op_kernel, sets = our_kernels_gpu.sets_in(problem, other) or ("", {})
    ((kernel, dims, dtype),) = sets
    assert (op_kernel, kernel, dict(dims)["N"], str(dtype)) == ("triton", "forward", 24576, "torch.float16")
    assert sets[kernel, dims, dtype]["num_warps"] == 8 and sets[kernel, dims, dtype]["CHUNK"] == 2048
    assert holds(source) and holds(other)
    for wrong in (
        space.text_at({"FORWARD_NUM_WARPS": 64}), source.replace("return _run(*", "return kept(_run, *"),
        f"{source}\nimport threading\n", source.replace("24576", "1"), "SPACE = [", "",
    ):  # fmt: skip
        assert wrong == source or not holds(wrong)
    assert not our_kernels_cpp.own_text_predicate(read_problem("softmax:8192x4096", "cuda"))(source)


RUN = """
import sys, torch
from kernelworks.judge.formats import read_problem
from kernelworks.search import our_kernels_gpu as launches
from kernelworks.search.space import space_in

for name, other in ((("softmax:6x70x12 float32"), {"DOWN_FORWARD_TILE": 1024, "DOWN_FORWARD_NUM_WARPS": 8}),
                    (("rms_norm:33x200 float32"), {"FORWARD_CHUNK": 64 * 4, "FORWARD_ROWS": 2})):
    problem = read_problem(name, "cuda")
    (source,) = launches.texts_of(problem)
    code = space_in(source).text_at(other)
    assert code != source
    space = {}
    exec(code, space)
    torch.manual_seed(0)
    if problem.entry == "softmax":
        x = torch.randn(6, 70, 12)
        got, want = space["softmax"](x, 1), torch.softmax(x, 1)
    else:
        x, weight = torch.randn(33, 200), torch.randn(200)
        got, want = space["rms_norm"](x, weight, 1e-6, None), torch.nn.functional.rms_norm(x, (200,), weight, 1e-6)
    assert torch.allclose(got if isinstance(got, torch.Tensor) else got[0], want, rtol=1e-5, atol=1e-6), name
print("same")
"""


def test_a_kernel_launched_otherwise_computes_the_same() -> None:
    done = forked.python(code=RUN, TRITON_INTERPRET="1")
    assert done.stdout == "same\n", done.stderr


def test_sizes_that_no_case_has_are_made_by_the_form_or_refused() -> None:
    problem = read_problem("softmax:6x40 float32")
    (x, dim) = op_packages.load(problem, problem.shapes[0], Path()).inputs()
    assert (tuple(x.shape), dim) == ((6, 40), -1) and problem.device == "cpu" and problem.shapes[0].required
    there = problem_on_device(problem, "cuda")
    assert (
        there.device == "cuda" and there.shapes[0].name == "6x40 float32" and len(there.shapes) != len(problem.shapes)
    )
    (x, dim) = op_packages.load(there, there.shapes[0], Path()).inputs()
    assert tuple(x.shape) == (6, 40)
    for name in (
        "softmax:6 float32",
        "softmax:6x40",
        "linear:6x40 float32",
        "gelu:sideways 6x40 float32",
        "rope:6x40 float32",
    ):
        with pytest.raises(Misread, match="no case"):
            read_problem(name)


def test_a_search_on_a_gpu_needs_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(loop, "has_gpu", lambda: False)
    with pytest.raises(ValueError, match="torch sees none here"):
        loop.search("softmax:8192x4096", device="cuda", store=tmp_path / "s.sqlite")
    with pytest.raises(ValueError, match="device must be cpu or cuda, got 'tpu'"):
        loop.search("softmax", device="tpu", store=tmp_path / "s.sqlite")
    assert not (tmp_path / "s.sqlite").exists()


# ---------------------------------------------------------------- what is kept

MEASURED = [{"case": "64x24576", "us": 12.5, "gpu": "a GPU"}]


def test_a_winner_becomes_an_entry_for_exactly_its_sizes() -> None:
    problem = read_problem("rms_norm:40x20000", "cuda")
    source = our_kernels_cpp.texts_of(problem)[0]  # the best listed; long rows have another
    space = space_in(source)
    assert space is not None
    code = space.text_at({"FORWARD_NUM_WARPS": 8})
    change = keep._change(problem, code, MEASURED)
    ((path, whole),) = change.files.items()
    before = tomllib.loads(path.read_text(encoding="utf-8"))["config"]
    (added,) = (entry for entry in tomllib.loads(whole)["config"] if entry not in before)
    assert (
        change.kernel == "triton"
        and path.name == "tuning.toml"
        and len(tomllib.loads(whole)["config"]) == len(before) + 1
    )
    assert (
        added["when"]["N"] == [20000, 20000] and added["when"]["dtype"] == ["float32"] and added["kernel"] == "forward"
    )
    assert (
        added["set"]["num_warps"] == 8 and added["measured"] == MEASURED and tomllib.loads(whole)["config"][0] == added
    )
    again = with_configs(whole, [added | {"set": {"num_warps": 4}}])
    assert len(tomllib.loads(again)["config"]) == len(before) + 1 and tomllib.loads(again)["config"][1:] == before
    assert keep._as_it_is(problem, code) == source


def test_what_a_verification_does_not_reach_is_not_kept() -> None:
    with pytest.raises(
        ValueError, match="a size that a verification of rms_norm reaches on a GPU, got 64x24576 float16"
    ):
        keep.keepable(read_problem("rms_norm:64x24576 float16", "cuda"))
    keep.keepable(read_problem("rms_norm:40x20000", "cuda"))
    assert {one.name for one in OPS["rms_norm"].kernels if one.device == "cuda"} == {"triton", "triton_split"}
