"""What a kernel's hash covers: everything that launches it and nothing else, over every kernel of every op.

Files are changed in memory (``Files``): a token in each function that a kernel reaches, and then its hash is another
one; prose, layout and strangers, and then it is the same.
"""

from __future__ import annotations

import ast
import collections
import functools
import io
import json
import math
import re
import shutil
import subprocess
import sys
import tokenize
import types
from pathlib import Path
from typing import Any

import pytest

from kernelworks.build import launch_code
from kernelworks.build.cpp_text import bare
from kernelworks.build.kernels import searched_kernel
from kernelworks.build.launch_code import FORMAT, OUTSIDE, Walk, walk_kernel
from kernelworks.build.source_index import FILES, PACKAGE, Files
from kernelworks.build.source_units import ParsedUnit
from kernelworks.contract import Kernel
from kernelworks.dispatch import certificates
from kernelworks.dispatch.op import OPS

KERNELS = {f"{op.name}.{r.name}": r for op in OPS.values() for r in op.kernels if r.source is not None}
SEARCHED = PACKAGE / "ops" / "activation" / "relu" / "searched.py"
FOUND = (
    '"""Found by a search."""\nimport torch\n\nTEXT = "int x;  // a comment that is compiled"\n\n\n'
    "def relu(x):\n    return torch.relu(x) + 0\n"
)


def of(kernel: Kernel, changed: dict[Path, bytes] | None = None) -> str:
    walk = walk_kernel(kernel, Files(changed, FILES))
    return launch_code._digest(walk)


@pytest.fixture(scope="module")
def walks() -> dict[str, Walk]:
    files = Files({SEARCHED: FOUND.encode()})
    kernels = KERNELS | {"relu.searched": searched_kernel(str(SEARCHED), "scalar")}
    return {name: walk_kernel(kernel, files) for name, kernel in kernels.items()}


def unit_of(walk: Walk, module: str, unit: int) -> ParsedUnit:
    index = walk.files.index(module)
    assert index is not None
    return ParsedUnit(index["units"][unit])


Place = tuple[int, int, int, bytes]  # line, first column, end, what stands there instead


def places(data: bytes, walk: Walk, module: str, unit: int) -> list[Place]:
    """Names, attributes and numbers of a unit, but for what no launch reads: annotations, what is imported. Of a class
    those without its members, which are units of their own."""
    its = unit_of(walk, module, unit)
    members = [unit_of(walk, module, member).place for member in its.methods.values()]
    return [
        place
        for place in all_places(data)
        if its.place[:2] <= place[:2] <= its.place[2:]
        and not any(member[:2] <= place[:2] <= member[2:] for member in members)
    ]


@functools.cache
def all_places(data: bytes) -> list[Place]:
    nodes = list(ast.walk(ast.parse(data)))
    unread = [said for node in nodes for name in ("annotation", "returns") if (said := getattr(node, name, None))]
    skipped = {id(inner) for said in unread for inner in ast.walk(said)}
    found = []
    for node in nodes:
        line, end = getattr(node, "lineno", 0), getattr(node, "end_col_offset", 0)
        if id(node) in skipped or getattr(node, "end_lineno", 0) != line:
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            found.append((line, node.col_offset, end, f"{node.id}_".encode()))
        elif isinstance(node, ast.Attribute):
            found.append((line, end - len(node.attr), end, f"{node.attr}_".encode()))
        elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
            found.append((line, node.col_offset, end, repr(node.value + 1).encode()))
    return list(dict.fromkeys(found))


def changed_at(data: bytes, place: Place) -> bytes:
    lines = data.splitlines(keepends=True)
    line, begin, end, instead = place
    lines[line - 1] = lines[line - 1][:begin] + instead + lines[line - 1][end:]
    return b"".join(lines)


# ---------------------------------------------------------------- what is covered


def test_nothing_that_a_kernel_reaches_is_left_unread(walks: dict[str, Walk]) -> None:
    unread = {name: walk.unread for name, walk in walks.items() if walk.unread}
    assert not unread


def test_hashes_are_of_one_kernel_each_and_the_same_again() -> None:
    first = {name: of(kernel) for name, kernel in KERNELS.items()}
    assert first == {name: kernel.hash() for name, kernel in KERNELS.items()}
    assert len(set(first.values())) == len(first)


def users_of(walks: dict[str, Walk]) -> dict[str, dict[int, list[str]]]:
    """Module -> unit -> the kernels that reach it."""
    found: dict[str, dict[int, list[str]]] = {}
    for name, walk in walks.items():
        for module, unit in walk.reached:
            found.setdefault(module, {}).setdefault(unit, []).append(name)
    return found


def test_a_token_in_any_function_that_a_kernel_reaches_changes_what_it_says(
    walks: dict[str, Walk], request: pytest.FixtureRequest
) -> None:
    """All functions of a file at once: each must be seen to say another thing. One token of each, two by ``--all``."""
    turns = 2 if request.config.getoption("--all") else 1
    blind, asked = [], 0
    for module, units in users_of(walks).items():
        path = FILES.path_of(module)
        assert path is not None
        data = path.read_bytes()
        for turn in range(turns):
            taken: dict[int, Place] = {}
            for unit in units:
                walk = walks[units[unit][0]]
                found = [p for p in places(data, walk, module, unit) if p not in taken.values()]
                if found:
                    taken[unit] = found[(unit + turn) % len(found)]
            mutated = data
            for place in sorted(taken.values(), reverse=True):
                mutated = changed_at(mutated, place)
            index = Files({path: mutated}, FILES).index(module)
            assert index is not None
            for unit, place in taken.items():
                asked += 1
                was, now = unit_of(walks[units[unit][0]], module, unit), ParsedUnit(index["units"][unit])
                if (was.text, was.refs) == (now.text, now.refs):
                    blind.append(f"{path.relative_to(PACKAGE)}:{place[0]} {place[3].decode()}")
    assert asked > 500 * turns
    assert not blind


def test_a_token_in_any_file_that_a_kernel_reaches_changes_its_hash(
    walks: dict[str, Walk], request: pytest.FixtureRequest
) -> None:
    """One function's token of every module: with three of the kernels that reach it, with all by ``--all``."""
    whole = request.config.getoption("--all")
    blind, asked, times = [], set(), collections.Counter[str]()
    kernels = KERNELS | {"relu.searched": searched_kernel(str(SEARCHED), "scalar")}
    for module, units in users_of(walks).items():
        path = FILES.path_of(module)
        assert path is not None
        data = path.read_bytes()
        left = {name for names in units.values() for name in names}
        if not whole:
            fewest_asked = sorted(left, key=lambda name: (times[name], name))
            left = set(fewest_asked[:3])
        for unit, names in units.items():
            found = places(data, walks[names[0]], module, unit) if left & set(names) else []
            if not found:
                continue
            files = Files({path: changed_at(data, found[unit % len(found)]), SEARCHED: FOUND.encode()}, FILES)
            for name in sorted(left & set(names)):
                asked.add((name, module))
                times[name] += 1
                if launch_code._digest(walk_kernel(kernels[name], files)) == launch_code._digest(walks[name]):
                    blind.append(f"{name}: {path.relative_to(PACKAGE)} {found[unit % len(found)]}")
            left -= set(names)
    names = {name for name, _ in asked}
    packages = [{OPS[name.partition(".")[0]].op_package for name in some} for some in (names, kernels)]
    assert packages[0] == packages[1] and (names == set(kernels) and len(asked) > 600 if whole else len(asked) > 200)
    assert not blind


def test_a_token_in_any_source_changes_the_hash(walks: dict[str, Walk]) -> None:
    """C++ and CUDA C++, headers too. Where a walk's text holds the digest of the source, that digest is asked beyond
    one whole walk for each kind of file; a kernel that is made of others holds their hashes instead."""
    from kernelworks.build.sources import with_includes

    users: dict[Path, list[tuple[str, Path]]] = {}  # whose walks hold it
    unheld: dict[Path, list[str]] = {}
    of_source = {source: FILES.source(source) for walk in walks.values() for source in walk.sources}
    for name, walk in walks.items():
        for source in walk.sources:
            shared = PACKAGE / ("tile" if source.suffix == ".cu" else "simd")
            for path in with_includes(source, shared):
                if of_source[source] in walk.text:
                    users.setdefault(path, []).append((name, source))
                else:
                    unheld.setdefault(path, []).append(name)
    assert len(unheld) < len(users)
    assert {path.suffix for path in users} == {".cpp", ".hpp", ".cu", ".cuh"}
    blind, walked = [], set[str]()
    for path in users | unheld:
        its = users.get(path, [])
        whole = {name for name in unheld.get(path, [])[-1:] if not its}
        if path.suffix not in walked:
            whole |= {next(name for name, _ in its if name in KERNELS), *unheld.get(path, [])[-1:]}
        text = path.read_text(encoding="utf-8")
        number = r"\s*(return|if|for|const|auto)\b.*\d;?"
        lines = [n for n, line in enumerate(text.splitlines()) if re.match(number, line)]
        for at in lines[:: max(1, len(lines) // 2)][:2]:
            said = text.splitlines()
            said[at] = re.sub(r"(\d)(?=\D*$)", lambda m: str((int(m[1]) + 1) % 10), said[at].split("//")[0])
            if bare("\n".join(said)) == bare(text):  # it stands in a comment
                continue
            files = Files({path: "\n".join(said).encode()}, FILES)
            same = [name for name, source in {*its[:1], *its[-1:]} if files.source(source) == of_source[source]]
            same += [n for n in whole if launch_code._digest(walk_kernel(KERNELS[n], files)) == KERNELS[n].hash()]
            blind += [f"{name}: {path.name}:{at + 1}" for name in same]
            whole, walked = set(), walked | {path.suffix}
    assert not blind


def other(value: Any) -> Any:
    """Another value of the kind."""
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, (int, float)):
        return value + 1
    if isinstance(value, str):
        return f"{value}_"
    if isinstance(value, tuple):
        return (*value, 7)
    if isinstance(value, dict):
        return {**value, "another": 7}
    return "another"


def test_a_value_that_a_launch_holds_is_part_of_the_hash(
    walks: dict[str, Walk], request: pytest.FixtureRequest
) -> None:
    """Of an object's field, of a closure's cell: these are said by no function's text. Three kernels are asked of
    each field or cell of each class or function, all by ``--all``."""
    most = math.inf if request.config.getoption("--all") else 3
    blind, asked = [], collections.Counter[tuple[str, str]]()
    kept = {name: kernel.hash() for name, kernel in KERNELS.items()}  # a process remembers it: before any change
    for name, kernel in KERNELS.items():
        for holder, held in walks[name].held:
            cell = cell_of(holder, held)
            before = cell.cell_contents if cell else getattr(holder, held)
            if isinstance(before, Kernel) or "/" in str(before):
                continue  # another kernel, which has a hash of its own; where a file lies
            owner = holder if isinstance(holder, types.FunctionType) else type(holder)
            place = (f"{owner.__module__}.{owner.__qualname__}", held)
            if asked[place] == most:
                continue
            asked[place] += 1
            try:
                put(holder, held, other(before))
                same = of(kernel) == kept[name]
            finally:
                put(holder, held, before)
            if same:
                blind.append(f"{name}: {held} of {holder}")
    assert len({held for _, held in asked}) > 5
    assert not blind


def cell_of(holder: Any, name: str) -> Any:
    if not isinstance(holder, types.FunctionType):
        return None
    return dict(zip(holder.__code__.co_freevars, holder.__closure__ or (), strict=True))[name]


def put(holder: Any, name: str, value: Any) -> None:
    cell = cell_of(holder, name)
    if cell is not None:
        cell.cell_contents = value
    else:
        object.__setattr__(holder, name, value)


def test_what_launches_and_lies_elsewhere_is_reached(walks: dict[str, Walk]) -> None:
    def kernels_of(module: str, name: str) -> set[str]:
        index = FILES.index(f"kernelworks.{module}")
        assert index is not None and index["names"][name]
        units = map(int, index["names"][name].split())
        wanted = {(f"kernelworks.{module}", unit) for unit in units}
        return {kernel for kernel, walk in walks.items() if not wanted.isdisjoint(walk.reached)}

    fused = {"linear_add.sm90", "linear_gelu.sm90", "linear_silu_mul.sm90", "rms_norm_linear.sm90"}
    assert kernels_of("ops.linear.linear.epilogue", "multiply") == fused
    along = {"sum.triton", "argmax.triton", "argmin.triton", "argmax.triton_columns", "argmin.triton_columns"}
    assert along == kernels_of("templates.reduction", "triton_forward")
    gpu = {name for name, kernel in KERNELS.items() if kernel.device == "cuda"}
    assert kernels_of("build.launcher", "check_status") == gpu
    assert all(PACKAGE / "build" / "launch.cpp" in walks[name].sources for name in gpu)
    assert {name for name in gpu if KERNELS[name].target == "sm_90a"} <= kernels_of("build.series", "make_replay")
    assert kernels_of("build.sharing", "choose_threads") <= set(KERNELS) - gpu


# What chooses, records, measures or explains is no launch code; nor is what makes a library of a source.
NOT_LAUNCHED = (
    r"(dispatch\.(autograd|certificates|choose|entry|plans|tuning_records)|contract\.cases|cli|profile|verify|measure|"
    r"diagnose|judge|search|report|build\.(cache|compiler|cpp|loading|constants))\b"
)


def test_the_walk_stops_at_what_launches_nothing(walks: dict[str, Walk]) -> None:
    reached = {module.removeprefix("kernelworks.") for walk in walks.values() for module, _ in walk.reached}
    assert not [module for module in reached if re.match(NOT_LAUNCHED, module)]
    for module, names in OUTSIDE.items():
        index = FILES.index(f"kernelworks.{module}")
        assert index is not None and all(name in index["names"] for name in names), module


# ---------------------------------------------------------------- what is not


def with_other_prose(data: bytes) -> bytes:
    """A comment behind every line that ends a statement, and other docstrings; lines stay where they are."""
    lines = data.decode().splitlines()
    for node in ast.walk(ast.parse(data)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            for at in range(node.lineno, node.end_lineno or 0):
                lines[at - 1] = re.sub(r"[a-z]", "q", lines[at - 1]) if "\\" not in lines[at - 1] else lines[at - 1]
    changed = "\n".join(lines) + "\n"
    for token in reversed(list(tokenize.generate_tokens(io.StringIO(changed).readline))):
        if token.type == tokenize.NEWLINE and "#" not in token.line:
            at = token.end[0] - 1
            lines[at] += "  # other words"
    return ("\n".join(lines) + "\n\n\ndef a_stranger(x: int) -> int:\n    return x + 1\n").encode()


def test_searched_kernels_count_whole_but_for_prose() -> None:
    kernel = searched_kernel(str(SEARCHED), "scalar")

    def hashed(text: str) -> str:
        return of(kernel, {SEARCHED: text.encode()})

    assert hashed(FOUND) == hashed(FOUND.replace("Found by", "Made by") + "# a comment\n")
    assert len({hashed(FOUND), hashed(FOUND.replace("+ 0", "+ 1")), hashed(FOUND.replace("a comment", "another"))}) == 3


RENAMED = {  # packages and modules, as a project might call them another day
    r"\bkernelworks\.templates\b": "kernelworks.shapes", r"\bkernelworks\.tile\b": "kernelworks.device",
    r"\bbuild\.series\b": "build.recorded", r"\bbuild\.replay\b": "build.replaying",
    r"\bfrom kernelworks\.build import cuda, series\b": "from kernelworks.build import cuda, recorded as series",
    r"\blinear\.epilogue\b": "linear.tiled", r'"tile"': '"device"',
}  # fmt: skip
MOVED = {
    "templates": "shapes", "tile": "device", "build/series.py": "build/recorded.py",
    "build/replay.py": "build/replaying.py",
    "ops/linear/linear/epilogue.py": "ops/linear/linear/tiled.py",
}  # fmt: skip
ASKED = (
    "import json, kernelworks\nfrom kernelworks.dispatch.op import OPS\n"
    "print(json.dumps({f'{o.name}.{r.name}': r.hash() for o in OPS.values() for r in o.kernels if r.source}))"
)


def test_prose_strangers_places_and_names_change_no_hash(walks: dict[str, Walk], tmp_path: Path) -> None:
    """All at once, so that all files are read anew once: comments, docstrings and a function more in each that a kernel
    reaches, files that lie elsewhere and are called otherwise."""
    copy = tmp_path / "kernelworks"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for module in {module for name in KERNELS for module, _ in walks[name].reached}:
        path = FILES.path_of(module)
        assert path is not None
        changed = with_other_prose(path.read_bytes())
        assert changed != path.read_bytes()
        (copy / path.relative_to(PACKAGE)).write_bytes(changed)
    for path in copy.rglob("*"):
        if path.suffix in (".cpp", ".hpp", ".cu", ".cuh"):
            said = path.read_text(encoding="utf-8").replace("// ", "/* */ // other words: ")
            path.write_text(f"// a line more\n\n{said}".replace("\n\n", "\n /* and\n more */ \n"), encoding="utf-8")
    for place, to in MOVED.items():
        (copy / place).rename(copy / to)
    for path in copy.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for pattern, to in RENAMED.items():
            text = re.sub(pattern, to, text)
        path.write_text(text, encoding="utf-8")
    for path in [*copy.rglob("*.cuh"), *copy.rglob("*.cu")]:
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace('"hopper.cuh"', '"waiting.cuh"'), encoding="utf-8")
    (copy / "device" / "hopper.cuh").rename(copy / "device" / "waiting.cuh")
    environment = {"PYTHONPATH": str(tmp_path), "KERNELWORKS_CACHE": str(tmp_path / "cache"), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-c", ASKED], capture_output=True, text=True, cwd=tmp_path, env=environment, check=False
    )
    assert not done.returncode, done.stderr[-3000:]
    assert json.loads(done.stdout) == {name: kernel.hash() for name, kernel in KERNELS.items()}


# ---------------------------------------------------------------- what is kept


@pytest.mark.parametrize("damage", ["truncated", "altered", "empty", "another's", "no folder"])
def test_what_is_kept_of_a_file_is_never_believed_blindly(
    damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = KERNELS["sum.avx2"]
    monkeypatch.setenv("KERNELWORKS_CACHE", str(tmp_path))
    right = launch_code._digest(walk_kernel(kernel, Files()))
    kept = sorted((tmp_path / "launching").glob("*.json"))
    texts = [path.read_bytes() for path in kept]
    assert len(kept) > 5
    for number, path in enumerate(kept):
        match damage:
            case "truncated":
                path.write_bytes(texts[number][: len(texts[number]) // 2])
            case "altered":
                path.write_bytes(texts[number].replace(b"0", b"1"))
            case "empty":
                path.write_bytes(b"")
            case "another's":
                path.write_bytes(texts[number - 1])
    if damage == "no folder":
        shutil.rmtree(tmp_path / "launching")
        (tmp_path / "launching").write_text("")
    assert launch_code._digest(walk_kernel(kernel, Files())) == right
    if damage != "no folder":
        assert [path.read_bytes() for path in kept] == texts


def test_a_certificate_of_another_format_says_why_it_is_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = KERNELS["rms_norm.avx2"]
    record: dict[str, Any] = {
        "op": "rms_norm", "kernel": "avx2", "source_hash": kernel.hash(), "toolchain": kernel.toolchain(),
        "kind": "here", "cases": 1, "worst": 0.5, "mutants_rejected": 1, "date": "2026-01-01",
    }  # fmt: skip

    def reason(**more: Any) -> str:
        monkeypatch.setattr(certificates, "find_certificates", lambda *args: [certificates._read(record | more)])
        return certificates.invalid_reason("rms_norm", kernel, "here") or ""

    assert not reason(format=FORMAT)
    assert "format 1, which left out the code that launches a kernel; run `kernelworks verify" in reason()
    assert "which this version does not know" in reason(format=FORMAT + 1)
    assert "the source changed" in reason(format=FORMAT, source_hash="0" * 64)
    with pytest.raises(ValueError, match="not a int"):
        certificates._read(record | {"format": "2"})
