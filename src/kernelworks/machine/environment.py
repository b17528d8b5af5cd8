"""The one reader of environment variables, and the one place that knows the cache folders.

| variable | meaning | default |
|---|---|---|
| ``KERNELWORKS_CACHE`` | folder for compiled libraries, certificates and measured peaks | the platform's cache folder |
| ``KERNELWORKS_CXX`` | the C++ compiler | ``g++`` |
| ``CXX`` | the C++ compiler of ``torch.compile`` on a CPU (torch reads it) | ``g++`` |
| ``KERNELWORKS_CHOOSE`` | ``timed``: kernels by tuning records; ``listed``: the first verified one | ``timed`` |
| ``KERNELWORKS_ISA`` | ``scalar``, ``avx2`` or ``avx512``: the CPU is taken to have no wider instructions | unset |
| ``KERNELWORKS_COMPILE_SECONDS`` | how long one compile may take before its compiler is given up | 120 |
| ``KERNELWORKS_MODEL_KEY`` | what a language model's endpoint is shown; a search may name another variable | unset |
| ``KERNELWORKS_NATIVE`` | the C++ entry: built in the ``background``, ``build``, ``found`` or ``0`` | ``background`` |
| ``RAY_ADDRESS`` | a running cluster of Ray's, in which a search's workers run | a cluster of the search's own |
| ``WORLD_SIZE`` | above 1: one of several ranks of a program, which do not wait for each other's measurements | 1 |
| ``COLUMNS`` | how wide a report is | the terminal's width, 132 in a pipe |
| ``NO_COLOR`` | any value: no colours in the terminal | unset |
| ``TEARDOWN_CUPTI`` | ``1`` while torch's profiler ends on a GPU: its C++ reads it; then as it was before | unset |
| ``TRITON_INTERPRET`` | ``1``: Triton's interpreter runs kernels on CPU tensors (Triton reads it too) | unset |

Values are read when they are asked for, never at import, so a test or a program may set them late.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import platformdirs

__all__ = [
    "cache_dir", "can_keep",
    "cupti_teardown",
    "columns",
    "compile_seconds",
    "compiler",
    "inductor_compiler",
    "instruction_set_cap",
    "is_interpreting",
    "is_native_set",
    "is_tested",
    "loopback_variables",
    "native",
    "no_color",
    "passive_wait_variables",
    "ray_address",
    "restore_variables",
    "secret",
    "selection_policy",
    "show_gpu",
    "variables",
    "variables_of_a_builder",
    "variables_without_secrets",
    "visible_gpus",
    "world_size",
    "write_lines",
    "write_whole",
]  # fmt: skip

COMPILE_S = 120.0  # The largest op package takes 4 s on a quiet core.

# Words of names whose values are nobody else's business; and names that were read as such here.
SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL")
_read_as_secrets: set[str] = set()


def cache_dir(kind: str) -> Path:
    """The folder for one kind of cached thing (``"build"``, ``"certificates"``, ``"peaks"``). Not created here."""
    root = os.environ.get("KERNELWORKS_CACHE")
    return (Path(root) if root else Path(platformdirs.user_cache_dir("kernelworks"))) / kind


def can_keep(folder: Path) -> bool:
    """Whether files can be written to a folder, which need not be there yet; nothing is made."""
    there = next((each for each in (folder, *folder.parents) if each.exists()), folder)
    return there.is_dir() and os.access(there, os.W_OK)


def write_whole(path: Path, text: str, prefix: str, *, mode: int | None = None) -> None:
    """Writes a file through a rename: whoever reads it finds it whole, as it was or as it is now, whatever was killed.

    ``prefix`` begins the name of what a kill may leave beside it; ``mode`` are the file's permissions, by default those
    of a file that is its owner's alone. Makes the folder. Raises OSError.
    """
    write_lines(path, (text,), prefix, mode=mode)


def write_lines(path: Path, texts: Iterable[str], prefix: str, *, mode: int | None = None) -> None:
    """``write_whole`` of texts one after the other, each as it comes: a file that need not fit in memory. What an
    iterator raises leaves the file as it was."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, scratch = tempfile.mkstemp(dir=path.parent, prefix=prefix)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.writelines(texts)
        if mode is not None:
            os.chmod(scratch, mode)
        os.replace(scratch, path)
    except BaseException:
        Path(scratch).unlink(missing_ok=True)
        raise


def compiler() -> str:
    """The C++ compiler's command."""
    return os.environ.get("KERNELWORKS_CXX") or "g++"


def inductor_compiler() -> str:
    """The C++ compiler that torch's inductor calls for code of a CPU, as long as the program sets none itself."""
    return os.environ.get("CXX") or "g++"


def selection_policy() -> str:
    """How kernels are chosen, ``"timed"`` or ``"listed"``. Raises ValueError if the variable says neither."""
    given = os.environ.get("KERNELWORKS_CHOOSE") or "timed"
    if given not in ("timed", "listed"):
        raise ValueError(f"KERNELWORKS_CHOOSE must be timed or listed, got {given!r}")
    return given


def instruction_set_cap() -> str:
    """The widest instruction set that the CPU is taken to have, "" for all that it has. Raises ValueError if the
    variable says none of them."""
    given = os.environ.get("KERNELWORKS_ISA") or ""
    if given not in ("", "scalar", "avx2", "avx512"):
        raise ValueError(f"KERNELWORKS_ISA must be scalar, avx2 or avx512, got {given!r}")
    return given


def compile_seconds() -> float:
    """The time limit of one compile; the default if the variable holds no positive number."""
    try:
        given = float(os.environ.get("KERNELWORKS_COMPILE_SECONDS", ""))
    except ValueError:
        return COMPILE_S
    return given if 0 < given < float("inf") else COMPILE_S


def variables() -> dict[str, str]:
    """All variables as they are, to be put back after a program of somebody else's."""
    return dict(os.environ)


def secret(name: str) -> str:
    """What a variable that the user names holds, "" if it is unset; no process of a candidate's is handed it."""
    _read_as_secrets.add(name)
    return os.environ.get(name, "")


def variables_without_secrets() -> dict[str, str]:
    """All variables but those whose names say that they hold a secret, and those that were read as one."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in _read_as_secrets and not SECRET.search(name.upper())
    }


def loopback_variables() -> dict[str, str]:
    """All variables, for the ranks of a group that are all on this host: gloo asks for no other name of it."""
    return {**passive_wait_variables(), "GLOO_SOCKET_IFNAME": "lo"}


def passive_wait_variables() -> dict[str, str]:
    """All variables, for a process of several threads that shares the cores with others like it: its threads sleep
    if they wait for each other, and do not spin."""
    return {"OMP_WAIT_POLICY": "passive", **os.environ}


def restore_variables(before: dict[str, str]) -> None:
    """What was set since is unset, what was changed or unset is as it was."""
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update({name: value for name, value in before.items() if os.environ.get(name) != value})


@contextlib.contextmanager
def cupti_teardown() -> Iterator[None]:
    """A session of torch's profiler that ends within leaves no CUPTI attached to the process."""
    before = os.environ.get("TEARDOWN_CUPTI")
    os.environ["TEARDOWN_CUPTI"] = "1"  # putenv: the profiler's C++ reads it with getenv when a session ends
    try:
        yield
    finally:
        if before is None:
            os.environ.pop("TEARDOWN_CUPTI", None)
        else:
            os.environ["TEARDOWN_CUPTI"] = before


def ray_address() -> str:
    """Where a cluster of Ray's runs that searches are to use, "" if none is named."""
    return os.environ.get("RAY_ADDRESS", "")


def world_size() -> int:
    """Of how many ranks of a distributed program this is one; 1 if nothing says so."""
    given = os.environ.get("WORLD_SIZE", "")
    return int(given) if given.isdigit() else 1


def visible_gpus() -> list[str] | None:
    """The GPUs that this process is shown, by number or name; None if that is all of them."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    return None if given is None else [name.strip() for name in given.split(",") if name.strip()]


def show_gpu(name: str) -> None:
    """From here on this process, and those that it starts, see that GPU alone; before torch has looked for any."""
    os.environ["CUDA_VISIBLE_DEVICES"] = name


def native() -> str:
    """Whether ops are entered through C++: ``"background"`` (a process that calls ops has it built beside, and verbs
    that take seconds build it), ``"build"`` (those verbs alone), ``"found"``, or ``"0"``."""
    given = os.environ.get("KERNELWORKS_NATIVE") or "background"
    if given not in ("background", "build", "found", "0"):
        raise ValueError(f"KERNELWORKS_NATIVE must be background, build, found or 0, got {given!r}")
    return given


def is_native_set() -> bool:
    """Whether somebody said how ops are entered."""
    return bool(os.environ.get("KERNELWORKS_NATIVE"))


def is_tested() -> bool:
    """Whether pytest runs this process, or started it."""
    return "PYTEST_CURRENT_TEST" in os.environ or "pytest" in sys.modules


def variables_of_a_builder() -> dict[str, str]:
    """All variables, for a process that compiles: it sees no GPU and starts nothing itself."""
    return {**os.environ, "CUDA_VISIBLE_DEVICES": "", "KERNELWORKS_NATIVE": "build"}


def no_color() -> bool:
    """Whether the user asked for plain text (https://no-color.org)."""
    return "NO_COLOR" in os.environ


def columns() -> int:
    """How wide the user says that the terminal is; 0 if nothing is said."""
    text = os.environ.get("COLUMNS", "")
    return int(text) if text.isdigit() else 0


def is_interpreting() -> bool:
    """Whether Triton kernels run in its interpreter, on CPU tensors."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"
