"""Attacks on the walls round a process: files and devices of the system, sockets and FIFOs outside, calls of the kernel
that reach beyond its namespaces. Each is right where one of its ways is open, and raises where none is."""

from __future__ import annotations

from attacked import Attack

__all__ = ["ON_WALLS"]

WAYS = """
import ctypes, errno, os, socket

LIBC = vars(ctypes)["CDLL"](None, use_errno=True)
FILES = (
    ("/proc/sys/vm/swappiness", os.O_WRONLY), ("/proc/sys/kernel/core_pattern", os.O_RDWR),
    ("/proc/sysrq-trigger", os.O_WRONLY), ("/dev/loop0", os.O_RDWR), ("/dev/kmsg", os.O_WRONLY),
    ("/dev/kvm", os.O_RDWR), ("/dev/fuse", os.O_RDWR), ("/dev/mem", os.O_RDONLY), ("/etc/shadow", os.O_RDONLY),
)
CALLS = {
    "add_key": (248, b"user", b"judged", b"kept", 4, -4), "keyctl": (250, 0, -4, 0), "ptrace": (101, 0, 0, 0, 0),
    "unshare": (272, 0x10000000), "bpf": (321, 0, 0, 0), "userfaultfd": (323, 1), "perf_event_open": (298, 0, 0, -1),
    "setns": (308, -1, 0), "syslog": (103, 10, 0, 0), "listen": (50, -1, 0),
    "process_vm_readv": (310, 1, 0, 0, 0, 0, 0), "mount": (165, 0, 0, 0, 0, 0),
}


def open_file():
    for place, how in FILES:
        try:
            os.close(os.open(place, how))
            return place
        except OSError:
            pass


def open_call():
    for name, (number, *arguments) in CALLS.items():
        ctypes.set_errno(0)
        if LIBC.syscall(number, *arguments) >= 0 or ctypes.get_errno() != errno.EPERM:
            return name


def open_door():  # calls that reach past a stop: the kernel goes on with them, or keeps others from looking
    context, old = ctypes.c_ulong(0), ((206, 4, ctypes.byref(context)), (209, 0, 0, 0), (447, 0), (425, 1, 0))
    for number, *arguments in old:
        if LIBC.syscall(number, *arguments) >= 0 or ctypes.get_errno() != errno.ENOSYS:
            return number
    for family in (38, 40):  # AF_ALG, AF_VSOCK
        try:
            return socket.socket(family, socket.SOCK_STREAM if family == 40 else socket.SOCK_SEQPACKET)
        except OSError as error:
            if error.errno != errno.EAFNOSUPPORT:
                return error


def limits():
    import resource

    most = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    return None if 0 < most <= 4096 else most


def outlives():  # a judge that is killed takes it along, whatever it does
    held = ctypes.c_int(0)
    LIBC.prctl(1, 0, 0, 0, 0)
    LIBC.prctl(2, ctypes.byref(held), 0, 0, 0)
    return None if held.value == 9 else held.value


def lends_its_rights():  # to whoever runs a file of its after it
    for way in (lambda: os.close(os.open("lent", os.O_CREAT | os.O_WRONLY, 0o4755)), lambda: os.chmod("lent", 0o2755),
                lambda: os.mknod("node", 0o104755), lambda: os.fchmod(os.open("lent", os.O_RDONLY), 0o4755)):
        try:
            open("lent", "w").close()
            way()
        except PermissionError:
            continue
        return oct(os.stat("lent").st_mode)


def writes_to(x):  # wherever its inputs lie
    for line in open("/proc/self/maps"):
        places, rights = line.split()[:2]
        low, high = (int(place, 16) for place in places.split("-"))
        if low <= x.data_ptr() < high:
            closed = "w" not in rights and LIBC.mprotect(ctypes.c_void_p(low), ctypes.c_size_t(4096), 3) != 0
            return None if closed else line


def open_socket():
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        one = socket.socket(socket.AF_UNIX, kind)
        for way in (lambda: one.connect("/run/judged"), lambda: one.sendto(b"x", "/run/judged")):
            try:
                way()
                return kind
            except OSError as error:
                if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.EISCONN, errno.ENOTCONN):
                    return error


def own_ways():
    open("mine", "w").close()
    os.mkfifo("pipe") if not os.path.exists("pipe") else None
    here, there = socket.socketpair()
    here.send(b"x")
    os.chmod("mine", 0o755)
    LIBC.prctl(1, 9, 0, 0, 0)
    assert there.recv(1) == b"x" and open("/dev/null", "w").write("x") and LIBC.getpid() == os.getpid()
"""


def _attack(name: str, way: str, needs: str) -> Attack:
    body = f"if {way}() is None:\n    raise PermissionError('every way is closed')\nreturn self.right(x)"
    return Attack(name, "walls", "raised", "norm", body, "own_ways()\nreturn self.right(x)", top=WAYS, needs=needs)


ON_WALLS = (
    _attack("files and devices of the system", "open_file", "devices"),
    _attack("calls beyond its namespaces", "open_call", "system calls"),
    _attack("sockets outside", "open_socket", "system calls"),
    _attack("calls that outlast a stop", "open_door", "system calls"),
    _attack("processes without end", "limits", "users"),
    _attack("a process that outlives the judge", "outlives", "system calls"),
    _attack("a file that runs as its owner", "lends_its_rights", "system calls"),
    Attack(
        "inputs that it could write to",
        "walls",
        "raised",
        "norm",
        "if writes_to(x) is None:\n    raise PermissionError('nowhere')\nreturn self.right(x)",
        "own_ways()\nreturn self.right(x)",
        top=WAYS,
    ),
)
