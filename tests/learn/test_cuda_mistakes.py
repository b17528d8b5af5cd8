"""What somebody who writes a first kernel gets wrong, and what is answered; and what looks wrong and is right."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelworks.learn.checking import CheckResult, check
from kernelworks.learn.cuda_words import cuda_in_plain_words
from kernelworks.learn.exercise import exercise_named
from kernelworks.learn.unset_locals import has_unset_local


def checked(folder: Path, name: str, *edits: tuple[str, str]) -> CheckResult:
    exercise = exercise_named(name)
    text = exercise.solution_path.read_text(encoding="utf-8")
    for before, after in edits:
        assert text.count(before) == 1, before
        text = text.replace(before, after)
    path = folder / exercise.file_name
    path.write_text(text, encoding="utf-8")
    return check(exercise, path)


GUESS = "float add(float* at, float v) {\n    int* bits = (int*)at;\n    int old = *bits, was;\n"
LOOP = (
    "    do { was = old; old = atomicCAS(bits, was, __float_as_int(v + __int_as_float(was))); } while (old != was);\n"
    "    return __int_as_float(old);\n}\n\n"
)
ADD_BY_SWAPS = [
    ("__global__ void dot_kernel", f"__device__ {GUESS}{LOOP}__global__ void dot_kernel"), ("atomicAdd(y,", "add(y,")
]  # fmt: skip


def test_a_loop_of_atomic_cas_may_begin_with_a_plain_read(tmp_path: Path) -> None:
    """As CUDA's own manual writes it: the swap finds out whether what was read is old. It is counted by cases, of which
    each has several results: sums of blocks in another order."""
    found = checked(tmp_path, "cuda-dot", *ADD_BY_SWAPS)
    assert found.outcome == "right" and found.verdict is not None and found.verdict.cases == 4, found


def test_a_plain_read_without_a_swap_behind_it_is_a_race(tmp_path: Path) -> None:
    found = checked(
        tmp_path, "cuda-dot", ("    if (t == 0) atomicAdd", "    if (t == 0 && *y > -1e30f) atomicAdd")
    ).verdict
    assert found is not None and "a race" in found.sentence and "nothing orders the blocks" in found.sentence


@pytest.mark.parametrize(
    ("name", "edits", "line", "said"),
    [
        (
            "cuda-halo", [("    __syncthreads();\n    if (i < n) y", "    if (i < n) { __syncthreads();\n    y"),
                          ("s[t + 2];", "s[t + 2]; }")], 9, "wait at the barrier in line 9",
        ),
        (
            "cuda-vector-loads", [("*(const float4*)(x + i)", "*((const float4*)x + i)")], 6,
            "Behind the cast an index counts float4s: i stands for x[4 * i]",
        ),
        (
            "cuda-vector-loads", [("if (i + 3 < n) {", "if (i < n) {")], 6,
            "reads x[512] to x[515] at once, outside of the array: x has 515 elements",
        ),
        (
            "cuda-vector-loads", [("a * v.w", "v.w")], 0, "every 4th element of y, from y[3] on, is wrong",
        ),
        (
            "cuda-tiled-matmul", [("row < M && k + x < K ?", "k + x < K ?")], 9,
            "The condition there lets this thread through",
        ),
    ],
    ids=["a barrier in an if", "a cast too early", "four at the end", "one of four", "half a condition"],
)  # fmt: skip
def test_what_is_wrong_is_told_with_its_line(
    tmp_path: Path, name: str, edits: list[tuple[str, str]], line: int, said: str
) -> None:
    found = checked(tmp_path, name, *edits).verdict
    assert found is not None and not found.right
    assert said in found.sentence and line in (0, found.line), found


@pytest.mark.parametrize(
    ("code", "message", "plain"),
    [
        (
            "*(float4*)(y + i) = a * v;", "no match for 'operator*' (operand types are 'float' and 'float4')",
            "make_float4(v.x * ..., v.y * ..., v.z * ..., v.w * ...)",
        ),
        (
            "float4 v = x[i];", "conversion from 'const float' to non-scalar type 'float4' requested",
            "*(const float4*)(x + i) reads 4 neighbours at once",
        ),
        (
            "float4 v = (float4*)(x + i);", "conversion from 'float4*' to non-scalar type 'float4' requested",
            "a * before it reads them",
        ),
        (
            "float4 v = *(float4*)x[i];", "invalid cast from type 'float' to type 'float4*'", "what is cast is a place",
        ),
        (
            "atomicAdd(mine[x[i]], 1);", "no matching function for call to 'atomicAdd(int&, int)'",
            "with a &: atomicAdd(&counts[v], 1)",
        ),
        ("syncthreads();", "'syncthreads' was not declared in this scope", "two _ before it"),
        ("__syncthreads;", "'__syncthreads' was not declared in this scope", "a barrier is called"),
        ("s += __shfl_down(s, d);", "'__shfl_down' was not declared in this scope", "__shfl_down_sync(0xffffffffu"),
        ("__shared__ float s[n];", "'float [n]' is a variably modified type", "known when the file is compiled"),
        (
            "sum += ta[y, i] * tb[i, x];", "invalid operands of types 'float [16]' and 'float [16]' to binary",
            "two indices are ta[y][i]",
        ),
        ("y[0] = std::exp(s);", "'exp' is not a member of 'std'; did you mean 'exp'?", "expf(...) is known here"),
        ("float m = -inf;", "'inf' was not declared in this scope; did you mean 'sinf'?", "it is INFINITY"),
        ("m = max(row);", "no matching function for call to 'max(const float*&)'", "no array"),
        ("y[i] = w", "expected ';' before '}' token", "a ; is missing"),
    ],
)  # fmt: skip
def test_what_the_compiler_refuses_is_told_in_plain_words(code: str, message: str, plain: str) -> None:
    assert plain in cuda_in_plain_words(message, code, code, 1)


def test_names_of_the_emulators_own_are_not_shown(tmp_path: Path) -> None:
    found = checked(tmp_path, "cuda-halo", ("    __syncthreads();\n", "    syncthreads();\n"))
    (message,) = found.messages
    assert message.line == 9 and "kw_" not in message.text and "__syncthreads(), with two _" in message.plain
    found = checked(tmp_path, "cuda-halo", ("float s[130];", "float s[130] = {};"))
    assert found.messages[0].line == 4 and "has no values where it is made" in found.messages[0].text


@pytest.mark.parametrize(
    ("text", "unset"),
    [
        ("float sum;", True), ("float sum[4];", True), ("__shared__ float s[4];", False), ("float sum = 0;", False),
        ("extern __shared__ float s[];", False), ("// float sum;", False), ("return n;", False),
    ],
)  # fmt: skip
def test_locals_without_a_value_are_found(text: str, unset: bool) -> None:
    assert has_unset_local(text) is unset
