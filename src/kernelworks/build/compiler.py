"""The C++ compiler: which one it is, and runs of it that end. One that fails or hangs is asked once, and remembered."""

from __future__ import annotations

import contextlib
import hashlib
import shlex
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from kernelworks.build.cache import BuildError, failure, remember
from kernelworks.build.loading import unfit
from kernelworks.machine import environment
from kernelworks.machine.process_tree import group_members, kill_processes

__all__ = ["compile_source", "identity", "toolchain"]

QUERY_S = 20.0  # for a compiler's version, and for a program of one line: both take a tenth of a second
SLICE_S = 0.5  # between two looks at how long a run has taken
SMALL = 1 << 20  # bytes; a script's content is part of what the compiler is, a binary's date and size will do
DISK_ERRORS = ("No space left on device", "Disk quota exceeded", "Input/output error", "Read-only file system")

_toolchains: dict[tuple[str, ...], str | BuildError] = {}  # by command and cache folder, for the whole process
_asking = threading.RLock()


class _Slow(Exception):
    """A run took longer than it was given; it and all that it started are dead."""


def _command() -> list[str]:
    """The compiler's words: a path, which may hold blanks, or a command with arguments (``ccache g++``)."""
    given = environment.compiler()
    if shutil.which(given) is not None:
        return [given]
    try:
        words = shlex.split(given)
    except ValueError:
        words = []
    if not words or shutil.which(words[0]) is None:
        raise BuildError(
            f"no C++ compiler: {given!r} is not on the PATH (install g++, or set KERNELWORKS_CXX)", about="no compiler"
        )
    return words


def identity() -> str:
    """A name for the compiler as it lies on disk: another one once it is repaired. Raises BuildError without one."""
    return _identity(_command())


def _identity(command: Sequence[str]) -> str:
    parts = list(command)
    for word in command:
        path = Path(shutil.which(word) or word)
        with contextlib.suppress(OSError):
            stat = path.resolve().stat()
            content = hashlib.sha256(path.read_bytes()).hexdigest() if stat.st_size < SMALL else ""
            parts.append(f"{path.resolve()} {stat.st_size} {stat.st_mtime_ns} {content}")
    return f"compiler-{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:20]}"


def _run(command: Sequence[str], seconds: float, *, after: float = 0.0, then: object = None) -> tuple[int, str, str]:
    """Exit code, stdout and stderr. The run has a process group of its own: its end is the end of all it started. It
    stays in our session: if it is halted as we are killed, the system ends it.

    Where it takes longer than ``after`` seconds, ``then()`` is called once; what it raises ends the run.
    Raises _Slow after ``seconds``, OSError where it cannot be started.
    """
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        errors="replace", process_group=0,
    ) as process:  # fmt: skip
        try:
            if callable(then) and after < seconds:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    out, err = _communicate(process, after)
                    return process.returncode, out, err
                seconds -= after
                then()
            out, err = _communicate(process, seconds)
        except subprocess.TimeoutExpired:
            _kill(process)
            raise _Slow from None
        except BaseException:
            _kill(process)
            raise
        return process.returncode, out, err


def _communicate(process: subprocess.Popen[str], seconds: float) -> tuple[str, str]:
    """What it has written until its end. Raises TimeoutExpired after so many seconds, in which those do not count for
    which this process was halted: what it has started stood then too."""
    while True:
        begin, slice_s = time.monotonic(), min(SLICE_S, max(0.0, seconds))
        try:
            return process.communicate(timeout=slice_s)
        except subprocess.TimeoutExpired:
            seconds -= min(time.monotonic() - begin, 2 * SLICE_S)
            if seconds <= 0:
                raise


def _kill(process: subprocess.Popen[str]) -> None:
    kill_processes(lambda: group_members(process.pid))
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=5.0)  # a pipe may be held by one that left the group
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()


def toolchain() -> str:
    """The compiler as certificates and cache keys name it, such as ``"g++ 12.2.0"``. Raises BuildError without one."""
    key = (environment.compiler(), str(environment.cache_dir("build")))
    with _asking:
        found = _toolchains.get(key)
        if found is None:
            try:
                found = _asked()
            except BuildError as error:
                found = error
            _toolchains[key] = found
    if isinstance(found, BuildError):
        raise found.with_traceback(None)
    return found


def _asked() -> str:
    command = _command()
    identity = _identity(command)
    known = failure(identity)
    if known is not None:
        raise known
    query, shown = [*command, "-dumpfullversion", "-dumpversion"], " ".join(command)
    try:
        code, out, err = _run(query, QUERY_S)
    except _Slow:
        raise _broken(identity, f"{shown} -dumpfullversion said nothing in {QUERY_S:.0f} s") from None
    except OSError as error:
        raise BuildError(f"could not run {shown!r}: {error}", about=identity) from error
    version = out.strip().splitlines()
    if code or not version:
        raise BuildError(f"{shown} -dumpfullversion exited with {code}: {err.strip()[:300]}", about=identity)
    return f"{Path(command[-1]).name} {version[0][:60]}"


def _broken(identity: str, text: str) -> BuildError:
    """The compiler is at fault: remembered under its own name, and not once more under a source's."""
    remember(identity, BuildError(text, about=identity, lasting=True))
    return BuildError(text, about=identity)


def compile_source(flags: Sequence[str], source: Path, target: str, output: Path, behind: Sequence[str] = ()) -> None:
    """Compiles one source; ``behind`` are words for the linker.

    Raises BuildError, which says whether the compiler is at fault or this source.

    A compiler that fails or takes long is given a program of one line. If it fails there too, no other source is tried
    with it, in this process or (for the hour) in another. Cost on the way that everybody takes: nothing.
    """
    name = toolchain()
    command = _command()
    identity = _identity(command)
    limit = environment.compile_seconds()

    def probe() -> None:
        _probe(command, identity, output.parent)

    whole = [*command, *flags, str(source), *behind, "-o", str(output)]
    shown = f"{' '.join(command)} could not compile {source.parent.name}/{source.name} for {target}"
    try:
        code, _, err = _run(whole, limit, after=min(QUERY_S, limit), then=probe)
    except _Slow:
        probe()
        text = f"{shown}: not done after {limit:.0f} s (KERNELWORKS_COMPILE_SECONDS)"
        raise BuildError(text, about=f"{source} {name}", lasting=True) from None
    except OSError as error:
        raise BuildError(f"could not run {command[0]!r}: {error}", about=identity) from error
    said = f"{err.strip()[:4000]}\n{' '.join(whole)}"
    if code < 0 or "Killed signal" in err:  # by the system, out of memory: the next process may have more
        raise BuildError(f"{shown}: it was killed: {said}", about=f"{source} {name}")
    if code and any(words in err for words in DISK_ERRORS):
        raise BuildError(f"{shown}: {said}", about=str(output.parent.parent))
    wrong = "" if code else unfit(output)
    if code or wrong:
        probe()
        came = f"exited with {code}" if code else f"exited with 0, and of what it wrote: {wrong}"
        raise BuildError(f"{shown}: it {came}:\n{said}", about=f"{source} {name}", lasting=True)


def _probe(command: Sequence[str], identity: str, folder: Path) -> None:
    """Raises BuildError where the compiler cannot make a library of one line: the compiler is at fault then, for all
    sources from here on."""
    shown = " ".join(command)
    seconds = min(QUERY_S, environment.compile_seconds())
    with tempfile.TemporaryDirectory(dir=folder, prefix="probe-") as scratch:
        source, made = Path(scratch) / "probe.cpp", Path(scratch) / "probe.so"
        source.write_text('extern "C" int probe() { return 0; }\n', encoding="utf-8")
        text = f"the C++ compiler does not work: {shown} cannot compile a function of one line"
        try:
            code, _, err = _run([*command, "-shared", "-fPIC", str(source), "-o", str(made)], seconds)
        except _Slow:
            text = f"{text} in {seconds:.0f} s"
        except OSError as error:
            text = f"{text}: {error}"
        else:
            wrong = "" if code else unfit(made)
            if not code and not wrong:
                return
            if any(words in err for words in DISK_ERRORS):
                raise BuildError(f"{shown}: {err.strip()[:300]}", about=str(folder.parent))
            text = f"{text} (exit code {code}): {wrong or err.strip()[:1000]}"
    broken = _broken(identity, text)
    with _asking:
        _toolchains[environment.compiler(), str(environment.cache_dir("build"))] = broken
    raise broken
