"""Builds that fail, hang, lie or die: torch's function runs instead, the fault is said once and paid for once."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import signal
import struct
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import Any

import forked
import pytest
from compilers import compiler

from kernelworks.build import BuildError, cpp
from kernelworks.build import compiler as compiler_runs
from kernelworks.build.loading import unfit

# As verified: only the build stands between the calls and the kernels.
VERIFIED = """
from kernelworks.dispatch import certificates
certificates.invalid_reason = lambda op, kernel, kind=None: kernel.toolchain() and None
"""

CALLS = (
    VERIFIED
    + """
import json, time, warnings, torch
import kernelworks as kw
from kernelworks.diagnose.explain import explain
start = time.monotonic()
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    right = all(
        torch.allclose(kw.softmax(x), torch.softmax(x, -1), atol=1e-6)
        for x in (torch.randn(3, n) for n in (8, 9, 10, 11, 12))
    )
    x = torch.randn(3, 8)
    right = right and torch.allclose(kw.gelu(x, approximate="none"), torch.nn.functional.gelu(x), atol=1e-5)
seconds = time.monotonic() - start
found = explain("softmax", x, dim=-1)
mine = [str(w.message) for w in caught if "kernelworks" in str(w.message)]
print(json.dumps([right, found.kernel, dict(found.declined), mine, seconds]))
"""
)

SOURCE = '#include "kernel.hpp"\nKW_EXPORT(answer) { args.tensor(0).ptr<float>()[0] = 42.0f; }\n'
LOAD = """
import sys, torch
from pathlib import Path
from kernelworks.build import BuildError, library
try:
    x = torch.zeros(1)
    library(Path(sys.argv[1]), "scalar").answer(x)
    print(x.item())
except BuildError as error:
    print("BuildError:", str(error).splitlines()[0])
"""


def tries(log: Path) -> int:
    return len(log.read_text().splitlines())


FAULTS = {
    "fails": ("echo broken >&2; exit 1", "broken"),
    "hangs": ("sleep 600 & sleep 600", "in 1 s"),
    "writes nothing": ("exit 0", "cannot compile a function of one line"),
    "cannot be run": ("", "could not run"),
    "writes junk": ('echo junk > "$out"', "it is no ELF file"),
}


@pytest.mark.parametrize(("fault", "folder"), [*((fault, "kept") for fault in FAULTS), ("fails", "cache")])
def test_a_broken_compiler_is_tried_once_and_said_once(fault: str, folder: str, tmp_path: Path) -> None:
    """... whatever the cache's path is called, and not again in the next process."""
    body, text = FAULTS[fault]
    path, log = compiler(tmp_path, body, "fake-cxx")
    if fault == "cannot be run":
        Path(path).write_text("#!/no/such/interpreter\n")
    most = "1" if fault == "hangs" else "60"  # the others end by themselves, however busy the machine
    env = {"KERNELWORKS_CXX": path, "KERNELWORKS_CACHE": str(tmp_path / folder), "KERNELWORKS_COMPILE_SECONDS": most}
    asked = []
    for _ in range(2):
        done = forked.python(code=CALLS, **env)
        assert done.returncode == 0, done.stderr
        right, kernel, declined, said, seconds = json.loads(done.stdout)
        assert right and kernel == "torch"
        assert len(said) == 1 and "runs its 'torch' kernel" in said[0] and text in said[0]
        assert any(text in reason for reason in declined.values())
        asked.append(tries(log))
        assert seconds < 60  # a compiler that hangs sleeps for ten minutes, and is not waited for
    assert asked[0] == asked[1] <= 2  # the first source, and a function of one line to tell whose fault it is
    assert not list((tmp_path / folder).rglob(".building-*"))


def test_a_hanging_compiler_is_killed_with_all_that_it_started(tmp_path: Path) -> None:
    path, _ = compiler(tmp_path, f"sleep 600 &\necho $! >> {tmp_path}/pids; echo $$ >> {tmp_path}/pids; wait")
    env = {"KERNELWORKS_CXX": path, "KERNELWORKS_CACHE": str(tmp_path / "c"), "KERNELWORKS_COMPILE_SECONDS": "1"}
    forked.python(code=CALLS, **env)
    pids = [int(word) for word in (tmp_path / "pids").read_text().split()]
    assert pids
    for pid in pids:
        state = Path(f"/proc/{pid}/stat")
        assert not state.exists() or state.read_text().rsplit(")", 1)[1].split()[0] == "Z"


def test_a_repaired_compiler_is_tried_again(tmp_path: Path) -> None:
    op_package = tmp_path / "op_package"
    op_package.mkdir()
    source = op_package / "answer.cpp"
    source.write_text(SOURCE)
    path, log = compiler(tmp_path, "echo broken >&2; exit 1")
    env = {"KERNELWORKS_CXX": path, "KERNELWORKS_CACHE": str(tmp_path / "c")}
    first = forked.python(str(source), code=LOAD, **env).stdout
    assert first.startswith("BuildError: the C++ compiler does not work")
    tried = tries(log)
    assert "does not work" in forked.python(str(source), code=LOAD, **env).stdout
    assert tries(log) == tried
    compiler(tmp_path, 'exec g++ "$@"')
    assert forked.python(str(source), code=LOAD, **env).stdout == "42.0\n"


def test_verify_tries_again_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kernelworks.build.cache import failure, forget_failures, remember

    monkeypatch.setenv("KERNELWORKS_CACHE", str(tmp_path))
    remember("x", BuildError("once", lasting=True))
    known = failure("x")
    assert known is not None and "once" in str(known)
    forget_failures()
    assert failure("x") is None
    remember("x", BuildError("out of memory"))  # what may pass by itself is not kept
    assert failure("x") is None


def test_a_source_at_fault_takes_no_other_with_it(tmp_path: Path) -> None:
    """gcc too old for one flag, say: the compiler works, so other sources are compiled, and this one is not again."""
    path, log = compiler(tmp_path, 'case "$*" in *softmax*) echo no >&2; exit 1;; *) exec g++ "$@";; esac')
    env = {"KERNELWORKS_CXX": path, "KERNELWORKS_CACHE": str(tmp_path / "c")}
    op_package = tmp_path / "op_package"
    op_package.mkdir()
    good, bad = op_package / "answer.cpp", op_package / "softmax.cpp"
    for source in (good, bad):
        source.write_text(SOURCE)
    assert forked.python(str(bad), code=LOAD, **env).stdout.startswith("BuildError: ")
    assert forked.python(str(good), code=LOAD, **env).stdout == "42.0\n"
    tried = tries(log)
    assert "could not compile op_package/softmax.cpp" in forked.python(str(bad), code=LOAD, **env).stdout
    assert tries(log) == tried


# ---------------------------------------------------------------- libraries that will not load


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("whole")
    (folder / "op_package").mkdir()
    source = folder / "op_package" / "answer.cpp"
    source.write_text(SOURCE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERNELWORKS_CACHE", str(folder / "c"))
        return cpp.build_library(source, "scalar").read_bytes()


def _damaged(whole: bytes, damage: str) -> bytes:
    match damage:
        case "empty":
            return b""
        case "junk":
            return b"junk" * 1000
        case "truncated":
            return whole[: len(whole) // 2]
        case "wrong arch":
            return whole[:18] + struct.pack("<H", 243) + whole[20:]
        case "32-bit":
            return whole[:4] + b"\1" + whole[5:]
        case "an executable":
            return whole[:16] + struct.pack("<H", 2) + whole[18:]
    raise AssertionError(damage)


UNFIT = ("empty", "junk", "truncated", "wrong arch", "32-bit", "an executable")
DAMAGES = (*UNFIT, "missing symbol", "other exports")


def _lies(folder: Path, damage: str, whole: bytes) -> str:
    """What a compiler does that makes such a file and says that all is well; a function of one line it makes well."""
    if damage in ("missing symbol", "other exports"):
        (folder / "lie.c").write_text(
            "extern int nowhere(void); int __tvm_ffi_answer(void) { return nowhere(); }"
            if damage == "missing symbol"
            else "int unrelated(void) { return 0; }"
        )
        return f'case "$*" in *probe*) exec g++ "$@";; *) exec gcc -shared -fPIC {folder}/lie.c -o "$out";; esac'
    (folder / "lie").write_bytes(_damaged(whole, damage))
    return f'case "$*" in *probe*) exec g++ "$@";; *) cp {folder}/lie "$out";; esac'


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_library_that_will_not_load_is_built_once_more_and_then_given_up(
    damage: str, whole: bytes, tmp_path: Path
) -> None:
    op_package = tmp_path / "op_package"
    op_package.mkdir()
    source = op_package / "answer.cpp"
    source.write_text(SOURCE)
    path, log = compiler(tmp_path, _lies(tmp_path, damage, whole))
    env = {"KERNELWORKS_CXX": path, "KERNELWORKS_CACHE": str(tmp_path / "c")}
    for turn in range(2):
        done = forked.python(str(source), code=LOAD, **env)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("BuildError: "), done.stdout
        assert ("could not compile" if damage in UNFIT else "the compiled library") in done.stdout
        assert tries(log) == 2, turn


@pytest.mark.parametrize("damage", UNFIT)
def test_a_library_that_was_damaged_with_its_note_is_built_anew(damage: str, whole: bytes, tmp_path: Path) -> None:
    """Bytes that match their hash and yet are no library: damaged before they were hashed, or by a copied cache."""
    import hashlib

    op_package = tmp_path / "op_package"
    op_package.mkdir()
    source = op_package / "answer.cpp"
    source.write_text(SOURCE)
    env = {"KERNELWORKS_CACHE": str(tmp_path / "c")}
    assert forked.python(str(source), code=LOAD, **env).stdout == "42.0\n"
    (library,) = (tmp_path / "c").rglob("*.so")
    library.write_bytes(_damaged(whole, damage))
    library.with_suffix(".json").write_text(json.dumps({"sha256": hashlib.sha256(library.read_bytes()).hexdigest()}))
    assert forked.python(str(source), code=LOAD, **env).stdout == "42.0\n"


def test_whole_libraries_are_fit_and_every_cut_of_one_is_not(whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.so"
    path.write_bytes(whole)
    assert unfit(path) == ""
    for size in range(0, len(whole), max(1, len(whole) // 97)):
        path.write_bytes(whole[:size])
        assert unfit(path), size


def test_a_file_system_that_lets_nothing_be_loaded(tmp_path: Path) -> None:
    """Mounted noexec: nothing is compiled twice, and the text says what is wrong and what to do."""
    op_package = tmp_path / "op_package"
    op_package.mkdir()
    source = op_package / "answer.cpp"
    source.write_text(SOURCE)
    path, log = compiler(tmp_path, 'exec g++ "$@"')
    noexec = """
import ctypes, os, tvm_ffi
from kernelworks.build import loading
class Mounted:
    f_flag = os.ST_NOEXEC
def refuses(path, mode=0):
    raise OSError(f"{path}: failed to map segment from shared object: Operation not permitted")
loading.os.statvfs = lambda path: Mounted
loading.ctypes.CDLL = refuses
"""
    env = {"KERNELWORKS_CXX": path, "KERNELWORKS_CACHE": str(tmp_path / "c")}
    for _ in range(2):
        done = forked.python(str(source), code=noexec + LOAD, **env)
        assert "on a file system mounted noexec" in done.stdout, done.stdout + done.stderr
        assert tries(log) == 1


# ---------------------------------------------------------------- what is left behind, and who waits for whom


def test_what_killed_builds_left_is_swept_and_what_lives_is_not(tmp_path: Path) -> None:
    op_package = tmp_path / "op_package"
    op_package.mkdir()
    source = op_package / "answer.cpp"
    source.write_text(SOURCE)
    build = tmp_path / "c" / "build"
    dies, _ = compiler(tmp_path, "kill -9 $PPID", "dying-g++")
    env = {"KERNELWORKS_CACHE": str(tmp_path / "c")}
    died = forked.python(str(source), code=LOAD, KERNELWORKS_CXX=dies, **env)
    assert died.returncode == -signal.SIGKILL
    assert len(list(build.glob(".building-*"))) == 1
    living = build / ".building-of-another"
    living.mkdir()
    handle = os.open(living, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    assert forked.python(str(source), code=LOAD, **env).stdout == "42.0\n"
    assert list(build.glob(".building-*")) == [living]
    os.close(handle)


def test_a_process_that_was_stopped_with_the_lock_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    op_package = tmp_path / "op_package"
    op_package.mkdir()
    source = op_package / "answer.cpp"
    source.write_text(SOURCE)
    path, log = compiler(tmp_path, "sleep 600")
    env = {**os.environ, "KERNELWORKS_CXX": path, "KERNELWORKS_CACHE": str(tmp_path / "c")}
    first = subprocess.Popen([sys.executable, "-c", LOAD, str(source)], env=env, start_new_session=True)
    try:
        end = time.monotonic() + 60
        while not tries(log) and time.monotonic() < end:
            time.sleep(0.05)
        os.kill(first.pid, signal.SIGSTOP)
        done = forked.python(
            str(source), code=LOAD, KERNELWORKS_CXX=path, KERNELWORKS_CACHE=str(tmp_path / "c"),
            KERNELWORKS_COMPILE_SECONDS="0.5",
        )  # fmt: skip
        assert "another process has held" in done.stdout
    finally:
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
        for pid in (int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit()):
            try:
                if path in Path(f"/proc/{pid}/cmdline").read_text():
                    os.killpg(os.getpgid(pid), signal.SIGKILL)
            except OSError:
                continue


def test_a_cache_that_is_read_only_serves_what_it_has(whole: bytes, tmp_path: Path) -> None:
    op_package = tmp_path / "op_package"
    op_package.mkdir()
    source = op_package / "answer.cpp"
    source.write_text(SOURCE)
    env = {"KERNELWORKS_CACHE": str(tmp_path / "c")}
    assert forked.python(str(source), code=LOAD, **env).stdout == "42.0\n"
    other = op_package / "other.cpp"
    other.write_text(SOURCE)
    read_only = """
import os
from kernelworks.build import cache
def refuses(path, mode=0): raise OSError(30, "Read-only file system", str(path))
cache.tempfile.mkdtemp = lambda **more: refuses(more["dir"])
cache.open = lambda path, *more: refuses(path)
"""
    assert forked.python(str(source), code=read_only + LOAD, **env).stdout == "42.0\n"
    refused = forked.python(str(other), code=read_only + LOAD, **env).stdout
    assert "the build cache" in refused and "Read-only file system" in refused


def test_a_fork_during_a_build_can_build(tmp_path: Path) -> None:
    """The lock that a thread of the parent holds is not the child's."""
    op_package = tmp_path / "op_package"
    op_package.mkdir()
    source = op_package / "answer.cpp"
    source.write_text(SOURCE)
    code = """
import os, sys, threading, torch
from pathlib import Path
from kernelworks.build import cpp, library
cpp._watch_forks()
held, go = threading.Event(), threading.Event()
def hold():
    with cpp._loading:
        held.set()
        go.wait(60)
threading.Thread(target=hold).start()
held.wait()
child = os.fork()
if not child:
    x = torch.zeros(1)
    library(Path(sys.argv[1]), "scalar").answer(x)
    os._exit(0 if x.item() == 42.0 else 1)
code = os.waitpid(child, 0)[1]
go.set()
sys.exit(code)
"""
    done = forked.python(str(source), code=code, KERNELWORKS_CACHE=str(tmp_path / "c"))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("slices", "ends"), [(9, True), (10, False)])
def test_seconds_for_which_this_process_was_halted_are_not_the_compilers(
    slices: int, ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look finds that 1000 s have passed, of which two slices may have been the compiler's."""
    clock, looks = itertools.count(0.0, 1000.0), itertools.count(1)

    class Compiler:
        def communicate(self, timeout: float) -> tuple[str, str]:
            if next(looks) <= slices:
                raise subprocess.TimeoutExpired("cc", timeout)
            return "out", "err"

    monkeypatch.setattr(compiler_runs, "time", types.SimpleNamespace(monotonic=lambda: next(clock)))
    process: Any = Compiler()
    if ends:
        assert compiler_runs._communicate(process, 10.0) == ("out", "err")
    else:
        with pytest.raises(subprocess.TimeoutExpired):
            compiler_runs._communicate(process, 10.0)
