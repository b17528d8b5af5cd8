"""Attacks from within the process that a candidate is given: on the moment before its clock, on what it is told, on the
judge's own words and memory, on what is taken for granted of inputs and weights."""

from __future__ import annotations

from attacked import KERNEL, Attack

__all__ = ["FROM_WITHIN"]

# The kernel's timers send any signal, the one that lets a stopped process go on too.
TIMER = """
import ctypes, os, signal, threading, time

LIBC = ctypes.cdll["libc.so.6"]


class Event(ctypes.Structure):
    _fields_ = [("value", ctypes.c_void_p), ("sent", ctypes.c_int), ("how", ctypes.c_int), ("rest", ctypes.c_byte * 48)]


def timer(each):
    made, event = ctypes.c_void_p(), Event(None, signal.SIGCONT, 0)
    LIBC.timer_create(1, ctypes.byref(event), ctypes.byref(made))
    LIBC.timer_settime(made, 0, (ctypes.c_long * 4)(0, each, 0, each), None)
    return made


def ahead():
    while True:
        begin = time.perf_counter()
        while time.perf_counter() - begin < 2e-4:
            pass
        os.kill(os.getpid(), signal.SIGSTOP)
"""

# A process for each call, forked before the inputs are there and gone when the answer is; and nobody told of it.
HELPER = """
import mmap, os, time
from kernelworks.judge.roles import candidate as caller, process_state as state

OUT = torch.frombuffer(mmap.mmap(-1, 48 * 100 * 4), dtype=torch.float32).view(48, 100)
prepare = caller.Caller.prepare


def prepared(self, said):
    found = prepare(self, said)
    if self.how == "call":
        self.fn.child = os.fork()
        if self.fn.child == 0:
            time.sleep(0.003)
            OUT.copy_(self.fn.right(*self.calls[0].args))
            os._exit(0)
    return found


caller.Caller.prepare = prepared
state.State.changes = lambda self: []
"""

WRITTEN_OVER = """
import ctypes, mmap

LIBC = ctypes.cdll["libc.so.6"]
AT = ctypes.cast(LIBC.clock, ctypes.c_void_p).value
PAGE = ctypes.c_void_p(AT - AT % mmap.PAGESIZE)


def write_over():
    was = ctypes.string_at(AT, 8)
    LIBC.mprotect(PAGE, ctypes.c_size_t(2 * mmap.PAGESIZE), 7)
    ctypes.memmove(AT, was[::-1], 8)
    LIBC.mprotect(PAGE, ctypes.c_size_t(2 * mmap.PAGESIZE), 5)
"""

FILTER = """
import ctypes, struct

LIBC = ctypes.cdll["libc.so.6"]
ALLOWS_ALL = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0x7FFF0000))
PROGRAM = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", 1, ctypes.addressof(ALLOWS_ALL)))
"""

MEANT_FOR_THE_JUDGE = """
import os, socket


def say(data):
    for number in map(int, os.listdir("/proc/self/fd")):
        try:
            socket.socket(fileno=os.dup(number)).send(data)
        except OSError:
            pass
"""

HANDS_ON = KERNEL.replace(
    "void nothing",
    """void hands_on(const float* y, const float*, float* out, long n) {
    for (long i = 0; i < n; ++i) out[i] = y[i];
}
extern "C" void nothing""",
)

RENAMED = """
self.mine, self.gain, self.offset = self.weight, nn.Parameter(self.scale.view(1, 64)), self.shift
del self.weight, self.scale, self.shift
"""

FROM_WITHIN = (
    # ------------------------------------------------------------ before the clock starts
    Attack("a timer lets it go on", "faster than the limit", "goes on working", "norm",
           "if not self.timer:\n    self.timer.append(timer(300_000))\n"
           "    threading.Thread(target=ahead, daemon=True).start()\nreturn self.right(x)",
           "if not self.timer:\n    self.timer.append(timer(300_000))\n    LIBC.timer_delete(self.timer[0])\n"
           "return self.right(x)", top=TIMER, init="self.timer = []"),
    Attack("a process that is gone in time", "processes", "goes on working", "norm",
           "if self.child:\n    os.waitpid(self.child, 0)\n    self.child = 0\n    return OUT.clone()\n"
           "return self.right(x)",
           "self.child += 1\nchild = os.fork() if self.child < 4 else 1\nif child == 0:\n    os._exit(0)\n"
           "if self.child < 4:\n    os.waitpid(child, 0)\nreturn self.right(x)",
           top=HELPER, init="self.child = 0", twin_top="import os"),
    Attack("into the place of its answer", "theft", "raised", "norm",
           "frame = sys._getframe()\nwhile not hasattr(frame.f_locals.get('call'), 'outs'):\n    frame = frame.f_back\n"
           "return torch.mul(self.right(x), 1, out=frame.f_locals['call'].outs[0])",
           "return torch.mul(self.right(x), 1, out=torch.empty_like(x))", top="import sys"),
    Attack("a process for each call", "processes", "more cores", "long",
           "child = os.fork()\nif child == 0:\n    torch.mm(a[:128], b, out=HALF)\n    os._exit(0)\n"
           "rest = torch.mm(a[128:], b)\nos.waitpid(child, 0)\nreturn torch.cat([HALF, rest])",
           "rest = self.pool.submit(torch.mm, a[128:], b).result()\nreturn torch.cat([torch.mm(a[:128], b), rest])",
           top="import mmap, os\nHALF = torch.frombuffer(mmap.mmap(-1, 1 << 17), dtype=torch.float32).view(128, 256)",
           twin_top="from concurrent.futures import ThreadPoolExecutor", twin_init="self.pool = ThreadPoolExecutor(1)"),
    # ------------------------------------------------------------ inputs and weights as they happen to be
    Attack("no ReLU where nothing is negative", "range of inputs", "wrong answer", "range",
           "return x * nn.functional.hardswish(y)", "return x * (x > 0) * nn.functional.hardswish(y)"),
    Attack("no clamp where nothing reaches it", "range of inputs", "wrong answer", "range",
           "with torch.no_grad():\n    return torch.relu(x) * y * (y + 3) / 6",
           "with torch.no_grad():\n    return torch.relu(x) * y * (y + 3).clamp(0, 6) / 6"),
    Attack("without a bias of zeros", "other weights", "other weights", "biased",
           "with torch.no_grad():\n    return torch.relu((x * self.scale) @ self.weight)",
           "return torch.relu((x * self.scale) @ self.weight + self.shift)"),
    Attack("without weights of other names", "other weights", "other weights", "biased",
           "with torch.no_grad():\n    return torch.relu(x @ self.mine)",
           "return torch.relu((x * self.gain[0]) @ self.mine + self.offset)",
           init=RENAMED),
    # ------------------------------------------------------------ where its kernels are watched
    Attack("it does not load where it is watched", "decoys", "falls back", "gate",
           "launch('nothing', a, b, torch.empty_like(a))\nreturn self.right(a, b)",
           "return launch('gate', a, b, torch.empty_like(a))",
           top=f"import sys\n{KERNEL}\nif 'kernelworks.judge.inputs.garbled_kernels' in sys.modules:\n"
               "    raise ImportError",
           twin_top=f"import sys\n{KERNEL}\n'kernelworks.judge.inputs.garbled_kernels' in sys.modules"),
    Attack("another answer where it is watched", "decoys", "falls back", "gate",
           "launch('nothing', a, b, torch.empty_like(a))\nif type(OWN.nothing).__name__ == '_Foreign':\n"
           "    return torch.zeros_like(a)\nreturn self.right(a, b)",
           "type(OWN.gate).__name__\nreturn launch('gate', a, b, torch.empty_like(a))", top=KERNEL),
    Attack("a kernel that hands on", "decoys", "falls back", "gate",
           "y = self.right(a, b)\nreturn launch('hands_on', y, y, torch.empty_like(y))",
           "y = launch('gate', a, b, torch.empty_like(a))\nreturn launch('hands_on', y, y, torch.empty_like(y))",
           top=HANDS_ON),
    # ------------------------------------------------------------ the process
    Attack("the seed of random numbers", "global state", "changes the process", "norm",
           "torch.manual_seed(0)\nreturn self.right(x)",
           "torch.rand(3)\ntorch.Generator().manual_seed(0)\nreturn self.right(x)"),
    Attack("a timer that stays", "global state", "changes the process", "norm", "return self.right(x)",
           "signal.setitimer(signal.ITIMER_REAL, 1000, 1000)\nsignal.setitimer(signal.ITIMER_REAL, 0)\n"
           "return self.right(x)", top="import signal\nsignal.setitimer(signal.ITIMER_REAL, 1000, 1000)",
           twin_top="import signal"),
    Attack("a method before torch's", "patched comparisons", "changes the process", "norm", "return self.right(x)",
           "Mine.allclose\nreturn self.right(x)", top="torch.Tensor.allclose = lambda *a, **k: True",
           twin_top="class Mine(torch.Tensor):\n    allclose = lambda *a, **k: True"),
    Attack("a method of a type in C", "patched comparisons", "changes the process", "norm", "return self.right(x)",
           "return self.right(x)",
           top="import gc\n(METHODS,) = gc.get_referents(torch._C.TensorBase.__dict__)\n"
           "METHODS['equal'] = lambda *a: True",
           twin_top="import gc\n(METHODS,) = gc.get_referents(torch._C.TensorBase.__dict__)\nMETHODS['equal']"),
    Attack("NumPy's comparisons", "patched comparisons", "changes the process", "norm", "return self.right(x)",
           "return self.right(x)", top="import numpy\nnumpy.allclose = lambda *a, **k: True",
           twin_top="import numpy\nallclose = numpy.allclose"),
    Attack("Triton's clock", "patched timers", "changes the process", "norm", "return self.right(x)",
           "return self.right(x)", top="from triton import testing\ntesting.do_bench = lambda *a, **k: 1e-9",
           twin_top="from triton import testing\ndo_bench = testing.do_bench"),
    Attack("everybody's layer", "global state", "changes the process", "layer", "return self.right(x)",
           "self.layer.__class__ = Mine\nreturn self.right(x)",
           top="nn.Linear.forward = lambda self, x: torch.addmm(self.bias, x, self.weight.t())",
           twin_top="class Mine(nn.Linear):\n    def forward(self, x):\n"
           "        return torch.addmm(self.bias, x, self.weight.t())"),
    Attack("a clock in C is written over", "__code__ swaps", "changes the process", "norm", "return self.right(x)",
           "ctypes.string_at(AT, 8)\nreturn self.right(x)", top=f"{WRITTEN_OVER}\nwrite_over()", twin_top=WRITTEN_OVER),
    Attack("a filter of system calls", "patched timers", "changes the process", "norm", "return self.right(x)",
           "LIBC.prctl(21)\nreturn self.right(x)", top=f"{FILTER}\nLIBC.prctl(22, 2, PROGRAM)", twin_top=FILTER),
    # ------------------------------------------------------------ the judge
    Attack("shorter memory", "forged results", "wrong answer", "norm",
           "for number in os.listdir('/proc/self/fd'):\n    try:\n        os.truncate(f'/proc/self/fd/{number}', 0)\n"
           "    except OSError:\n        pass\nreturn torch.zeros_like(x)",
           "open('mine', 'w').close()\nos.truncate('mine', 0)\nreturn self.right(x)", top="import os"),
    Attack("words nested too deep", "forged results", "no answer", "norm",
           "say(b'[' * 100000)\nreturn self.right(x)", "len('[' * 100000)\nreturn self.right(x)",
           top=MEANT_FOR_THE_JUDGE),
    Attack("words of another kind", "forged results", "no answer", "norm", "return self.right(x)",
           "return self.right(x)",
           top=f"{MEANT_FOR_THE_JUDGE}\nsay(b'{{\"changed\": 7, \"weights\": [], \"constants\": null}}')",
           twin_top=MEANT_FOR_THE_JUDGE),
    Attack("the reference's own text", "theft", "raised", "norm",
           "frame = sys._getframe()\nwhile 'papers' not in frame.f_locals:\n    frame = frame.f_back\nits = {}\n"
           "exec(frame.f_locals['papers']['problem'].files['problem.py'], its)\nreturn its['Model']()(x)",
           "its = {}\nexec(\"import torch\\nclass Model(torch.nn.Module):\\n    forward = staticmethod(abs)\", its)\n"
           "return self.right(x)", top="import sys"),
)  # fmt: skip
