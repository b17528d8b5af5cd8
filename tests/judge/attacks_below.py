"""Attacks on what Python does not tell: the system's and the C library's side of a process, and its inputs' class."""

from __future__ import annotations

from attacked import Attack

__all__ = ["FROM_BELOW"]

FROM_BELOW = (
    Attack("an input of another class", "memory", "writes elsewhere", "norm",
           "y = self.right(x)\nx.__class__ = Other\nreturn y", "y = self.right(x)\nself.seen = type(x)\nreturn y",
           top="class Other(torch.Tensor): ..."),
    Attack("variables behind Python's back", "global state", "changes the process", "norm",
           "os.putenv('MALLOC_ARENA_MAX', '1')\nreturn self.right(x)",
           "os.environ.get('MALLOC_ARENA_MAX')\nreturn self.right(x)", top="import os"),
    Attack("a hook of audits", "global state", "changes the process", "norm",
           "if not self.done:\n    sys.addaudithook(lambda *_: None)\n    self.done = True\nreturn self.right(x)",
           "sys.audit('mine')\nreturn self.right(x)", top="import sys", init="self.done = False"),
)  # fmt: skip
