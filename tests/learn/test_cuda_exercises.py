"""CUDA exercises, without a GPU: solutions are right under 64 orders of threads, wrong attempts refused with their
sentence, and solutions compile for a GPU where nvcc stands."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kernelworks.cli import app
from kernelworks.learn.checking import check
from kernelworks.learn.cuda_checking import THREAD_ORDERS, UNTIMED_REASON, check_cuda_texts
from kernelworks.learn.exercise import Exercise, exercise_named, exercises

IN_CUDA = [exercise for exercise in exercises().values() if exercise.language == "cuda"]
NVCC = shutil.which("nvcc")


@pytest.mark.parametrize("exercise", IN_CUDA, ids=lambda exercise: exercise.name)
def test_the_check_is_right_about_every_cuda_file(exercise: Exercise) -> None:
    assert THREAD_ORDERS >= 64
    files = [exercise.start_path, exercise.solution_path]
    texts = [*(path.read_text(encoding="utf-8") for path in files), *(wrong.text for wrong in exercise.wrong)]
    found = [one.verdict for one in check_cuda_texts(exercise, texts, exercise.file_name)]
    start, solution, *attempts = found
    assert solution.right, (solution.sentence, solution.detail)
    assert not start.right
    said = {wrong.name: verdict.sentence for wrong, verdict in zip(exercise.wrong, attempts, strict=True)}
    due = {wrong.name: wrong.said for wrong in exercise.wrong}
    assert {name: due[name] if due[name] in sentence else sentence for name, sentence in said.items()} == due
    assert not any(verdict.right for verdict in attempts)


def test_the_course_names_the_language_once(tmp_path: Path) -> None:
    """The family says cuda already; titles begin as those of the C++ exercises do."""
    listed = CliRunner().invoke(app, ["learn", "list", "--folder", str(tmp_path)]).stdout
    assert "cuda-add " in listed and "(cuda)" not in listed
    assert [e.name for e in IN_CUDA if e.title[0].isupper() or f": {e.title[:4]}" not in e.text.split("\n", 1)[0]] == []


def test_a_right_file_is_right_and_has_no_time_without_a_gpu(tmp_path: Path) -> None:
    exercise = exercise_named("cuda-add")
    result = check(exercise, exercise.solution_path)
    assert (result.outcome, result.untimed) == ("right", UNTIMED_REASON)


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("__global__ void k() {\n  int i = oops;\n}\n", 2, "oops"),
        ('extern "C" void add(const float* x, const float* z, float* y, int n) {\n k<<<1, 2>>>; }', 2, "kernel<<<grid"),
        ("__global__ void k(float* y) {\n  int i;\n  y[i] = 0.0f;\n}\n", 3, "used uninitialized"),
        ("__global__ void k() {}\n", 0, "add is called or asked for, and defined nowhere"),
    ],
    ids=["a name that is unknown", "a launch without arguments", "a local that nobody set", "no function"],
)
def test_a_file_that_does_not_compile_is_told_with_its_line(tmp_path: Path, text: str, line: int, said: str) -> None:
    source = tmp_path / "cuda_add.cu"
    source.write_text(text, encoding="utf-8")
    result = check(exercise_named("cuda-add"), source)
    assert result.outcome == "not compiled"
    assert result.messages[0].line == line and said in result.messages[0].text


ADD = exercise_named("cuda-add").solution_path.read_text(encoding="utf-8")
CALL = "add_kernel<<<blocks, threads>>>(x, z, y, n);"


@pytest.mark.parametrize(
    ("edit", "line", "said"),
    [
        (("__global__ ", ""), 11, "add_kernel is launched with <<< >>>, but lacks __global__"),
        ((CALL, "add_kernel(x, z, y, n);"), 11, "add_kernel is called without <<<blocks, threads>>>"),
        (('extern "C" void', 'extern "C" __global__ void'), 8, "add is the function that the CPU calls"),
        (("blockIdx.x * blockDim.x", "blockIdx * blockDim"), 4, "`.x` is missing: blockIdx.x"),
        (("blockIdx.x * blockDim.x + threadIdx.x", "blockIdx"), 4, "`.x` is missing: blockIdx.x"),
        (("if (i < n)", "__shared__ short s; atomicAdd(&s, 1); if (i < n)"), 5, "Kind<short int>"),
        (("blockIdx.x * blockDim.x", "blockIdx.x * blockDim"), 4, "`.x` is missing: blockDim.x"),
    ],
)
def test_what_nvcc_refuses_is_refused(tmp_path: Path, edit: tuple[str, str], line: int, said: str) -> None:
    source = tmp_path / "cuda_add.cu"
    source.write_text(ADD.replace(*edit), encoding="utf-8")
    result = check(exercise_named("cuda-add"), source)
    assert result.outcome == "not compiled"
    assert result.messages[0].line == line and said in result.messages[0].text
    assert result.messages[0].code == source.read_text(encoding="utf-8").splitlines()[line - 1].strip()


def test_what_kernel_and_host_print_is_shown_of_one_order(tmp_path: Path) -> None:
    """Each thread prints, in 64 orders of 5 cases: the first order of the first case is what is shown."""
    source = tmp_path / "cuda_add.cu"
    text = ADD.replace("    if (i < n)", '    if (i < 3) printf("thread %d has %.1f\\n", i, 1.5f * i);\n    if (i < n)')
    source.write_text(text.replace("    int threads", '    printf("launch\\n");\n    int threads'), encoding="utf-8")
    result = check(exercise_named("cuda-add"), source)
    lines = ["n = 256:", "launch", "thread 0 has 0.0", "thread 1 has 1.5", "thread 2 has 3.0"]
    assert (result.outcome, result.printed.splitlines()) == ("right", lines)


def test_what_is_printed_is_of_the_case_that_fails(tmp_path: Path) -> None:
    """n = 256 is right, n = 300 is not; host code prints by std::cout, of which each order would print a line."""
    source = tmp_path / "cuda_add.cu"
    text = "#include <iostream>\n" + ADD.replace("if (i < n)", "if (i < 256)")
    source.write_text(
        text.replace("    int threads", "    std::cout << n << std::endl;\n    int threads"), encoding="utf-8"
    )
    result = check(exercise_named("cuda-add"), source)
    assert (result.outcome, result.printed) == ("wrong", "n = 300:\n300\n")


def test_what_a_kernel_prints_is_shown_though_it_crashes_and_prints_much(tmp_path: Path) -> None:
    source = tmp_path / "cuda_add.cu"
    crash = '    for (int k = 0; k < 500; k++) printf("on\\n");\n    i /= n - n;\n'
    source.write_text(ADD.replace("    if (i < n)", crash + "    if (i < n)"), encoding="utf-8")
    result = check(exercise_named("cuda-add"), source)
    assert result.verdict is not None and "a division of integers by 0" in result.verdict.sentence
    assert result.printed.startswith("n = 256:\non\non\n") and len(result.printed) < 1000


def test_a_result_that_depends_on_the_order_of_threads_says_which(tmp_path: Path) -> None:
    """The last block to come writes: no race, since each access is an atomic, and no result to rely on."""
    source = tmp_path / "cuda_add.cu"
    source.write_text(
        "__device__ int ticket;\n"
        "__global__ void k(const float* x, const float* z, float* y, int n) {\n"
        "  int i = blockIdx.x * 256 + threadIdx.x;\n"
        "  int turn = i < n ? atomicAdd(&ticket, 1) : 0;\n"
        "  if (i < n) y[i] = turn % n == i ? x[i] + z[i] : 0.0f;\n"
        "}\n"
        'extern "C" void add(const float* x, const float* z, float* y, int n) {\n'
        "  int zero = 0;\n  cudaMemcpy(&ticket, &zero, 4, cudaMemcpyHostToDevice);\n"
        "  k<<<(n + 255) / 256, 256>>>(x, z, y, n);\n}\n",
        encoding="utf-8",
    )
    result = check(exercise_named("cuda-add"), source)
    assert result.verdict is not None and not result.verdict.right
    assert "when the threads run backwards; right when the threads run by their index" in result.verdict.detail


def _all_solutions() -> str:
    """All solutions as one source for nvcc: each in a namespace, its host function renamed."""
    parts = ["#include <cuda_runtime.h>\n"]
    for number, exercise in enumerate(IN_CUDA):
        text = exercise.solution_path.read_text(encoding="utf-8").replace("#include <cuda_runtime.h>", "")
        parts.append(f"#define {exercise.symbol} {exercise.symbol}_{number}\nnamespace n{number} {{\n{text}\n}}\n")
        parts.append(f"#undef {exercise.symbol}\n")
    return "".join(parts)


if NVCC:

    def test_solutions_compile_for_a_gpu(tmp_path: Path) -> None:
        source = tmp_path / "solutions.cu"
        source.write_text(_all_solutions(), encoding="utf-8")
        command = [
            NVCC or "",
            "-arch=sm_90",
            "-cubin",
            "-Werror",
            "all-warnings",
            str(source),
            "-o",
            str(tmp_path / "made.cubin"),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
