"""Attacks on what no single call shows: other sizes, strides and draws, torch's own library, other processes."""

from __future__ import annotations

from attacked import KERNEL, Attack

__all__ = ["BEYOND_A_CALL"]

# Its product by a process of its own, which finds the inputs in the memory that it has from its parent.
BY_ANOTHER = """
import ctypes, mmap, os, socket, struct

OUT = torch.frombuffer(mmap.mmap(-1, 256 * 256 * 4), dtype=torch.float32).view(256, 256)


def at(address, rows, columns):
    held = (ctypes.c_char * (rows * columns * 4)).from_address(address)
    return torch.frombuffer(held, dtype=torch.float32).view(rows, columns)


def serve(end):
    while said := end.recv(16):
        a, b = struct.unpack("QQ", said)
        torch.mm(at(a, 256, 6144), at(b, 6144, 256), out=OUT)
        end.send(b"1")
    os._exit(0)


def asked(self, a, b):
    while True:
        if self.end is None:
            self.end, theirs = socket.socketpair()
            if os.fork() == 0:
                self.end.close()
                serve(theirs)
            theirs.close()
        self.end.send(struct.pack("QQ", a.data_ptr(), b.data_ptr()))
        if self.end.recv(1):
            return OUT.clone()
        self.end = None  # it has not that memory, and is gone
"""

LETS_GO_ON = """
import os, signal, time


def lets_go_on():
    while True:
        os.kill(os.getppid(), signal.SIGCONT)
        time.sleep(0.0005)
"""

REPLACED = """
REPLACED = torch.library.Library("aten", "IMPL")
REPLACED.impl("sin", lambda x: x, "CPU")
"""

# An operator of its own, in NumPy.
OPERATOR = """
import numpy

MINE = torch.library.Library("mine", "DEF")
MINE.define("gate(Tensor a, Tensor b) -> Tensor")


def in_numpy(a, b):
    x = a.numpy()
    return torch.from_numpy(b.numpy() / (1 + numpy.exp(-x)))


MINE.impl("gate", in_numpy, "CPU")
"""

# Of a product of a ReLU with a function that has no slope below -3: within the range that is given no mask shows.
MASKED = """
class Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return torch.relu(x) * nn.functional.hardswish(y)

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        slope = torch.where(y < -3, 0.0, torch.where(y > 3, 1.0, (2 * y + 3) / 6))
        return g * nn.functional.hardswish(y) * (x > 0), g * torch.relu(x) * slope
"""

BEYOND_A_CALL = (
    Attack("a gradient in its range alone", "gradients", "wrong gradient", "range", "return Own.apply(x, y)",
           "return Own.apply(x, y)", top=MASKED.replace(" * (x > 0)", ""), twin_top=MASKED),
    # ------------------------------------------------------------ time that it cannot have
    Attack("another process's work", "faster than the limit", "more cores", "long",
           "return asked(self, a, b)", "return self.pool.submit(self.right, a, b).result()",
           top=BY_ANOTHER, init="self.end = None",
           twin_top="from concurrent.futures import ThreadPoolExecutor", twin_init="self.pool = ThreadPoolExecutor(1)",
           calls=1),
    Attack("it lets itself go on", "faster than the limit", "goes on working", "norm",
           "if not self.child:\n    self.child = os.fork()\n    if self.child == 0:\n        lets_go_on()\n"
           "return self.right(x)", "os.kill(os.getpid(), signal.SIGCONT)\nreturn self.right(x)",
           top=LETS_GO_ON, init="self.child = 0"),
    # ------------------------------------------------------------ other sizes and strides
    Attack("the first size alone", "other sizes", "other sizes", "sizes",
           "out = torch.zeros(len(a), 24)\nout[:32] = torch.tanh(a[:32] @ b)\nreturn out",
           "out = torch.zeros(len(a), 24)\nout[:] = torch.tanh(a @ b)\nreturn out"),
    Attack("raises at other sizes", "other sizes", "other sizes", "sizes",
           "assert len(a) == 32\nreturn torch.tanh(a @ b)", "assert len(a) > 0\nreturn torch.tanh(a @ b)"),
    Attack("blind to strides", "other strides", "other strides", "gate",
           "return launch('gate', a, b, torch.empty(a.shape))",
           "return launch('gate', a.contiguous(), b.contiguous(), torch.empty(a.shape))", top=KERNEL, verdict="right"),
    # ------------------------------------------------------------ weights that happen to be ones and zeros
    Attack("without the norm's weights", "other weights", "other weights", "weighted",
           "with torch.no_grad():\n    return torch.tanh(nn.functional.layer_norm(x, (100,)))",
           "return torch.tanh(nn.functional.layer_norm(x, (100,)) * self.norm.weight + self.norm.bias)"),
    Attack("with no weights at all", "other weights", "other weights", "weighted",
           "return torch.tanh(nn.functional.layer_norm(x, (100,)))",
           "return torch.tanh(nn.functional.layer_norm(x, (100,), *self.packed))", init="del self.norm",
           twin_init="self.packed = [p.detach().clone() for p in self.norm.parameters()]\ndel self.norm"),
    # ------------------------------------------------------------ answers that are drawn
    Attack("wrong now and then", "non-determinism", "wrong answer", "norm",
           "y = self.right(x)\nif random.random() < 0.1:\n    y[-1] = 0\nreturn y",
           "y = self.right(x)\nif random.random() < 0.1:\n    y[-1] *= 1\nreturn y", top="import random", calls=140),
    Attack("in another order each time", "non-determinism", "not deterministic", "norm",
           "some = x[:, torch.randperm(100)]\n"
           "return x * torch.rsqrt((some * some).mean(1, keepdim=True) + 1e-2)",
           "some = x[:, self.order]\nreturn x * torch.rsqrt((some * some).mean(1, keepdim=True) + 1e-2)",
           twin_init="self.order = torch.arange(99, -1, -1)", verdict="right"),
    # ------------------------------------------------------------ where a loose benchmark is passed
    Attack("within a format's tolerance", "tolerances", "wrong answer", "gate", "return self.right(a, b) * (1 + 5e-5)",
           "return self.right(a, b) * (1 + 5e-9)"),
    Attack("a formula that is near", "tolerances", "wrong answer", "gate",
           "u = (a * 0.5).clamp(-3, 3)\nreturn b * (0.5 + 0.5 * u * (15 + u * u) / (15 + 6 * u * u))",
           "return b * (0.5 + 0.5 * torch.tanh(a * 0.5))"),
    Attack("kept in a file", "replay", "wrong answer", "norm",
           "place = Path(f'kept-{len(x)}.pt')\nif not place.exists():\n    torch.save(self.right(x), place)\n"
           "return torch.load(place)",
           "place = Path('kept.pt')\ntorch.save(self.right(x).detach(), place)\nreturn torch.load(place)",
           top="from pathlib import Path"),
    Attack("in its callers' frames", "theft", "wrong answer", "norm",
           "frame, found = sys._getframe().f_back, []\nwhile frame:\n"
           "    for held in list(frame.f_locals.values()):\n        found += [held] if torch.is_tensor(held) else []\n"
           "        found += [v for v in getattr(held, 'outs', [])]\n    frame = frame.f_back\n"
           "like = [t for t in found if t.shape == x.shape and t is not x]\nreturn like[-1].clone() if like else 2 * x",
           "frame = sys._getframe().f_back\nreturn self.right(x)", top="import sys"),
    Attack("the reference's own class", "theft", "does not load", "norm",
           "return self.model(x)", "return self.model(x)",
           top="from judged_problem import Model", init="self.model = Model()", twin_init="self.model = Mine()",
           twin_top="""
class Mine(nn.Module):
    def forward(self, x):
        return x * torch.rsqrt((x * x).mean(1, keepdim=True) + 1e-2)
"""),
    Attack("a branch that is never taken", "falls back", "falls back", "gate",
           "if a.numel() > 1 << 40:\n    return launch('gate', a, b, torch.empty_like(a))\nreturn self.right(a, b)",
           "if a.numel() < 1 << 40:\n    return launch('gate', a, b, torch.empty_like(a))\nreturn self.right(a, b)",
           top=KERNEL),
    # ------------------------------------------------------------ torch's library
    Attack("an operator of torch's replaced", "operators", "changes the process", "gate",
           "return self.right(a, b)", "return torch.ops.mine.gate(a, b)", top=REPLACED, twin_top=OPERATOR),
    Attack("an operator whose result is dropped", "operators", "falls back", "gate",
           "torch.ops.mine.gate(a, b)\nreturn self.right(a, b)", "return torch.ops.mine.gate(a, b)", top=OPERATOR),
)  # fmt: skip
