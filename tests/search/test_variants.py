"""Kernels of ours with other numbers in their sources: which there are, a text that says them, and that it compiles."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kernelworks.build import cpp
from kernelworks.build.constants import named_in
from kernelworks.dispatch.op import OPS
from kernelworks.judge.formats import op_packages, text
from kernelworks.machine import machine
from kernelworks.search import our_kernels_cpp
from kernelworks.search.space import space_in

ANY = "scalar" if "avx2" not in machine().features else "avx2"


@pytest.mark.parametrize("op", ["silu_mul", "softmax", "sum", "linear", "rms_norm"])
def test_a_kernel_says_what_of_it_may_be_otherwise(op: str) -> None:
    source = our_kernels_cpp.text_of(op)
    if ANY == "scalar":  # the plain sources name no numbers
        return
    assert source is not None and text.language(source) == "c++"
    space = space_in(source)
    assert space is not None and space.size > 20
    assert all(value in space.choices[name] for name, value in space.at.items())
    assert not {"SIMD_LANES", "ELEMENTWISE_MAX_DIMS"} & set(space.choices)
    assert op_packages.candidate_in(Path(f"{op}.py"), source, op_packages.problem_of(op)).entry == op


def test_numbers_are_read_as_the_compiler_reads_them() -> None:
    source = OPS["sum"].kernel(ANY).source
    assert source is not None
    found = named_in(source, cpp.SIMD)
    assert all(number > 1 for its in found.values() for number in its.values())
    if ANY != "scalar":
        assert found["simd/reduction.hpp"]["PART"] == 1 << 16 and "MOST_LINE" not in found["simd/reduction.hpp"]


def test_a_kernel_with_other_numbers_computes_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELWORKS_CACHE", str(tmp_path))
    monkeypatch.setattr(cpp, "_loaded", {})
    source = OPS["relu"].kernel(ANY).source
    assert source is not None
    files = named_in(source, cpp.SIMD)
    (file, its), *_ = files.items()
    name, was = next(iter(its.items()))
    run = our_kernels_cpp.compile_kernel("relu", ANY, "-O2", {file: {name: 2 * was}})
    x = torch.randn(3, 1000)
    assert torch.equal(run(x), torch.relu(x))
    (copied,) = (p for p in tmp_path.rglob(Path(file).name))
    changed, original = copied.read_text(encoding="utf-8"), (cpp.SIMD / copied.name).read_text(encoding="utf-8")
    assert changed != original and f"{name} = {2 * was};" in changed
    with pytest.raises(ValueError, match="says it 0 times"):
        our_kernels_cpp.compile_kernel("relu", ANY, "", {file: {"NOTHING": 3}})
    with pytest.raises(ValueError, match="is made of"):
        our_kernels_cpp.compile_kernel("relu", ANY, "", {"simd/nothing.hpp": {"GRAIN": 3}})


def test_what_is_known_to_be_ours_has_not_a_word_of_its_own() -> None:
    source = our_kernels_cpp.text_of("silu_mul")
    if ANY == "scalar":  # the plain sources name no numbers
        return
    assert source is not None
    space = space_in(source)
    assert space is not None
    holds = our_kernels_cpp.own_text_predicate(op_packages.problem_of("silu_mul"))
    name, values = next((n, v) for n, v in space.choices.items() if isinstance(v[0], int) and len(v) > 1)
    assert holds(source) and holds(space.text_at({name: values[-1]}))
    for other in (
        space.text_at({name: 3 * max(values)}), space.text_at({"FLAGS": "-include own.h"}),
        source.replace("return _run(*arguments)", "return kept(_run, *arguments)"), source + "\nimport threading\n",
        source.replace("SPACE = {", "SPACE = {\n    'TARGET2': ['a', 'b'],"), "SPACE = [", "",
    ):  # fmt: skip
        assert other != source and not holds(other)
    assert not our_kernels_cpp.own_text_predicate(op_packages.problem_of("relu"))(source)
