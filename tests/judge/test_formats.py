"""Formats: read as they are published, without running a line; what is wrong is named with what is accepted."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from like_kernelbench import SOUND

from kernelworks.climb.problem import problem_of as problem_in
from kernelworks.dispatch.op import OPS
from kernelworks.judge.formats import definition_loader as defining
from kernelworks.judge.formats import (
    kernelbench,
    ladders,
    op_packages,
    read_candidate,
    read_problem,
    robust_kbench,
    text,
)
from kernelworks.judge.problem import Misread, Shape
from kernelworks.judge.roles import candidate as caller
from kernelworks.machine import environment

CANDIDATE = """
import torch
from torch.utils.cpp_extension import load_inline
class ModelNew(torch.nn.Module):
    def __init__(self, wide, narrow):
        super().__init__()
        self.dense = torch.nn.Linear(wide, narrow)
    def forward(self, x):
        return self.dense(x).clamp(min=0)
"""


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


# ---------------------------------------------------------------- KernelBench


def test_a_kernelbench_problem_and_its_candidate(tmp_path: Path) -> None:
    problem = read_problem(written(tmp_path, "dense.py", SOUND["dense_relu"].text))
    assert (problem.format, problem.entry, problem.tolerance) == ("kernelbench", "Model", (1e-4, 1e-4))
    assert [s.name for s in problem.shapes] == ["own", "rows=1", "rows=3", "rows=127"]  # the weights' sizes stay
    loaded = kernelbench.load(problem, problem.shapes[2], tmp_path / "child")
    model = loaded.reference(*loaded.init())
    (x,) = loaded.inputs()
    assert model(x).shape == (3, 384)

    candidate = read_candidate(written(tmp_path, "answer.py", CANDIDATE), problem)
    assert (candidate.entry, candidate.language) == ("ModelNew", "c++")
    made = kernelbench.load_candidate(problem, problem.shapes[0], candidate, tmp_path / "child").make(*loaded.init())
    made.load_state_dict(model.state_dict())
    torch.testing.assert_close(made(x), model(x))


def test_keywords_of_a_constructor(tmp_path: Path) -> None:
    text = SOUND["dense_relu"].text.replace("return [wide, narrow]", "return [[wide], {'narrow': narrow}]")
    problem = read_problem(written(tmp_path, "dense.py", text))
    loaded = kernelbench.load(problem, Shape("own"), tmp_path / "child")
    assert loaded.reference(*loaded.init()).dense.out_features == 384


def test_reading_runs_nothing(tmp_path: Path) -> None:
    text = SOUND["row_softmax"].text + "\nraise SystemExit('it ran')\n"
    assert read_problem(written(tmp_path, "p.py", text)).name == "p"


MISREAD = {
    "no such format": ("x = 1\n", "no format that is known"),
    "no inputs": ("class Model: pass\n# def get_inputs\n", "no function get_inputs; it has no functions"),
    "not Python": ("class Model:\ndef get_inputs(:\n", "not valid Python"),
}


@pytest.mark.parametrize("name", MISREAD)
def test_what_is_no_problem_is_said(name: str, tmp_path: Path) -> None:
    text, said = MISREAD[name]
    with pytest.raises(Misread, match=said):
        read_problem(written(tmp_path, "p.py", text))


def test_what_is_no_candidate_is_said(tmp_path: Path) -> None:
    problem = read_problem(written(tmp_path, "p.py", SOUND["row_softmax"].text))
    with pytest.raises(Misread, match="no class ModelNew; it has Model"):
        read_candidate(written(tmp_path, "c.py", SOUND["row_softmax"].text), problem)
    with pytest.raises(Misread, match="No such file"):
        read_problem(tmp_path / "none.py")


# ---------------------------------------------------------------- robust-kbench

FUNCTIONAL = """
import torch
import torch.nn as nn

def forward_fn(x, weight, eps):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight

class Model(nn.Module):
    def __init__(self, width: int = 48, eps: float = 1e-5):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.rand(width)), eps

    def forward(self, x, fn=forward_fn):
        return fn(x, self.weight, self.eps)

def get_inputs(rows: int = 20, width: int = 48):
    return [torch.randn(rows, width)]

input_names = ["x"]
"""
SETTINGS = """{"single_input_configs": [{"rows": 4}], "single_init_configs": [{"eps": 0.1}],
"single_shared_configs": [{"width": 16}], "multi_input_configs": [{"rows": 4}, {"rows": 9}],
"multi_init_configs": [{"eps": 0.1}], "multi_shared_configs": [{"width": 16}]}"""


def test_the_functional_form(tmp_path: Path) -> None:
    problem = read_problem(written(tmp_path, "func_forward.py", FUNCTIONAL))
    assert (problem.format, problem.entry) == ("robust-kbench", "forward_fn")
    assert [s.name for s in problem.shapes] == ["own", "rows=1", "rows=3", "rows=19"]  # width is the weight's too
    loaded = robust_kbench.load(problem, problem.shapes[1], tmp_path / "child")
    answer = "def forward(x, weight, eps):\n    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight\n"
    candidate = read_candidate(written(tmp_path, "answer.py", answer), problem)
    made = robust_kbench.load_candidate(problem, problem.shapes[1], candidate, tmp_path / "child").make(*loaded.init())
    model = loaded.reference(*loaded.init())
    made.load_state_dict(model.state_dict())
    (x,) = loaded.inputs()
    assert x.shape == (1, 48)
    torch.testing.assert_close(made(x), model(x))


def test_settings_beside_it_are_shapes(tmp_path: Path) -> None:
    written(tmp_path, "config_forward.json", SETTINGS)
    problem = read_problem(written(tmp_path, "func_forward.py", FUNCTIONAL))
    assert [s.name for s in problem.shapes] == ["own", "settings 1"]
    loaded = robust_kbench.load(problem, problem.shapes[1], tmp_path / "child")
    assert loaded.inputs()[0].shape == (9, 16)
    assert loaded.reference().eps == 0.1


GRAPH = FUNCTIONAL.replace(
    "class Model",
    """class AutogradFunction(torch.autograd.Function):
    backward_fn = None

    @staticmethod
    def forward(ctx, x, weight, eps):
        ctx.save_for_backward(x, weight)
        ctx.eps = eps
        return forward_fn(x, weight, eps)

    @staticmethod
    def backward(ctx, gradient):
        return (*AutogradFunction.backward_fn(gradient, *ctx.saved_tensors, ctx.eps), None)

class Model""",
    1,
)


def test_a_backward_takes_the_place_of_the_graphs_own(tmp_path: Path) -> None:
    problem = read_problem(written(tmp_path, "func_backward.py", GRAPH))
    source = 'PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("backward", &backward, "its backward"); }'
    candidate = read_candidate(written(tmp_path, "backward.cu", source), problem)
    assert (candidate.entry, candidate.language) == ("backward", "cuda")
    with pytest.raises(Misread, match="no function forward, which takes the place of forward_fn; it exports backward"):
        read_candidate(tmp_path / "backward.cu", read_problem(written(tmp_path, "func_forward.py", FUNCTIONAL)))
    answer = """
def backward(g, x, weight, eps):
    r = (x.square().mean(-1, keepdim=True) + eps).rsqrt()
    gw = g * weight
    return r * (gw - x * r * r * (gw * x).mean(-1, keepdim=True)), (g * x * r).sum(0)
"""
    candidate = read_candidate(written(tmp_path, "answer.py", answer), problem)
    made = robust_kbench.load_candidate(problem, problem.shapes[1], candidate, tmp_path / "child").make()
    model = robust_kbench.load(problem, problem.shapes[1], tmp_path / "other").reference()
    made.load_state_dict(model.state_dict())
    x = torch.randn(3, 48, dtype=torch.float64)
    for one in (made, model):
        one.double()(x).square().sum().backward()
    torch.testing.assert_close(made.weight.grad, model.weight.grad)


# ---------------------------------------------------------------- KernelBook


def test_rows_of_kernelbook(tmp_path: Path) -> None:
    code = (
        "import torch\nclass Gate(torch.nn.Module):\n    def __init__(self, slope):\n        super().__init__()\n"
        "        self.slope = slope\n    def forward(self, x):\n        return torch.sigmoid(x * self.slope)\n"
        "def get_inputs():\n    return [torch.rand([4, 4])]\ndef get_init_inputs():\n    return [[], {'slope': 2.0}]\n"
    )
    answer = code.replace("class Gate", "import triton\nclass GateNew").replace(
        "torch.sigmoid(x", "torch.sigmoid(1.0 * x"
    )
    rows = [
        {"entry_point": "Gate", "python_code": code, "triton_code": answer, "uuid": 7},
        {"entry_point": "Other", "python_code": code.replace("Gate", "Other"), "triton_code": "", "uuid": 8},
    ]
    file = written(tmp_path, "rows.jsonl", "\n".join(json.dumps(row) for row in rows))
    problem = read_problem(file)
    assert (problem.name, problem.format, problem.entry) == ("Gate", "kernelbook", "Gate")
    assert (
        read_problem(f"{file}#1").name
        == read_problem(f"{file}#8").name
        == read_problem(f"{file}#Other").name
        == "Other"
    )
    candidate = read_candidate(f"{file}#0", problem)
    assert (candidate.entry, candidate.language) == ("GateNew", "triton")
    loaded = kernelbench.load(problem, Shape("own"), tmp_path / "child")
    assert loaded.reference(*loaded.init()).slope == 2.0
    with pytest.raises(Misread, match="no row '9'; it has 2"):
        read_problem(f"{file}#9")
    with pytest.raises(Misread, match="triton_code is ''; a text is accepted"):
        read_candidate(f"{file}#Other", read_problem(f"{file}#Other"))


# ---------------------------------------------------------------- definitions

RUN = "import torch\n\ndef run(a, b, scale):\n    return (a @ b.T * scale).to(torch.bfloat16)\n"
DEFINED: dict[str, Any] = {
    "name": "gemm_n24",
    "op_type": "gemm",
    "axes": {
        "M": {"type": "var"}, "N": {"type": "const", "value": 24}, "K": {"type": "expr", "expression": "2 * N + 4"},
    },
    "inputs": {
        "a": {"shape": ["M", "K"], "dtype": "float32"}, "b": {"shape": ["N", "K"], "dtype": "float32"},
        "scale": {"shape": None, "dtype": "float32"},
    },
    "outputs": {"c": {"shape": ["M", "N"], "dtype": "bfloat16"}},
    "reference": RUN,
}  # fmt: skip
WORK = {
    "uuid": "w0",
    "axes": {"M": 6},
    "inputs": {"a": {"type": "random"}, "b": {"type": "random"}, "scale": {"type": "scalar", "value": 0.5}},
}
SOLVED: dict[str, Any] = {
    "name": "written_into", "definition": "gemm_n24", "author": "us",
    "spec": {"language": "python", "entry_point": "main.py::run", "target_hardware": ["cpu"]},
    "sources": [
        {"path": "main.py", "content": "from inner import product\ndef run(a, b, s, c): c.copy_(product(a, b) * s)"},
        {"path": "inner.py", "content": "def product(a, b):\n    return a @ b.T\n"},
    ],
}  # fmt: skip


def defined(folder: Path) -> Path:
    """As the dataset keeps it: definitions and workloads apart."""
    for part in ("definitions/gemm", "workloads/gemm"):
        (folder / part).mkdir(parents=True)
    trace = {"definition": "gemm_n24", "workload": WORK, "solution": None}
    written(
        folder / "workloads/gemm", "gemm_n24.jsonl", json.dumps(trace) + "\n" + json.dumps({**WORK, "axes": {"M": 3}})
    )
    return written(folder / "definitions/gemm", "gemm_n24.json", json.dumps(DEFINED))


def test_a_definition_with_its_workloads_and_a_solution(tmp_path: Path) -> None:
    problem = read_problem(defined(tmp_path))
    assert (problem.name, problem.format) == ("gemm_n24", "flashinfer-bench")
    assert [(s.sizes["M"], s.required) for s in problem.shapes] == [(6, True), (3, True)]
    candidate = read_candidate(written(tmp_path, "s.json", json.dumps(SOLVED)), problem)
    assert (candidate.name, candidate.entry, candidate.language) == ("written_into", "main.py::run", "torch")
    for shape in problem.shapes:
        loaded = defining.load(problem, shape, tmp_path / shape.name)
        inputs = loaded.inputs()
        assert [getattr(v, "shape", v) for v in inputs] == [(shape.sizes["M"], 52), (24, 52), 0.5]
        (answer,) = defining.load_candidate(problem, shape, candidate, tmp_path / shape.name).make()(*inputs)
        torch.testing.assert_close(answer, loaded.reference()(*inputs)[0], rtol=2**-7, atol=0.0)


def test_inputs_of_a_definition_s_own(tmp_path: Path) -> None:
    own = (
        "\ndef make(axes, device):\n"
        "    return {'a': torch.ones(axes['M'], axes['K']), 'b': torch.ones(24, 52), 'scale': 2.0}\n"
    )
    said = {**DEFINED, "custom_inputs_entrypoint": "make", "reference": RUN + own}
    custom = {**WORK, "inputs": {name: {"type": "custom"} for name in DEFINED["inputs"]}}
    written(tmp_path, "workload.jsonl", json.dumps(custom))
    problem = read_problem(written(tmp_path, "definition.json", json.dumps(said)))
    assert problem.format == "sol-execbench"
    loaded = defining.load(problem, problem.shapes[0], tmp_path / "child")
    assert float(loaded.reference()(*loaded.inputs())[0][0, 0]) == 104.0
    assert loaded.fixed == {0, 1, 2}


WRONG_FIELDS: dict[str, tuple[dict[str, Any], str]] = {
    "no name": ({"name": ""}, "name is ''; a text is accepted"),
    "an axis": ({"axes": {"M": {"type": "sum"}}}, "axes.M.type is 'sum'; one of const, var, expr is accepted"),
    "a size": ({"axes": {"M": {"type": "const", "value": -1}}}, "axes.M.value is -1; a whole number above 0"),
    "code in a size": ({"axes": {"M": {"type": "expr", "expression": "exit()"}}}, "axes, numbers and"),
    "a shape": (
        {"inputs": {"a": {"shape": ["Q"], "dtype": "int8"}}},
        "inputs.a.shape is .'Q'.; null or a list of axes",
    ),
    "a dtype": ({"outputs": {"c": {"shape": ["M"], "dtype": "float"}}}, "outputs.c.dtype is 'float'; one of float64"),
    "no reference": ({"reference": "def go(): pass"}, "reference has no function run; it has go"),
}


@pytest.mark.parametrize("name", WRONG_FIELDS)
def test_a_wrong_field_is_named(name: str, tmp_path: Path) -> None:
    changed, said = WRONG_FIELDS[name]
    with pytest.raises(Misread, match=said):
        read_problem(written(tmp_path, "d.json", json.dumps({**DEFINED, **changed})))


LISTED: dict[str, tuple[dict[str, Any], str]] = {
    "capitals": ({"language": "Python"}, "torch"),
    "Triton's": ({"language": "Triton"}, "triton"),
    "a list": ({"languages": ["pytorch", "triton"]}, "triton"),
    "a language for a GPU": ({"languages": ["cute_dsl"]}, "cuda"),
}  # fmt: skip


@pytest.mark.parametrize("name", LISTED)
def test_languages_are_read_as_the_formats_write_them(name: str, tmp_path: Path) -> None:
    problem = read_problem(defined(tmp_path))
    said, language = LISTED[name]
    spec = {"entry_point": "main.py::run", "target_hardware": ["B200"], **said}
    candidate = read_candidate(written(tmp_path, "s.json", json.dumps({**SOLVED, "spec": spec})), problem)
    assert candidate.language == language
    inputs = defining.load(problem, problem.shapes[0], tmp_path / "p").inputs()
    made = defining.load_candidate(problem, problem.shapes[0], candidate, tmp_path / "c").make()
    assert made(*inputs)[0].shape == (6, 24)  # a Python file is run as one, whatever its kernels are written in


WRONG_SOLUTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "another problem's": ({"definition": "other"}, "definition is 'other'; 'gemm_n24' is accepted"),
    "no such file": ({"spec": {"language": "cuda", "entry_point": "k.cu::f"}}, "FILE::FUNCTION with a file of"),
    "a language": ({"spec": {"language": "rust", "entry_point": "main.py::run"}}, "language is 'rust'; one of python"),
    "languages": (
        {"spec": {"languages": ["triton", "rust"], "entry_point": "main.py::run"}},
        "languages is .'triton', 'rust'.; a list of python",
    ),
    "a path": ({"sources": [{"path": "../main.py", "content": ""}]}, "a path inside the solution is accepted"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG_SOLUTIONS)
def test_a_wrong_field_of_a_solution_is_named(name: str, tmp_path: Path) -> None:
    problem = read_problem(written(tmp_path, "d.json", json.dumps(DEFINED)))
    changed, said = WRONG_SOLUTIONS[name]
    with pytest.raises(Misread, match=said):
        read_candidate(written(tmp_path, "s.json", json.dumps({**SOLVED, **changed})), problem)


# ---------------------------------------------------------------- sizes in a text

SIZED = """
import torch
batch = 1 << 4  # rows
height = width = 12
depth, channels = 6, 256 * 2
sides = (7, 9)
twice = 3
twice = 4
both = (batch, 5)


class Model(torch.nn.Module):
    def forward(self, x):
        return x


def get_inputs():
    return [torch.zeros(batch, channels, depth, height, width, *sides)]
"""


def test_sizes_are_found_however_they_are_written(tmp_path: Path) -> None:
    found = text.constants(text.parse_module(SIZED, ""))
    assert found == {
        "batch": 16, "height": 12, "width": 12, "depth": 6, "channels": 512, "sides[0]": 7, "sides[1]": 9, "both[1]": 5
    }  # fmt: skip
    smaller = text.with_constants(SIZED, {"batch": 2, "height": 5, "width": 4, "channels": 1, "sides[1]": 3})
    assert len(smaller.splitlines()) == len(SIZED.splitlines())
    names: dict[str, Any] = {}
    exec(smaller, names)
    assert names["get_inputs"]()[0].shape == (2, 1, 6, 4, 4, 7, 3)  # of `a = b = 12` the smaller
    problem = read_problem(written(tmp_path, "sized.py", SIZED))
    assert {"sides[1]=8", "channels=1", "depth=5"} <= {shape.name for shape in problem.shapes}


# ---------------------------------------------------------------- our own ops


def test_an_op_is_named(tmp_path: Path) -> None:
    problem = read_problem("rms_norm:N=7")
    assert (problem.format, problem.entry, problem.shapes[0].name) == ("op", "rms_norm", "N=7")
    text = (
        "def rms_norm(x, weight, eps, residual=None):\n    return x * x.pow(2).mean(-1, True).add(eps).rsqrt() * weight"
    )
    candidate = read_candidate(written(tmp_path, "c.py", text), problem)
    loaded = op_packages.load(problem, problem.shapes[0], tmp_path)
    inputs = loaded.inputs()
    answer = op_packages.load_candidate(problem, problem.shapes[0], candidate, tmp_path).make()(*inputs)
    torch.testing.assert_close(answer, loaded.reference()(*inputs))
    with pytest.raises(Misread, match="no case 'N=-1'; it has"):
        read_problem("rms_norm:N=-1")


@pytest.mark.parametrize("name", ["rms_norm", "rms_norm:N=7", "rms_norm:96x80 float32"])
def test_each_shape_of_an_op_is_a_case_of_its_own(name: str, tmp_path: Path) -> None:
    problem, contract = read_problem(name), OPS["rms_norm"].contract
    cases = {case.name: case for case in (*contract.bench_cases, *contract.cases)}
    small = [s for s in problem.shapes if s.name in cases and "x" not in s.name]
    assert len(small) > 5 and problem.shapes[0].name == (name.partition(":")[2] or contract.bench_cases[0].name)
    for shape in small:
        case = cases[shape.name]
        made = case.make(torch.Generator().manual_seed(1), case.dtypes[0])
        x, inputs = made["x"], op_packages.load(problem, shape, tmp_path).inputs()
        assert (inputs[0].shape, inputs[0].dtype) == (x.shape, x.dtype)
    if name.endswith("float32"):
        assert op_packages.load(problem, problem.shapes[0], tmp_path).inputs()[0].shape == (96, 80)


def test_an_ops_own_kernel_is_its_best_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    problem = read_problem("relu")
    listed = [kernel.name for kernel in op_packages.runnable_cpp_kernels(OPS["relu"])]
    assert listed == [kernel.name for kernel in OPS["relu"].kernels if kernel.name in listed]  # best first
    assert "scalar" in listed and "torch" not in listed
    kernel = SimpleNamespace(load=lambda pass_: ("its kernel", pass_))
    monkeypatch.setattr(op_packages, "runnable_cpp_kernels", lambda op: [kernel] if op is OPS["relu"] else [])
    monkeypatch.setenv("KERNELWORKS_CHOOSE", "timed")
    loaded = op_packages.load(problem, problem.shapes[0], tmp_path)
    assert caller._with_ours(loaded.reference(), loaded) == ("its kernel", "forward")
    assert environment.selection_policy() == "listed"  # a process of the judge's sees no timings: torch would run
    on_gpu = op_packages.load(dataclasses.replace(problem, device="cuda"), problem.shapes[0], tmp_path)
    assert on_gpu.ours() is OPS["relu"]


# ---------------------------------------------------------------- our own ladders

LADDERS = Path(__file__).resolve().parents[2] / "ladders"


def test_a_ladder_is_named_or_is_a_folder(tmp_path: Path) -> None:
    problem = read_problem("cpu-sgemm")
    assert (problem.name, problem.format, problem.device) == ("cpu-sgemm", "ladder", "cpu")
    assert problem.shapes[0].sizes == {"M": 512, "N": 512, "K": 512} and "halved" in problem.remarks[0]
    assert "M=7,N=5,K=3" in {shape.name for shape in problem.shapes} and all(shape.required for shape in problem.shapes)
    assert read_problem(LADDERS / "cpu-sgemm") == problem
    sized = read_problem("cpu-sgemm:M=3,N=4,K=5")
    assert sized.shapes[0].sizes == {"M": 3, "N": 4, "K": 5} and not sized.remarks
    assert read_problem("cuda-sgemm").device == "cuda"
    packed = read_problem("cpu-gemv-q8#q8_0")
    assert packed.entry == "q8_0" and all(shape.sizes["K"] % 32 == 0 for shape in packed.shapes)
    loaded = ladders.load(packed, packed.shapes[-1], tmp_path)
    inputs = loaded.inputs()
    found = loaded.bound(inputs)
    assert inputs[0].dtype is torch.uint8 and found.reference[0].dtype is torch.float64
    assert bool(((loaded.reference()(*inputs) - found.reference[0]).abs() <= found.outputs[0]).all())


@pytest.mark.parametrize("name", sorted(path.parent.name for path in LADDERS.glob("cpu-*/problem.py")))
def test_a_ladder_on_a_cpu_is_a_problem(name: str) -> None:
    formats = problem_in(LADDERS / name).formats
    for one in (f"{name}#{each}" for each in formats) if formats else (name,):
        assert read_problem(one).format == "ladder" and read_problem(one).shapes


NO_LADDER = {
    "cpu-gemv-q8": "#FORMAT with one of bf16, q8_0",
    "cpu-gemv-q8#q4": "got 'q4'",
    "cpu-sgemm:M=3": "the sizes M, N, K are accepted, got M",
}


@pytest.mark.parametrize("name", NO_LADDER)
def test_what_a_ladder_has_not_is_said(name: str) -> None:
    with pytest.raises(Misread, match=NO_LADDER[name]):
        read_problem(name)


def test_what_is_no_rung_is_said(tmp_path: Path) -> None:
    problem = read_problem("cpu-sgemm")
    with pytest.raises(Misread, match=r"a file NN_idea\.cpp"):
        read_candidate(written(tmp_path, "rung.cpp", ""), problem)
    with pytest.raises(Misread, match="the header must give"):
        read_candidate(written(tmp_path, "01_rung.cpp", "int x;"), problem)
    with pytest.raises(Misread, match="--problem cpu-gemv-q8#bf16"):
        read_candidate(LADDERS / "cpu-gemv-q8" / "01_bf16_naive.cpp", read_problem("cpu-gemv-q8#q8_0"))
