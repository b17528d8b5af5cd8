"""Attacks on the clock and on what is read when it ends: work that no clock counts, answers that are not there, inputs
that are there too soon."""

from __future__ import annotations

from attacked import Attack

__all__ = ["ON_TIME"]

# Each hand-over's preparation is its own, and takes 20 ms of a core; nobody is told.
WHILE_NO_CLOCK_RUNS = """
import time
from kernelworks.judge.roles import candidate as caller, process_state as state

prepare = caller.Caller.prepare


def busy(seconds=0.02):
    begin = time.process_time()
    while time.process_time() - begin < seconds:
        pass


def prepared(self, said):
    busy()
    return prepare(self, said)


caller.Caller.prepare = prepared
state.State.changes = lambda self: []
"""

# So does a process of its own, which is gone before the word is said that all is ready.
BEFORE_THE_WORD = """
import os, time
from kernelworks.judge.roles import candidate as caller, process_state as state

prepare = caller.Caller.prepare


def prepared(self, said):
    child = os.fork()
    if child == 0:
        time.sleep(0.03)
        os._exit(0)
    os.waitpid(child, 0)
    return prepare(self, said)


caller.Caller.prepare = prepared
state.State.changes = lambda self: []
state.State.reachable_changes = lambda self: []
"""

CALLER = """
import sys


def caller_of(frame):
    while "control" not in frame.f_locals or "self" not in frame.f_locals:
        frame = frame.f_back
    return frame.f_locals["self"]
"""

ON_TIME = (
    Attack("work while no clock runs", "no clock", "goes on working", "norm", "return self.right(x)",
           "busy()\nreturn self.right(x)", top=WHILE_NO_CLOCK_RUNS,
           twin_top="import time\ndef busy():\n    time.sleep(0.001)"),
    Attack("a process while no clock runs", "no clock", "goes on working", "norm", "return self.right(x)",
           "child = os.fork() if self.n < 2 else 1\nself.n += 1\nif child == 0:\n    os._exit(0)\n"
           "if self.n < 3:\n    os.waitpid(child, 0)\nreturn self.right(x)",
           top=BEFORE_THE_WORD, init="self.n = 0", twin_top="import os"),
    Attack("all inputs of a hand-over in one", "no clock", "wrong answer", "norm",
           "calls = caller_of(sys._getframe()).calls\nif len(calls) < 2:\n    return torch.zeros_like(x)\n"
           "return self.right(x)",
           "calls = caller_of(sys._getframe()).calls\nreturn self.right(x)", top=CALLER),
    Attack("methods of an instance", "no clock", "wrong answer", "norm",
           "y, z = torch.empty_like(x), self.right(x)\n"
           "for name in ('data_ptr', 'contiguous', 'resolve_neg', 'resolve_conj', 'clone', 'untyped_storage'):\n"
           "    setattr(y, name, getattr(z, name))\ny.numel = lambda: 0\ny.is_contiguous = lambda *a: False\nreturn y",
           "y = self.right(x)\ny.data_ptr, y.note = torch.empty(1).data_ptr, 'mine'\nreturn y"),
    Attack("a ring of answers", "aliasing", "late answer", "norm",
           "self.n += 1\nreturn self.ring[self.n % 16].copy_(self.right(x))",
           "self.n += 1\nself.ring[self.n % 16].copy_(self.right(x))\nreturn self.ring[self.n % 16].clone()",
           init="self.n, self.ring = 0, [torch.empty(48, 100) for _ in range(16)]"),
    Attack("a number for a tensor", "structure", "raised", "total",
           "return float(self.right(x))", "return self.right(x) * 1.0"),
    Attack("an answer in a list", "structure", "raised", "norm", "return [self.right(x)]",
           "return [self.right(x)][0]"),
    Attack("a tensor of a transform", "structure", "raised", "norm",
           "return torch._C._functorch._add_batch_dim(self.right(x).unsqueeze(0), 0, 1)",
           "return torch.func.vmap(lambda row: row * torch.rsqrt((row * row).mean() + 1e-2))(x)"),
    Attack("an answer by name", "structure", "raised", "norm", "return {'y': self.right(x)}",
           "return {'y': self.right(x)}['y']"),
)  # fmt: skip
