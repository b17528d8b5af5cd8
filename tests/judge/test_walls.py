"""The walls round a judge's process, each by itself, and what a judgement says where one is missing."""

from __future__ import annotations

import ctypes
import dataclasses
import errno
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import kernelworks
from kernelworks.judge import Budget, judge
from kernelworks.judge.process.own_files import OpenedPlaces, covered_places
from kernelworks.judge.process.pool import _related, module_paths
from kernelworks.judge.process.reading import MemoryUnreadable, read_tensor
from kernelworks.judge.process.sandbox import OTHERS_PLACES
from kernelworks.judge.process.syscall_filter import close_files_to_writing, filter_system_calls
from kernelworks.judge.roles.device import Host
from kernelworks.judge.roles.handle import Answer, VariantProcess
from kernelworks.records import Peaks
from kernelworks.records.judgement import Judgement
from kernelworks.report.judge import missing_walls, sentence


def in_a_fork(work: Callable[[], Any]) -> Any:
    """What a process of its own says that ends at once."""
    told, tells = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(told)
            said = json.dumps(work()).encode()
        except BaseException as error:
            said = json.dumps(f"raised {error!r}").encode()
        with os.fdopen(tells, "wb") as file:
            file.write(said)
        os._exit(0)
    os.close(tells)
    with os.fdopen(told, "rb") as file:
        said = file.read()
    os.waitpid(child, 0)
    return json.loads(said)


def _error_of(step: Callable[[], Any]) -> int:
    try:
        step()
    except OSError as error:
        return error.errno or -1
    return 0


def test_processes_are_found_however_deep_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    told, tells = os.pipe()
    first = os.fork()
    if first == 0:
        for _ in range(11):
            if os.fork():
                break
        else:
            os.write(tells, str(os.getpid()).encode())
        time.sleep(600)
        os._exit(0)
    deepest = int(os.read(told, 16))
    monkeypatch.setattr(os, "readlink", lambda path: path)  # nobody's namespace can be seen to be another's
    found = [set(_related(first, apart=apart)) for apart in (False, True)]
    for one in found[1]:
        os.kill(one, signal.SIGKILL)
    os.waitpid(first, 0)
    os.close(told)
    os.close(tells)
    assert all({first, deepest} <= each and len(each) >= 12 for each in found)


def test_what_listens_outside_is_not_reached_by_its_name(tmp_path: Path) -> None:
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(tmp_path / "s"))
    server.listen()
    datagrams = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    datagrams.bind(str(tmp_path / "d"))

    def closed() -> list[int]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        own = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        os.prctl if hasattr(os, "prctl") else None
        ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)
        filter_system_calls()
        ours.send(b"mine")
        return [
            _error_of(lambda: socket.socket(socket.AF_UNIX).connect(str(tmp_path / "s"))),
            _error_of(lambda: own.connect(str(tmp_path / "d"))),
            _error_of(lambda: own.sendto(b"x", str(tmp_path / "d"))),
            _error_of(lambda: own.sendmsg([b"x"], [], 0, str(tmp_path / "d"))),
            _error_of(lambda: None if theirs.recv(4) == b"mine" else os.abort()),
        ]

    assert in_a_fork(closed) == [errno.EPERM] * 4 + [0]
    server.close()
    datagrams.close()


def test_nothing_but_its_own_is_opened_for_writing(tmp_path: Path) -> None:
    own, others = tmp_path / "own", tmp_path / "others"
    for folder in (own, others):
        folder.mkdir()
        os.mkfifo(folder / "pipe")
        (folder / "file").write_text("before", encoding="utf-8")

    def closed() -> list[int]:
        ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)
        close_files_to_writing([str(own), "/dev/null"])
        ways: list[Callable[[Path], Any]] = [
            lambda at: os.close(os.open(at / "file", os.O_WRONLY)),
            lambda at: os.close(os.open(at / "pipe", os.O_RDWR)),
            lambda at: os.close(os.open(at / "new", os.O_CREAT | os.O_WRONLY)), lambda at: os.unlink(at / "file"),
            lambda at: os.mkdir(at / "folder"), lambda at: (at / "pipe").rename(at / "other"),
        ]  # fmt: skip
        reads = [_error_of(lambda: os.close(os.open(others / "file", os.O_RDONLY)))]
        reads.append(_error_of(lambda: os.close(os.open("/dev/null", os.O_WRONLY))))
        return [_error_of(lambda w=way, a=at: w(a)) for at in (others, own) for way in ways] + reads  # type: ignore[misc]

    said = in_a_fork(closed)
    assert set(said[:6]) <= {errno.EACCES, errno.EXDEV} and said[6:] == [0] * 8, said
    assert (others / "file").read_text(encoding="utf-8") == "before"


def test_a_file_runs_as_its_owner_nowhere_and_a_parents_end_is_ones_own(tmp_path: Path) -> None:
    place, held = str(tmp_path / "file"), ctypes.c_int(0)

    def closed() -> list[Any]:
        libc = ctypes.CDLL(None)
        libc.prctl(38, 1, 0, 0, 0)
        libc.prctl(1, signal.SIGKILL, 0, 0, 0)
        filter_system_calls()
        made, given = (0o4755, 0o755), (0o2755, 0o6644, 0o640)
        errors = [_error_of(lambda m=m: os.close(os.open(place, os.O_CREAT | os.O_WRONLY, m))) for m in made]  # type: ignore[misc]
        errors += [_error_of(lambda m=m: os.chmod(place, m)) for m in given]  # type: ignore[misc]
        taken_back = libc.prctl(1, 0, 0, 0, 0)
        libc.prctl(2, ctypes.byref(held), 0, 0, 0)
        return [errors, taken_back, held.value]

    assert in_a_fork(closed) == [[errno.EPERM, 0, errno.EPERM, errno.EPERM, 0], 0, signal.SIGKILL]
    assert os.stat(place).st_mode & 0o7777 == 0o640


def test_a_home_whose_scripts_are_run_is_needed_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, library = tmp_path / "home", tmp_path / "home" / "library"
    library.mkdir(parents=True)
    monkeypatch.setattr(Path, "home", lambda: home)
    monkeypatch.setattr(sys, "path", [str(home), str(library), *sys.path])
    opened = OpenedPlaces("cpu")
    assert home in covered_places()
    assert not opened.is_needed(home) and str(library) in opened.below(home)
    opened.close()


SHORT = Budget(reference_s=0.1, most_cases=6, many=20, looks=0, samples=0, shapes=0, gradients=0, special=False)
LOOKS = """
import os
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        if os.path.exists({place!r}):
            raise PermissionError
        return x.tanh()
"""


def test_the_folder_that_a_judge_is_started_in_is_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ceilings: Peaks
) -> None:
    """It lies in a place of others' files, as a home does."""
    (tmp_path / "secret").write_text("", encoding="utf-8")
    (tmp_path / "problem.py").write_text(
        "import torch\nfrom torch import nn\n\n\nclass Model(nn.Module):\n    def forward(self, x):\n"
        "        return torch.tanh(x)\n\n\ndef get_inputs():\n    return [torch.randn(9, 9)]\n",
        encoding="utf-8",
    )
    (tmp_path / "candidate.py").write_text(LOOKS.format(place=str(tmp_path / "secret")), encoding="utf-8")
    tmp_path.chmod(0o755)  # as whoever lists it, too: another user
    monkeypatch.chdir(tmp_path)
    found = judge("candidate.py", "problem.py", budget=SHORT, peaks=ceilings, threads=1)
    assert found.verdict == "right" or any(OTHERS_PLACES in line for line in found.open_to), found.reasons


@pytest.mark.parametrize("first", [[""], []])
def test_this_package_is_found_though_the_folder_of_a_start_is_on_no_path(
    first: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    package = str(Path(kernelworks.__file__).parents[1])
    others = [*dict.fromkeys(place for place in sys.path if place and place != package)]
    monkeypatch.setattr(sys, "path", [*first, *others])
    assert module_paths() == [*([package] if first else []), *others, *([] if first else [package])]


def test_python_is_found_where_others_homes_are_empty() -> None:
    opened = OpenedPlaces("cpu")
    assert {sys.prefix, sys.base_prefix} <= opened.needed.keys()
    home = Path(sys.prefix).parent
    below = opened.below(home)
    assert str(Path(sys.prefix)) in below or any(Path(p) in Path(sys.prefix).parents for p in below)
    assert not any(Path(a) in Path(b).parents for a in below for b in below)
    assert "/dev/null" in opened.devices and not any("loop" in name or "kvm" in name for name in opened.devices)
    opened.close()


def test_memory_of_another_process_is_read_as_it_is() -> None:
    here = torch.arange(24.0).view(4, 6)
    child = os.fork()
    if child == 0:
        os.read(os.open("/dev/zero", os.O_RDONLY), 1)
        time.sleep(60)
        os._exit(0)
    try:
        flat = read_tensor(child, here.data_ptr(), (4, 6), (6, 1), torch.float32)
        assert torch.equal(flat, here.reshape(-1))
        turned = read_tensor(child, here.data_ptr(), (6, 4), (1, 6), torch.float32)
        assert torch.equal(turned, here.t().reshape(-1))
        assert read_tensor(child, 0, (0, 3), (3, 1), torch.float32).numel() == 0
        with pytest.raises(MemoryUnreadable, match="where there is none"):
            read_tensor(child, 4096, (4,), (1,), torch.float32)
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


def test_the_first_line_names_walls_that_are_missing() -> None:
    found = Judgement(
        candidate="mine", problem="norm", format="kernelbench", language="torch", verdict="right", reasons=(),
        remarks=(), worst=0.1, calls=1, elements=1, draws=(), shapes=(), bound=(), paces=(), speeds=(), limit_s=None,
        bound_by="", peak="", weights="", kernels=(), kept_from=(), open_to=(), threads=1, build_s=0.0, seconds=1.0,
        date="",
    )  # fmt: skip
    assert sentence(found) == "mine for norm: right: does what the problem asks"
    open_to = (
        "users: no other user's number can be had",
        "taking the host's memory: a GPU's",
        "network: not permitted",
    )
    bare = dataclasses.replace(found, open_to=open_to)
    assert missing_walls(bare) == ("users", "network")
    assert sentence(bare).endswith("; judged without these walls: users, network")


ADDRESSES: list[Any] = [
    None, [], [[]], [[[1]]], [[["x", True]]], [[[2**70, True]]], [[[-5, True]]], [[[0, True]]], [[[None, None]]],
    {"a": 1},
]  # fmt: skip


@pytest.mark.parametrize("at", ADDRESSES, ids=str)
def test_an_address_that_is_none_is_no_answer(at: Any) -> None:
    variant: Any = SimpleNamespace(device=Host(), process=SimpleNamespace(pid=os.getpid()))
    case: Any = SimpleNamespace(outputs=[((4,), "float32")], strides=[(1,)])
    answer = Answer(0.0)
    assert VariantProcess._answers_at(variant, answer, [case], [], {"at": at}) == []
    assert answer.raised.startswith("named no answer")
