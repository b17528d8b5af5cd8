"""What a search found, put into an op package: what is refused and why, what is written, and what a kill leaves as it
was."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pretended import PROBLEM, judgement
from typer.testing import CliRunner

from kernelworks.build import cpp
from kernelworks.build.cache import BuildError
from kernelworks.build.constants import Constants, constants_of, named_in, with_entry
from kernelworks.build.kernels import searched_kernel
from kernelworks.cli import app
from kernelworks.dispatch.certificates import Certificate, find_certificates
from kernelworks.dispatch.op import OPS
from kernelworks.judge.formats import op_packages
from kernelworks.machine import machine
from kernelworks.records import Verification, from_json, to_json
from kernelworks.records.search import BestCandidate, KeepResult, Search, SizeSpeedup, TriedCandidate
from kernelworks.search import keep as keeping
from kernelworks.search.keep import Change, NotKept, keepable
from kernelworks.search.loop import SHORT
from kernelworks.search.model.prompt import template
from kernelworks.search.our_kernels_cpp import constants_in, text_of
from kernelworks.search.space import space_in

PACKAGE = Path(keeping.__file__).parent.parent
TARGET = "avx2" if "avx2" in machine().features else "scalar"
LONG_S = 300.0  # a busy machine takes some of it

TABLE = """template = "pointwise"

[[config]]
op_kernel = "triton"
kernel = "forward"
set = { ROWS = 1 }
evidence = "measured"
"""
GRAIN = Constants({"simd/map.hpp": {"PAST_CACHE_BYTES": 4 << 20}}, ("-funroll-loops",))
SEEN = {"case": "1024x4096", "us": 12.5, "over_before": 1.1}


# ---------------------------------------------------------------- constants of an op package


def test_an_entry_is_put_in_its_place_and_nothing_else_changes() -> None:
    once = with_entry(TABLE, "avx2", GRAIN, [SEEN])
    assert once.startswith(TABLE)
    (entry,) = tomllib.loads(once)["constants"]
    assert entry == {
        "op_kernel": "avx2", "flags": ["-funroll-loops"], "set": {"simd/map.hpp": {"PAST_CACHE_BYTES": 4 << 20}},
        "measured": [SEEN],
    }  # fmt: skip
    other = with_entry(once, "avx512", Constants(flags=("-O2",)), [])
    again = with_entry(other, "avx2", Constants({"simd/map.hpp": {"PAST_CACHE_BYTES": 7}}), [])
    assert [(e["op_kernel"], e.get("set")) for e in tomllib.loads(again)["constants"]] == [
        ("avx512", None), ("avx2", {"simd/map.hpp": {"PAST_CACHE_BYTES": 7}}),
    ]  # fmt: skip
    assert again.startswith(TABLE) and tomllib.loads(again)["config"] == tomllib.loads(TABLE)["config"]


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The source of a kernel in a copy of its op package, and a cache of its own."""
    monkeypatch.setenv("KERNELWORKS_CACHE", str(tmp_path / "cache"))
    source = OPS["relu"].kernel(TARGET).source
    assert source is not None
    folder = tmp_path / "relu"
    shutil.copytree(source.parent, folder, ignore=shutil.ignore_patterns("__pycache__"))
    return folder / source.name


def test_what_is_otherwise_is_hashed_and_compiled(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = source.parent / "tuning.toml"
    as_it_lies = cpp.source_hash(source, TARGET)
    assert as_it_lies == cpp.source_hash(OPS["relu"].kernel(TARGET).source, TARGET)  # type: ignore[arg-type]

    def hashed(text: str) -> str:
        table.write_text(text, encoding="utf-8")
        cpp.source_hash.cache_clear()
        constants_of.cache_clear()
        return cpp.source_hash(source, TARGET)

    (file, its), *_ = named_in(source, cpp.SIMD).items()
    name, was = next(iter(its.items()))
    other = Constants({file: {name: 2 * was}}, ("-fno-tree-slp-vectorize",))
    kept = table.read_text(encoding="utf-8")
    changed = hashed(with_entry(kept, TARGET, other, [SEEN]))
    assert changed != as_it_lies
    assert changed == hashed(with_entry(kept, TARGET, other, []))  # what was measured is no part of a kernel
    assert as_it_lies == hashed(with_entry(kept, "another kernel", other, []))
    assert as_it_lies == hashed(kept)
    hashed(with_entry(kept, TARGET, other, []))
    commands: list[tuple[tuple[str, ...], str]] = []
    real = cpp.compile_source

    def watched(flags: tuple[str, ...], source: Path, label: str, output: Path) -> None:
        said = (source.parent / "simd" / Path(file).name if file.startswith("simd/") else source).read_text("utf-8")
        commands.append((flags, said))
        real(flags, source, label, output)

    monkeypatch.setattr(cpp, "compile_source", watched)
    library = cpp.build_library(source, TARGET)
    ((flags, said),) = commands
    assert "-fno-tree-slp-vectorize" in flags and f"{name} = {2 * was};" in said
    assert library.exists() and sorted(p.name for p in source.parent.iterdir() if "simd" in p.name) == []
    hashed(with_entry(kept, TARGET, Constants({"simd/nothing.hpp": {"GRAIN": 3}}), []))
    with pytest.raises(ValueError, match=r"constants names 'simd/nothing\.hpp'"):
        cpp.build_library(source, TARGET)
    with pytest.raises(ValueError, match="do not read"):
        hashed(kept + "\n[[constants]]\nset = 3\n")
    cpp.source_hash.cache_clear()
    constants_of.cache_clear()


def test_a_candidate_says_what_of_a_kernel_is_otherwise() -> None:
    source = text_of("relu")
    if source is None or TARGET == "scalar":  # the plain sources name no numbers
        return
    space = space_in(source)
    assert space is not None
    found = constants_in("relu", source)
    assert found is not None and found[1] == Constants() and found[1].text == ""
    name = next(n for n in space.choices if n not in ("TARGET", "FLAGS"))
    other = next(v for v in space.choices[name] if v != space.at[name])
    kernel, constants = constants_in("relu", space.text_at({**space.at, name: other, "FLAGS": "-O2"}))  # type: ignore[misc]
    assert kernel == space.at["TARGET"] and constants.flags == ("-O2",)
    assert [list(its.values()) for its in constants.numbers.values()] == [[other]]
    assert constants_in("relu", source + "\n# and something else\n") is None
    assert constants_in("relu", "def relu(x):\n    return x\n") is None


# ---------------------------------------------------------------- what is refused


def searched(code: str, *, outcome: str = "better", ambiguous: bool = False) -> Search:
    """A search whose best is that text."""
    best = judgement(ratio=2.0)
    again = dataclasses.replace(best, speeds=(dataclasses.replace(best.speeds[0], ambiguous=ambiguous),))
    one = TriedCandidate(2, "b", "parameters", ("a",), "c++", "", "right", "", 2.0, 1.96, 2.04, 1e-3, 1.0, True)
    return Search(
        problem="relu", format="op", store="", over="eager", threads=1, machine="", stopped="count", why="",
        outcome=outcome, candidates=(one,), best=BestCandidate(one, code, best, again), begun_with=1.0, by_proposer=(),
        judged=2, judged_now=2, seconds=1.0, cost_s=1.0, limit_s=None, peak="", flop=0.0, bytes=0.0, peaks=None,
        date="2026-01-01T00:00:00Z",
    )  # fmt: skip


@pytest.fixture
def other() -> str:
    """The best kernel of an op with another flag."""
    source = text_of("relu")
    assert source is not None
    space = space_in(source)
    assert space is not None
    return space.text_at({**space.at, "FLAGS": "-O2"})


@pytest.fixture
def kept(source: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Keeps a search's best in a copy of its op package, with measurements and a verification that are said
    beforehand."""
    op = OPS["relu"]
    monkeypatch.setattr(op, "op_package", source.parent)

    def run(found: Search, sizes: list[SizeSpeedup] | NotKept, verification: Any) -> Any:
        def measured(*_: Any) -> Any:
            if isinstance(sizes, NotKept):
                raise sizes
            yield from sizes

        def verified(name: str, change: Any, say: Any) -> Any:
            assert all(not path.exists() or path.read_text("utf-8") != text for path, text in change.files.items())
            if isinstance(verification, Exception):
                raise verification
            return verification

        monkeypatch.setattr(keeping, "_measured", measured)
        monkeypatch.setattr(keeping, "_verified", verified)
        return keeping.keep(found, op_packages.problem_of("relu"), budget=SHORT, peaks=None, say=lambda line: None)

    return run


QUICKER = [SizeSpeedup("1024x4096", 1.3, 1.25, 1.35, 2.0, 1e-4)]


@pytest.mark.parametrize(
    ("given", "sizes", "verification", "said"),
    [
        ({"outcome": "no better"}, QUICKER, None, "nothing was found that is better"),
        ({"ambiguous": True}, QUICKER, None, "the judge's word on its speed is ambiguous: 1.960 to 2.040 times"),
        ({}, NotKept("it is slower than the kernel as it is at 1x3072: 0.8 to 0.9 times"), None, "it is slower than"),
        ({}, QUICKER, NotKept("its verification fails: 3x5 float32: 1 is 2"), "its verification fails: 3x5"),
    ],
)
def test_what_is_refused_changes_nothing(
    given: dict[str, Any], sizes: Any, verification: Any, said: str, kept: Callable[..., Any], source: Path, other: str
) -> None:
    before = {path.name: path.read_bytes() for path in source.parent.iterdir() if path.is_file()}
    found = kept(searched(other, **given), sizes, verification)
    assert said in found.why and found.files == () and found.verification is None
    assert {path.name: path.read_bytes() for path in source.parent.iterdir() if path.is_file()} == before


def test_what_an_op_package_has_no_place_for_is_refused(kept: Callable[..., Any]) -> None:
    found = kept(searched("import torch\n\n\ndef relu(x):\n    return x.clamp(min=0)\n"), QUICKER, None)
    assert "it is in torch: an op package takes" in found.why and found.kernel == ""


def test_a_line_for_a_kernel_is_put_behind_the_op_of_every_package() -> None:
    packages = [path for path in PACKAGE.glob("ops/*/*/__init__.py") if "OP = " in path.read_text(encoding="utf-8")]
    assert len(packages) > 15
    for path in packages:
        text = path.read_text(encoding="utf-8")
        lines = keeping._with_kernel(text).splitlines()
        added = [line for line in lines if line not in text.splitlines()]
        assert added[0] == "from kernelworks.build.kernels import searched_kernel"
        assert added[1].startswith("OP.kernels = (searched_kernel(__file__, ") and len(added) == 2
        assert compile("\n".join(lines), str(path), "exec")
        before = lines[: lines.index(added[1])]
        assert any(line.startswith("OP = ") for line in before) and lines.index(added[0]) < len(before)


def test_a_package_may_have_a_searched_kernel(source: Path) -> None:
    text = "import torch\n\n\ndef relu(x):\n    return x.clamp(min=0)\n"
    (source.parent / "searched.py").write_text(text, encoding="utf-8")
    kernel = searched_kernel(str(source.parent / "__init__.py"), TARGET)
    x, out = torch.randn(5, 7), torch.empty(5, 7)
    assert kernel.load("forward")(x, out=out) is out and torch.equal(out, torch.relu(x))
    assert kernel.passes == ("forward",) and kernel.hash() and kernel.differs()
    assert sorted(path.name for path in source.parent.iterdir() if path.suffix in (".so", ".pyc")) == []
    broken = source.parent.parent / "broken" / "relu"
    broken.mkdir(parents=True)
    (broken / "searched.py").write_text("raise RuntimeError('g++ says no')\n", encoding="utf-8")
    with pytest.raises(BuildError, match="RuntimeError: g\\+\\+ says no"):
        searched_kernel(str(broken / "__init__.py"), TARGET).load("forward")


def test_only_an_op_package_can_be_written_and_only_by_who_may(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"keep takes an op of ours.*got twice, a problem in the format kernelbench"):
        keepable(PROBLEM)
    monkeypatch.setattr(keeping.os, "access", lambda *_: False)
    with pytest.raises(ValueError, match="which this user may not"):
        keepable(op_packages.problem_of("relu"))


def test_a_file_that_cannot_be_written_leaves_those_before_it_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_text("was", encoding="utf-8")
    (tmp_path / "c").write_text("a file, no folder", encoding="utf-8")
    with pytest.raises(OSError):
        keeping._write({tmp_path / "a": "is", tmp_path / "b": "is", tmp_path / "c" / "d": "is"})
    assert (tmp_path / "a").read_text(encoding="utf-8") == "was"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "c"]


# ---------------------------------------------------------------- what is written


def test_what_is_verified_is_written_with_what_was_measured(kept: Callable[..., Any], source: Path, other: str) -> None:
    kernel = constants_in("relu", other)[0]  # type: ignore[index]
    verification = Verification("relu", kernel, machine().kind, 40, 0.0, "", (), 6, 6, {"parity": True}, 1.0, False)
    certificate = Certificate("relu", kernel, "a hash", "g++", machine().kind, 40, 0.0, 6, "2026-01-01")
    before = (source.parent / "tuning.toml").read_text(encoding="utf-8")
    found = kept(searched(other), QUICKER, (verification, certificate))
    assert (
        found.why == "" and found.verification == verification and found.files == (str(source.parent / "tuning.toml"),)
    )
    text = (source.parent / "tuning.toml").read_text(encoding="utf-8")
    assert text.startswith(before)
    (entry,) = tomllib.loads(text)["constants"]
    (seen,) = entry["measured"]
    assert (entry["op_kernel"], entry["flags"], "set" in entry) == (kernel, ["-O2"], False)
    assert (seen["case"], seen["us"], seen["over_before"], seen["over_eager"]) == ("1024x4096", 100.0, 1.3, 2.0)
    assert seen["cpu"] == machine().name and seen["threads"] == 1
    assert certificate in find_certificates("relu", kernel)


@pytest.mark.parametrize(
    ("why", "code", "said"),
    [
        ("", 0, "relu.avx2: 1.30x (1024x4096) over the kernel as it was; verified by"),
        ("its verification fails", 1, "nothing was: its verification fails"),
    ],
)
def test_what_came_of_it_is_said_and_is_the_exit_code(
    why: str, code: int, said: str, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = KeepResult("relu", "avx2", () if why else ("tuning.toml",), tuple(QUICKER), None, why)
    given: dict[str, Any] = {}
    made = dataclasses.replace(searched(other), kept=kept)
    package = importlib.import_module("kernelworks.search")  # by its name it is the verb
    monkeypatch.setattr(package, "search", lambda *_, **more: given.update(more) or made)
    result = CliRunner().invoke(app, ["search", "relu", "--keep", "--workers", "3"])
    assert result.exit_code == code and given["keep"] is True and given["workers"] == 3
    assert said in " ".join(result.stdout.split())
    assert from_json(Search, to_json(made)) == made


# Keeps a search's best, of a copy of the package whose folder comes first on the path, in a process of its own.
CODE = """
import json, sys
from kernelworks.judge.formats import op_packages
from kernelworks.dispatch.op import OPS
from kernelworks.records import from_json, to_json
from kernelworks.search import keep
from kernelworks.records.search import Search, SizeSpeedup

assert keep.__file__.startswith(sys.argv[1])
size = SizeSpeedup("1024x4096", 1.3, 1.25, 1.35, 2.0, 1e-4)
keep._measured = lambda *_: [size]
found = from_json(Search, open(sys.argv[2]).read())
def say(line):
    print(line, file=sys.stderr, flush=True)


kept = keep.keep(found, op_packages.problem_of("relu"), budget=None, peaks=None, say=say)
print(to_json(kept))
"""


class Copied:
    """A copy of the package, in which a search's best is kept."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.cache = folder / "src", folder / "cache"
        shutil.copytree(PACKAGE, self.folder / "kernelworks", ignore=shutil.ignore_patterns("__pycache__"))
        self.package = self.folder / "kernelworks" / OPS["relu"].op_package.relative_to(PACKAGE)

    def files(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.package.iterdir() if path.is_file()}

    def start(self, code: str, *more: str) -> subprocess.Popen[str]:
        paths = os.pathsep.join((str(self.folder), *(path for path in sys.path if path)))
        known = {**os.environ, "PYTHONPATH": paths, "KERNELWORKS_CACHE": str(self.cache)}
        return subprocess.Popen(
            [sys.executable, "-c", code, str(self.folder), *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, env=known, cwd=self.folder,
        )  # fmt: skip

    def keeps(self, best: str) -> subprocess.Popen[str]:
        found = self.folder / "found.json"
        found.write_text(to_json(searched(best)), encoding="utf-8")
        return self.start(CODE, str(found))


@pytest.fixture
def copied(tmp_path: Path) -> Copied:
    return Copied(tmp_path)


def test_a_kernel_that_does_not_compile_has_no_verification_and_the_package_is_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELWORKS_CACHE", str(tmp_path))
    package = OPS["relu"].op_package
    before = {path.name: path.read_bytes() for path in package.iterdir() if path.is_file()}
    entry = with_entry(TABLE, TARGET, Constants(flags=("-fno-such-flag",)), [])
    with pytest.raises(NotKept, match=r"(?s)its verification came to no end: .*no-such-flag"):
        keeping._verified("relu", Change(TARGET, {package / "tuning.toml": entry}), lambda line: None)
    assert {path.name: path.read_bytes() for path in package.iterdir() if path.is_file()} == before


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Whole verifications take half a minute each."""
    if "verifications" in metafunc.fixturenames:
        metafunc.parametrize("verifications", ["whole"] if metafunc.config.getoption("--all") else [])


def test_a_kernel_with_another_flag_is_verified_and_kept(copied: Copied, other: str, verifications: str) -> None:
    kernel = constants_in("relu", other)[0]  # type: ignore[index]
    out, errors = copied.keeps(other).communicate(timeout=2 * LONG_S)
    kept = json.loads(out)
    assert kept["why"] == "" and kept["verification"]["cases"] > 20 and not kept["verification"]["failures"], errors
    assert (
        tomllib.loads((copied.package / "tuning.toml").read_text(encoding="utf-8"))["constants"][0]["op_kernel"]
        == kernel
    )
    asked = "from kernelworks.dispatch import certificates; from kernelworks.dispatch.op import OPS; "
    asked += f"op_kernel = OPS['relu'].kernel({kernel!r}); "
    asked += "print(certificates.invalid_reason('relu', op_kernel), op_kernel.load('forward'))"
    out, errors = copied.start(asked).communicate(timeout=LONG_S)
    assert out.startswith("None "), out + errors


KERNEL = (
    template("in_cpp").template.split("```python\n")[1].split("```")[0].replace("2.0f * x[i]", "x[i] < 0 ? 0 : x[i]")
)
KERNEL += "\n\ndef relu(x):\n    return run(x.float()).to(x.dtype)\n"


def test_a_kernel_in_cpp_is_verified_and_becomes_the_ops(copied: Copied, verifications: str) -> None:
    out, errors = copied.keeps(KERNEL).communicate(timeout=2 * LONG_S)
    kept = json.loads(out)
    assert kept["why"] == "" and kept["kernel"] == "searched" and kept["verification"]["cases"] > 20, errors
    assert KERNEL in (copied.package / "searched.py").read_text(encoding="utf-8")
    asked = "import torch, kernelworks as kw; from kernelworks.dispatch import certificates; "
    asked += "from kernelworks.dispatch.op import OPS; "
    asked += "x = torch.randn(9); assert torch.equal(kw.relu(x, kernel='searched'), torch.relu(x)); "
    asked += "print(certificates.invalid_reason('relu', OPS['relu'].kernel('searched')))"
    out, errors = copied.start(asked).communicate(timeout=LONG_S)
    assert out == "None\n", out + errors


def test_a_kernel_for_one_dtype_is_refused_by_its_verification(copied: Copied, verifications: str) -> None:
    before = copied.files()
    out, errors = copied.keeps(KERNEL.replace("run(x.float())", "run(x)")).communicate(timeout=2 * LONG_S)
    assert "its verification fails" in json.loads(out)["why"], errors
    assert copied.files() == before


def test_a_kill_while_it_is_verified_leaves_all_as_it_was(copied: Copied, other: str, verifications: str) -> None:
    before = copied.files()
    with copied.keeps(other) as process:
        assert process.stderr is not None
        assert any(line.startswith("verification: ") for line in process.stderr)
        process.send_signal(signal.SIGKILL)
    time.sleep(1.0)
    assert copied.files() == before and not list(copied.cache.rglob("relu.*.json"))
