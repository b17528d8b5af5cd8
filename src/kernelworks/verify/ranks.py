"""Verification of what several processes compute together (``contract/ranks.py``).

N processes of this host join a group (gloo over the loopback interface, by a file in a folder of their own). Each case
is called on all of them at once, each in guarded and poisoned memory; all ranks' outputs are judged together. Every
wait is bounded, and a process that does not answer is killed with all others.
"""

from __future__ import annotations

import atexit
import functools
import itertools
import pickle
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

import torch
from torch import Generator, Tensor

from kernelworks.contract import Case
from kernelworks.contract.ranks import Ranks, ranks_of
from kernelworks.dispatch.op import Op
from kernelworks.machine import environment
from kernelworks.records import Parity
from kernelworks.verify import rank_worker
from kernelworks.verify.parity import judge_outputs, layouts_of, reproduce
from kernelworks.verify.reference import Reference

__all__ = ["Pool", "RankError", "checks_of_ranks", "rank_parities", "rank_references", "shared_pool"]

WORKER = (sys.executable, "-m", "kernelworks.verify.rank_worker")
GROUP_S = 120.0  # the groups' timeout: how long a rank waits for another one
ANSWER_S = 600.0  # how long a rank may take for an answer: no kernel does, but a machine may stand still
LATE_S = 1.0  # how late the late rank is
OFTEN = 1000


class RankError(RuntimeError):
    """What a rank raised; ``kind`` is the exception's name."""

    def __init__(self, rank: int, kind: str, text: str) -> None:
        super().__init__(f"rank {rank} raised {kind}: {text}")
        self.kind, self.text = kind, text


# ---------------------------------------------------------------- the processes


class Pool:
    """N processes that are the ranks of a group; ends them when it is closed."""

    def __init__(self, ranks: int, timeout_s: float = GROUP_S) -> None:
        self.ranks, self._folder = ranks, tempfile.TemporaryDirectory(prefix="kernelworks-ranks-")
        self.processes: list[subprocess.Popen[bytes]] = []
        self._to: list[Connection] = []
        try:
            for rank in range(ranks):
                ours, its = Pipe()
                self._to.append(ours)
                command = [*WORKER, str(its.fileno()), self._folder.name, str(rank), str(ranks), str(timeout_s)]
                process = subprocess.Popen(
                    command, pass_fds=(its.fileno(),), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                    env=environment.loopback_variables(),
                )  # fmt: skip
                self.processes.append(process)
                its.close()
            for rank in range(ranks):
                self.answer(rank)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def folder(self) -> str:
        """Where its ranks find each other."""
        return self._folder.name

    def start(self, rank: int, function: Callable[..., Any], *args: Any) -> None:
        """Has a rank call ``function(place, *args)``, of a module's."""
        self._to[rank].send_bytes(pickle.dumps((function.__module__, function.__qualname__, args)))

    def answer(self, rank: int) -> Any:
        """What a rank's call came to. Raises RankError with what it raised; RuntimeError where it has ended, or does
        not answer: the whole pool is then closed."""
        try:
            if not self._to[rank].poll(ANSWER_S):
                raise TimeoutError
            kind, value = pickle.loads(self._to[rank].recv_bytes())
        except (EOFError, ConnectionError, TimeoutError) as error:
            how = "does not answer" if isinstance(error, TimeoutError) else "has ended"
            self.close()
            raise RuntimeError(f"rank {rank} {how}") from error
        if kind == "raised":
            raise RankError(rank, *value)
        return value

    def call(self, function: Callable[..., Any], args: Sequence[Sequence[Any]]) -> list[Any]:
        """What the first ranks' calls come to, each of its own arguments. Raises what the first of them raised, once
        all have answered."""
        for rank, its in enumerate(args):
            self.start(rank, function, *its)
        made, raised = [], []
        for rank in range(len(args)):
            try:
                made.append(self.answer(rank))
            except RankError as error:
                raised.append(error)
        if raised:
            raise raised[0]
        return made

    def errors(self, function: Callable[..., Any], args: Sequence[Sequence[Any]]) -> list[RankError | None]:
        """What each rank's call raised."""
        for rank, its in enumerate(args):
            self.start(rank, function, *its)
        return [self._error(rank) for rank in range(len(args))]

    def _error(self, rank: int) -> RankError | None:
        try:
            self.answer(rank)
        except RankError as error:
            return error
        return None

    def kill(self, rank: int) -> None:
        """Ends a rank as a crash would."""
        self.processes[rank].kill()
        self.processes[rank].wait()

    def close(self) -> None:
        """Ends all ranks, and waits until they have."""
        for connection in self._to:
            connection.close()
        end = time.monotonic() + 5.0  # they end by themselves, unless they wait for each other
        for process in self.processes:
            try:
                process.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._folder.cleanup()


_shared: dict[int, Pool] = {}


def shared_pool(ranks: int) -> Pool:
    """The pool of this process with so many ranks, anew where one of them has ended."""
    found = _shared.get(ranks)
    if found is None or any(process.poll() is not None for process in found.processes):
        if found is None:
            atexit.register(lambda: _shared[ranks].close())
        else:
            found.close()
        found = _shared[ranks] = Pool(ranks)
    return found


# ---------------------------------------------------------------- cases


def _ranks(op: Op) -> Ranks:
    found = ranks_of(op.contract)
    if found is None:
        raise ValueError(f"{op.name} is not computed by several processes")
    return found


def _counts(op: Op) -> tuple[int, ...]:
    """The numbers of ranks that a case is tried on; none of an op of one process."""
    found = ranks_of(op.contract)
    return found.counts if found else ()


@functools.lru_cache(maxsize=4)
def rank_reference(op: Op, case: Case, dtype: torch.dtype, count: int) -> Reference:
    """The reference of a case on so many ranks: each tensor among the arguments is a list, with one of every rank, and
    so are the outputs. The inputs follow from the op, case, dtype and count."""
    seed = zlib.crc32(f"{op.name} {case.name} {dtype} {count} ranks".encode())
    generator, contract = Generator().manual_seed(seed), _ranks(op)
    calls = [case.make(generator, dtype) for _ in range(count)]
    args = {n: [call[n] for call in calls] if isinstance(v, Tensor) else v for n, v in calls[0].items()}
    with torch.no_grad():
        outputs = contract.reference(calls)
        bounds = contract.bound([_in_float64(call) for call in calls], outputs, dtype)
    alone = op.forward_shapes(tuple(calls[0].get(name) for name in op.passes["forward"].names))
    dtypes = tuple(t.dtype for t in (alone if isinstance(alone, tuple) else (alone,)))
    relations = {n: result.relation for n, result in op.contract.results.items() if result.relation is not None}
    return Reference(
        args, tuple(itertools.chain(*outputs)), tuple(itertools.chain(*bounds)), (), {}, {}, dtypes * count,
        op.contract.outputs * count, dtype, relations,
    )  # fmt: skip


def _in_float64(call: dict[str, Any]) -> dict[str, Any]:
    return {n: v.double() if isinstance(v, Tensor) and v.is_floating_point() else v for n, v in call.items()}


def rank_references(op: Op, case: Case, dtype: torch.dtype) -> Iterator[Reference]:
    """The references of a case on each number of ranks that it is tried on; none of an op of one process."""
    for count in _counts(op):
        yield rank_reference(op, case, dtype, count)


def _calls(expected: Reference, count: int) -> list[dict[str, Any]]:
    """What each rank calls."""
    return [{n: v[rank] if isinstance(v, list) else v for n, v in expected.args.items()} for rank in range(count)]


def rank_parities(op: Op, kernel: str, case: Case, dtype: torch.dtype) -> Iterator[Parity]:
    """Every comparison of one case on several processes, as ``parities`` of one."""
    name = str(dtype).removeprefix("torch.")
    for count in _counts(op):
        expected = rank_reference(op, case, dtype, count)
        calls, pool = _calls(expected, count), shared_pool(max(_counts(op)))
        for layout in layouts_of(case, tuple(calls[0].values())):
            for at_end in (True, False):
                shares: dict[str, float] = {}
                try:
                    args = [(op.name, kernel, call, count, layout, at_end) for call in calls]
                    made = pool.call(rank_worker.call_guarded, args)
                    shares, message = judge_outputs([outputs for outputs, _ in made], expected)
                    message = message or next((wrong for _, wrong in made if wrong), "")
                except Exception as error:
                    message = str(error)
                    pool.close()  # its ranks may wait for each other
                    pool = shared_pool(max(_counts(op)))
                worst = float("inf") if message and not shares else max(shares.values(), default=0.0)
                label = f"{case.name} ({count} ranks, {layout})"
                line = reproduce(op, kernel, case, dtype) if message else ""
                yield Parity(op.name, kernel, "forward", label, name, worst, not message, message, line, shares)


# ---------------------------------------------------------------- what a kernel is tried on beyond parity

COUNT = 2  # ranks of a check


def _small(op: Op) -> tuple[Reference, list[dict[str, Any]]]:
    """A small case on two ranks."""
    case = next(c for c in op.contract.cases if c.layouts and torch.float32 in c.dtypes)
    expected = rank_reference(op, case, torch.float32, COUNT)
    return expected, _calls(expected, COUNT)


def _rank_late(op: Op, kernel: str) -> str:
    expected, calls = _small(op)
    args = [(op.name, kernel, call, COUNT, LATE_S * rank) for rank, call in enumerate(calls)]
    return judge_outputs(shared_pool(max(_counts(op))).call(rank_worker.call_after, args), expected)[1]


def _another_shape(op: Op, kernel: str) -> str:
    """All ranks must refuse, and compute on."""
    expected, calls = _small(op)
    pool = shared_pool(max(_counts(op)))
    other = {n: torch.cat((v, v)) if isinstance(v, Tensor) else v for n, v in calls[1].items()}
    wrong = pool.errors(rank_worker.call_after, [(op.name, kernel, c, COUNT, 0.0) for c in (calls[0], other)])
    for rank, error in enumerate(wrong):
        if error is None or error.kind != "ValueError" or "alike" not in error.text:
            return f"ranks of other shapes: rank {rank} says {error or 'nothing'}"
    args = [(op.name, kernel, call, COUNT, 0.0) for call in calls]
    return judge_outputs(pool.call(rank_worker.call_after, args), expected)[1]


def _many_calls(op: Op, kernel: str) -> str:
    expected, calls = _small(op)
    args = [(op.name, kernel, call, COUNT, OFTEN) for call in calls]
    made = shared_pool(max(_counts(op))).call(rank_worker.call_often, args)
    if any(len(found) != 2 for found in made):
        return f"of {OFTEN} calls on the same values some differ"
    return judge_outputs([found[0] for found in made], expected)[1]


def _groups_again(op: Op, kernel: str) -> str:
    expected, calls = _small(op)
    with Pool(COUNT) as pool:
        for _ in range(2):
            made = pool.call(rank_worker.call_after, [(op.name, kernel, call, COUNT, 0.0) for call in calls])
            wrong = judge_outputs(made, expected)[1]
            if wrong:
                return f"in a group made again: {wrong}"
            pool.call(rank_worker.remake_groups, [(pool.folder,)] * COUNT)
    return ""


def _rank_ended(op: Op, kernel: str) -> str:
    calls = _small(op)[1]
    with Pool(COUNT) as pool:
        pool.call(rank_worker.call_after, [(op.name, kernel, call, COUNT, 0.0) for call in calls])
        pool.kill(1)
        error = pool.errors(rank_worker.call_after, [(op.name, kernel, calls[0], COUNT, 0.0)])[0]
    if error is None or error.kind != "RuntimeError" or "rank 1" not in error.text:
        return f"rank 1 has ended, and rank 0 says {error or 'nothing'}"
    return ""


RANK_CHECKS: dict[str, Callable[[Op, str], str]] = {
    "rank_late": _rank_late, "another_shape": _another_shape, "many_calls": _many_calls,
    "groups_again": _groups_again, "rank_ended": _rank_ended,
}  # fmt: skip


def checks_of_ranks(op: Op) -> dict[str, Callable[[Op, str], str]]:
    """What a kernel of an op of several processes is tried on beyond parity; nothing of an op of one."""
    return RANK_CHECKS if ranks_of(op.contract) else {}
