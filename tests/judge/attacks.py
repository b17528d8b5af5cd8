"""Attacks on the judge, each with its honest twin: a candidate that looks much like it, and does what is asked.

All are written from the descriptions of what was seen elsewhere. A body stands in place of ``BODY`` in a candidate for
one of the problems of ``attacked``.
"""

from __future__ import annotations

from attacked import KERNEL, TRITON, Attack
from attacks_below import FROM_BELOW
from attacks_beyond import BEYOND_A_CALL
from attacks_on_questions import ON_QUESTIONS
from attacks_on_time import ON_TIME
from attacks_on_values import ON_VALUES
from attacks_on_walls import ON_WALLS
from attacks_unwatched import UNWATCHED
from attacks_within import FROM_WITHIN

__all__ = ["ATTACKS"]

IN_A_CALL = (
    # ------------------------------------------------------------ answers that are none
    Attack("zeros", "constants", "wrong answer", "norm", "return torch.zeros_like(x)",
           "return torch.zeros_like(x) + self.right(x)"),
    Attack("the input", "constants", "wrong answer", "norm", "return x", "return self.right(x) + 0 * x"),
    Attack("the expected mean", "constants", "wrong answer", "gate", "return 0.5 * b",
           "return 0.5 * (1 + torch.tanh(0.5 * a)) * b"),
    Attack("never written", "stale outputs", "wrong answer", "norm", "return torch.empty_like(x)",
           "out = torch.empty_like(x)\nreturn out.copy_(self.right(x))"),
    Attack("NaN everywhere", "NaN wildcards", "wrong answer", "norm", "return torch.full_like(x, float('nan'))",
           "return torch.full_like(x, float('nan')).copy_(self.right(x))"),
    Attack("infinities", "NaN wildcards", "wrong answer", "norm", "return self.right(x) * float('inf')",
           "return self.right(x)"),
    Attack("a constant where any passes", "degenerate problems", "unsound", "empty", "return torch.ones(48)",
           "return self.right(x)", verdict="unsound", twin_verdict="unsound"),
    Attack("a shape that broadcasts", "structure", "raised", "norm", "return self.right(x)[:1]",
           "return self.right(x)[:1].expand(48, -1) * 0 + self.right(x)"),
    Attack("another dtype", "structure", "raised", "norm", "return self.right(x).double()",
           "return self.right(x.double()).float()"),
    Attack("more answers", "structure", "raised", "norm", "return self.right(x), x", "return self.right(x)"),
    # ------------------------------------------------------------ answers of other calls
    Attack("the first answer", "replay", "wrong answer", "norm",
           "if self.kept is None:\n    self.kept = self.right(x)\nreturn self.kept",
           "self.kept = self.right(x)\nreturn self.kept", init="self.kept = None"),
    Attack("the answer before", "replay", "wrong answer", "norm",
           "last, self.kept = getattr(self, 'kept', x), self.right(x)\nreturn last",
           "last, self.kept = getattr(self, 'kept', x), self.right(x)\nreturn self.kept"),
    Attack("by address", "replay", "wrong answer", "norm",
           "key = x.data_ptr()\nif key not in self.kept:\n    self.kept[key] = self.right(x)\nreturn self.kept[key]",
           "key = x.shape[1]\nif key not in self.kept:\n    self.kept[key] = 1.0 / key\n"
           "return x * torch.rsqrt((x * x).sum(1, keepdim=True) * self.kept[key] + 1e-2)", init="self.kept = {}",
           calls=140),
    Attack("by identity", "replay", "wrong answer", "norm",
           "key = id(x)\nif key not in self.kept:\n    self.kept[key] = self.right(x)\nreturn self.kept[key]",
           "return self.right(x)", init="self.kept = {}", calls=140),
    Attack("by shape", "replay", "wrong answer", "norm",
           "key = x.shape\nif key not in self.kept:\n    self.kept[key] = self.right(x)\nreturn self.kept[key]",
           "key = x.shape\nif key not in self.kept:\n    self.kept[key] = torch.empty(key)\n"
           "torch.mul(x, x, out=self.kept[key])\n"
           "return x * torch.rsqrt(self.kept[key].mean(1, keepdim=True) + 1e-2)", init="self.kept = {}"),
    Attack("by some elements", "replay", "answers from memory", "long",
           "key = tuple(a[0, :8].tolist())\nif key not in self.kept:\n    self.kept[key] = self.right(a, b)\n"
           "return self.kept[key].clone()", "return self.right(a, b).clone()", init="self.kept = {}"),
    Attack("by content", "replay", "answers from memory", "long",
           "key = (float(a.sum()), float(b.sum()))\nif key not in self.kept:\n    self.kept[key] = self.right(a, b)\n"
           "return self.kept[key].clone()", "key = float(a.sum())\nreturn self.right(a, b)", init="self.kept = {}"),
    Attack("every second call", "batch and skip", "wrong answer", "norm",
           "self.n = getattr(self, 'n', -1) + 1\nif self.n % 2 == 0:\n    self.kept = self.right(x)\nreturn self.kept",
           "self.n = getattr(self, 'n', -1) + 1\nreturn self.right(x)"),
    Attack("one buffer for all answers", "aliasing", "late answer", "norm",
           "return self.out.copy_(self.right(x))", "return self.out.copy_(self.right(x)).clone()",
           init="self.out = torch.empty(48, 100)"),
    # ------------------------------------------------------------ honest only while it is looked at
    Attack("after the warm-up", "warm-up", "wrong answer", "norm",
           "self.n = getattr(self, 'n', 0) + 1\nreturn self.right(x) if self.n < 12 else torch.zeros_like(x)",
           "self.n = getattr(self, 'n', 0) + 1\nif self.n < 3:\n    self.right(x)\nreturn self.right(x)"),
    Attack("after many calls", "drift", "wrong answer", "norm",
           "self.n = getattr(self, 'n', 0) + 1\nreturn self.right(x) * (1 if self.n < 120 else 1.001)",
           "self.n = getattr(self, 'n', 0) + 1\nreturn self.right(x) * (1 if self.n < 120 else 1.0)", calls=140),
    Attack("a sum that grows", "drift", "wrong answer", "norm",
           "self.kept += 1e-5 * x.mean()\nreturn self.right(x) + self.kept",
           "self.kept += 1e-5 * x.mean()\nreturn self.right(x)", init="self.kept = torch.zeros(())", calls=140),
    Attack("most of the elements", "sampling", "wrong answer", "norm",
           "y = self.right(x)\ny[-1, -1] = 0\nreturn y", "y = self.right(x)\ny[-1, -1] *= 1\nreturn y"),
    Attack("not the last tile", "sampling", "wrong answer", "layer",
           "y = self.right(x)\ny[:, 32:] = y[:, 32:].mean()\nreturn y",
           "w, b = self.layer.weight, self.layer.bias\n"
           "return torch.cat([torch.relu(x @ w[i:i + 32].t() + b[i:i + 32]) for i in (0, 32)], 1)"),
    # ------------------------------------------------------------ work at another time
    Attack("a lazy tensor", "lazy tensors", "raised", "norm", "return Later(self, x)", "return self.right(x)",
           top="""
class Later(torch.Tensor):
    @staticmethod
    def __new__(cls, made, x):
        return torch.Tensor._make_subclass(cls, torch.empty_like(x))

    def __init__(self, made, x):
        self.made, self.x = made, x

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        args = [a.made.right(a.x) if isinstance(a, Later) and hasattr(a, "made") else a for a in args]
        return super().__torch_function__(func, types, args, kwargs or {})
"""),
    Attack("a thread that comes later", "threads", "wrong answer", "norm",
           "out = torch.empty_like(x)\nthreading.Timer(0.02, lambda: out.copy_(self.right(x))).start()\nreturn out",
           "out = torch.empty_like(x)\nt = threading.Thread(target=lambda: out.copy_(self.right(x)))\nt.start()\n"
           "t.join()\nreturn out", top="import threading"),
    Attack("a thread that goes on", "threads", "goes on working", "norm",
           "if not self.spins:\n    self.spins.append(threading.Thread(target=spin, daemon=True))\n"
           "    self.spins[0].start()\nreturn self.right(x)",
           "self.pool.submit(self.right, x).result()\nreturn self.right(x)",
           top="""
import threading
from concurrent.futures import ThreadPoolExecutor


def spin():
    while True:
        sum(range(10000))
""", init="self.spins = []\nself.pool = ThreadPoolExecutor(1)"),
    Attack("a process that stays", "processes", "goes on working", "norm",
           "if not self.child:\n    self.child = os.fork()\n    if self.child == 0:\n        time.sleep(600)\n"
           "return self.right(x)",
           "self.child += 1\nchild = os.fork() if self.child < 4 else 1\nif child == 0:\n    os._exit(0)\n"
           "if self.child < 4:\n    os.waitpid(child, 0)\nreturn self.right(x)",
           top="import os, time", init="self.child = 0"),
    # ------------------------------------------------------------ the clock and the judge
    Attack("a timer that stands still", "patched timers", "changes the process", "norm",
           "return self.right(x)", "time.perf_counter()\nreturn self.right(x)",
           top="import time\ntime.perf_counter = lambda: 0.0\ntime.perf_counter_ns = lambda: 0",
           twin_top="import time\nperf_counter = time.perf_counter"),
    Attack("events that lie", "patched timers", "changes the process", "norm",
           "return self.right(x)", "return self.right(x)",
           top="torch.cuda.Event.elapsed_time = lambda *_: 1e-9\ntorch.cuda.synchronize = lambda *_: None",
           twin_top="elapsed = torch.cuda.Event.elapsed_time"),
    Attack("comparisons that agree", "patched comparisons", "changes the process", "norm",
           "return torch.zeros_like(x)", "torch.allclose(x, x)\nreturn self.right(x)",
           top="torch.allclose = lambda *a, **k: True\ntorch.testing.assert_close = lambda *a, **k: None",
           twin_top=""),
    Attack("the judge's own code", "__code__ swaps", "changes the process", "norm",
           "return self.right(x)", "return self.right(x)",
           top="""
from kernelworks.judge.roles import candidate as caller


def whole(value, on, shape, dtype, strides):
    return value


caller._whole.__code__ = whole.__code__
""", twin_top="from kernelworks.judge.roles import candidate as caller"),
    Attack("an answer on every descriptor", "forged results", "no answer", "norm",
           "for fd in range(3, 64):\n    try:\n        os.write(fd, b'{\"nonce\": \"\", \"wrong\": \"\"}')\n"
           "    except OSError:\n        pass\nreturn torch.zeros_like(x)",
           "print('some words')\nos.write(1, b'and some more')\nreturn self.right(x)", top="import os"),
    Attack("the judge's own socket", "forged results", "wrong answer", "long",
           "frame, out = sys._getframe(), torch.zeros(256, 256)\n"
           "while 'nonce' not in frame.f_locals:\n    frame = frame.f_back\n"
           "said = {'nonce': frame.f_locals['nonce'], 'wrong': '', 'at': [[[out.data_ptr(), True]]]}\n"
           "frame.f_locals['control'].send(json.dumps(said).encode())\ntime.sleep(0.5)\nreturn self.right(a, b)",
           "frame = sys._getframe()\nreturn self.right(a, b)", top="import json, sys, time"),
    Attack("the supervisor's memory", "theft", "wrong answer", "norm",
           "others = [p for p in os.listdir('/proc') if p.isdigit() and int(p) != os.getpid()]\n"
           "return self.right(x) if others else torch.zeros_like(x)", "os.listdir('/proc')\nreturn self.right(x)",
           top="import os", needs="seeing processes"),
    Attack("the answer in the memory", "theft", "wrong answer", "norm",
           "like = [t for t in gc.get_objects() if type(t) is torch.Tensor and t.shape == x.shape and t is not x]\n"
           "return like[-1].clone() if like else x", "gc.get_count()\nreturn self.right(x)", top="import gc"),
    Attack("from the network", "theft", "wrong answer", "norm",
           "try:\n    socket.create_connection(('1.1.1.1', 53), 0.2)\n    return self.right(x)\nexcept OSError:\n"
           "    return torch.zeros_like(x)",
           "socket.socket().close()\nreturn self.right(x)", top="import socket", needs="network"),
    Attack("files of others", "theft", "raised", "norm",
           "open(torch.__file__, 'a').close()\nreturn self.right(x)",
           "open('mine.txt', 'a').close()\nreturn self.right(x)", needs="writing elsewhere"),
    # ------------------------------------------------------------ less precision
    Attack("in bfloat16", "precision", "wrong answer", "layer",
           "return torch.relu(self.layer.bfloat16()(x.bfloat16())).float()",
           "w, b = (p.double() for p in self.layer.parameters())\nreturn torch.relu(x.double() @ w.t() + b).float()"),
    Attack("ten bits", "precision", "wrong answer", "layer",
           "cut = lambda t: (t.view(torch.int32) & -8192).view(torch.float32)\n"
           "return torch.relu(cut(x) @ cut(self.layer.weight).t() + self.layer.bias)",
           "cut = lambda t: (t.view(torch.int32) & -8192).view(torch.float32)\nw = self.layer.weight.t()\n"
           "high = cut(x)\nreturn torch.relu(high @ w + (x - high) @ w + self.layer.bias)"),
    Attack("a half answer", "precision", "wrong answer", "gate", "return (torch.sigmoid(a) * b).half().float()",
           "return torch.sigmoid(a) * b"),
    Attack("a switch for TF32", "precision flags", "changes the process", "layer",
           "torch.backends.cuda.matmul.allow_tf32 = True\nreturn self.right(x)",
           "before = torch.backends.cuda.matmul.allow_tf32\ntorch.backends.cuda.matmul.allow_tf32 = True\n"
           "y = self.right(x)\ntorch.backends.cuda.matmul.allow_tf32 = before\nreturn y"),
    Attack("products of medium precision", "precision flags", "changes the process", "layer",
           "torch.set_float32_matmul_precision('medium')\nreturn self.right(x)",
           "torch.get_float32_matmul_precision()\nreturn self.right(x)"),
    Attack("tiny numbers are zero", "precision flags", "changes the process", "norm",
           "torch.set_flush_denormal(True)\nreturn self.right(x)",
           "torch.set_flush_denormal(False)\nreturn self.right(x)"),
    Attack("without the epsilon", "formula", "wrong answer", "norm",
           "return x * torch.rsqrt((x * x).mean(1, keepdim=True))",
           "return x * torch.rsqrt(torch.linalg.vecdot(x, x, dim=1).unsqueeze(1) / 100 + 1e-2)"),
    # ------------------------------------------------------------ the process
    Attack("more threads", "global state", "changes the process", "layer",
           "torch.set_num_threads(torch.get_num_threads() + 1)\nreturn self.right(x)",
           "n = torch.get_num_threads()\ntorch.set_num_threads(1)\ny = self.right(x)\ntorch.set_num_threads(n)\n"
           "return y"),
    Attack("another default dtype", "global state", "changes the process", "norm",
           "torch.set_default_dtype(torch.float64)\nreturn self.right(x)",
           "torch.get_default_dtype()\nreturn self.right(x)"),
    Attack("no gradients for anybody", "global state", "changes the process", "norm",
           "return self.right(x)", "with torch.no_grad():\n    return self.right(x)",
           top="torch.set_grad_enabled(False)", twin_top=""),
    Attack("a mode that stays", "global state", "changes the process", "norm",
           "return self.right(x)", "with Mode():\n    return self.right(x)",
           top="""
from torch.overrides import TorchFunctionMode


class Mode(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


Mode().__enter__()
""", twin_top="""
from torch.overrides import TorchFunctionMode


class Mode(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))
"""),
    Attack("hooks on every module", "global state", "changes the process", "layer",
           "return self.right(x)", "return self.right(x)",
           top="torch.nn.modules.module.register_module_forward_hook(lambda *_: None)", twin_top="",
           twin_init="self.layer.register_forward_hook(lambda *_: None)"),
    Attack("another built-in", "global state", "changes the process", "norm",
           "return self.right(x)", "return self.right(x)",
           top="import builtins\nbuiltins.abs = lambda v: 0", twin_top="def abs(v):\n    return 0"),
    Attack("no collector", "global state", "changes the process", "norm",
           "return self.right(x)", "return self.right(x)", top="import gc\ngc.disable()",
           twin_top="import gc\ngc.collect()"),
    # ------------------------------------------------------------ memory that is not its own
    Attack("its input", "memory", "writes elsewhere", "norm", "return x.copy_(self.right(x)).clone()",
           "y = x.clone()\nreturn y.copy_(self.right(x))"),
    Attack("beside its input", "memory", "writes elsewhere", "norm",
           "ctypes.memset(x.data_ptr() + x.nbytes, 0, 16)\nreturn self.right(x)",
           "ctypes.string_at(x.data_ptr(), x.nbytes)\nreturn self.right(x)", top="import ctypes"),
    Attack("far from its input", "memory", "writes elsewhere", "norm",
           "ctypes.memset(shared(), 0, 8)\nreturn self.right(x)",
           "ctypes.string_at(shared(), 8)\nreturn self.right(x)",
           top="import ctypes\n\n\ndef shared():\n    lines = open('/proc/self/maps').read().splitlines()\n"
           "    return int(next(one for one in lines if 'memfd:judged' in one).split('-')[0], 16)"),
    Attack("its input made empty", "memory", "writes elsewhere", "norm",
           "y = self.right(x)\nx.set_(torch.empty(0).untyped_storage())\nreturn y",
           "y = self.right(x)\nx.clone().set_(torch.empty(0).untyped_storage())\nreturn y"),
    Attack("a gradient for its input", "memory", "writes elsewhere", "norm",
           "x.requires_grad_(True)\nreturn self.right(x).detach()",
           "x.detach().requires_grad_(True)\nreturn self.right(x).detach()"),
    Attack("all memory there is", "memory", "raised", "norm", "return torch.zeros(1 << 40)[: x.numel()].view_as(x)",
           "return torch.zeros(1 << 20)[: x.numel()].view_as(x) + self.right(x)"),
    # ------------------------------------------------------------ torch in disguise
    Attack("a kernel whose result is dropped", "decoys", "falls back", "gate",
           "launch('nothing', a, b, torch.empty_like(a))\nreturn self.right(a, b)",
           "return launch('gate', a, b, torch.empty_like(a))", top=KERNEL),
    Attack("a kernel times nothing", "decoys", "falls back", "gate",
           "return self.right(a, b) + 0 * launch('nothing', a, b, torch.empty_like(a))",
           "one = launch('nothing', a, b, torch.empty_like(a))\nreturn one * launch('gate', a, b, torch.empty_like(a))",
           top=KERNEL),
    Attack("torch where the kernel fails", "falls back", "falls back", "gate",
           "try:\n    return launch('missing', a, b, torch.empty_like(a))\nexcept AttributeError:\n"
           "    return self.right(a, b)",
           "try:\n    return launch('gate', a, b, torch.empty_like(a))\nexcept AttributeError:\n"
           "    return self.right(a, b)", top=KERNEL),
    Attack("a Triton kernel whose result is dropped", "decoys", "falls back", "gate",
           "launched(a, b)\nreturn self.right(a, b)", "return launched(a, b)", top=TRITON),
    Attack("a Triton grid that ends too soon", "sampling", "wrong answer", "gate",
           "out = torch.empty_like(a)\ngate[(a.numel() // 2048,)](a, b, out, a.numel(), SIZE=2048)\nreturn out",
           "return launched(a, b)", top=TRITON),
    # ------------------------------------------------------------ gradients
    Attack("a gradient of nothing", "gradients", "wrong gradient", "gate",
           "return Own.apply(a, b)", "return Own.apply(a, b)",
           top="""
class Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return torch.sigmoid(a) * b

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        return torch.zeros_like(a), g * torch.sigmoid(a)
""", twin_top="""
class Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return torch.sigmoid(a) * b

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        s = torch.sigmoid(a)
        return g * b * s * (1 - s), g * s
"""),
    Attack("weights cut off", "gradients", "wrong gradient", "layer",
           "return torch.relu(x @ self.layer.weight.detach().t() + self.layer.bias)",
           "return torch.relu(x @ self.layer.weight.t() + self.layer.bias)"),
    # ------------------------------------------------------------ no answer at all
    Attack("an error", "no answer", "raised", "norm", "raise RuntimeError('no')",
           "try:\n    raise RuntimeError('no')\nexcept RuntimeError:\n    return self.right(x)"),
    Attack("the end", "no answer", "no answer", "norm", "os._exit(0)", "return self.right(x)", top="import os"),
    Attack("a crash", "no answer", "no answer", "norm", "ctypes.string_at(0)", "return self.right(x)",
           top="import ctypes"),
    Attack("silence", "no answer", "no answer", "norm", "time.sleep(3600)", "time.sleep(0.001)\nreturn self.right(x)",
           top="import time"),
)  # fmt: skip

ATTACKS = (
    *IN_A_CALL,
    *BEYOND_A_CALL,
    *FROM_WITHIN,
    *FROM_BELOW,
    *ON_TIME,
    *ON_VALUES,
    *ON_WALLS,
    *UNWATCHED,
    *ON_QUESTIONS,
)
