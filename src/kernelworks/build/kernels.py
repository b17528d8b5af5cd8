"""An op's kernels from its files: C++ (one kernel for each instruction set), Triton or CUDA C++."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.metadata
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from kernelworks.build import cuda, series, sharing
from kernelworks.build.configs import configs
from kernelworks.build.cpp import TARGETS, BuildError, build_library, differs, flags_of, library, toolchain
from kernelworks.build.launch_code import Launches, WholeModule, kernel_hash
from kernelworks.build.sharing import watch_forks
from kernelworks.build.sources import hash_of
from kernelworks.contract import Kernel, Request
from kernelworks.contract.complex_numbers import is_inexact, number_kind, wide_dtype
from kernelworks.contract.results import Result, dtypes_of
from kernelworks.machine import environment, machine

__all__ = [
    "also_of",
    "as_float64",
    "cpp_kernels",
    "cpu_guard",
    "cuda_kernel",
    "in_float64",
    "into",
    "python_kernel",
    "searched_kernel",
    "table_triton_kernel",
    "triton_kernel",
    "with_forward_of",
    "with_libraries",
]

Launch = Callable[..., Any]
Guard = Callable[[Request], str | None]

# The usual op package: one portable source for every instruction set, and the plain one for reading.
SIMD_TARGETS: Mapping[str, str] = {"avx512": "simd.cpp", "avx2": "simd.cpp", "scalar": "scalar.cpp"}


def cpp_kernels(
    op_package: Path,
    *,
    forward: Launch,
    backward: Launch | None = None,
    targets: Mapping[str, str] = SIMD_TARGETS,
    guards: Mapping[str, Guard] | None = None,
    guard: Guard | None = None,
    bound: bool = False,
) -> list[Kernel]:
    """One kernel per target, best first in the order of ``targets`` (target name -> source file in ``op_package``).

    ``forward(library, *args, out=None)`` and ``backward(library, *args, out=None)`` allocate what is not given and
    call the library's functions; with ``bound`` they take the library alone and return what does that. ``guard`` holds
    for every kernel, ``guards[target]`` for one.
    """
    launches = {"forward": forward} | ({"backward": backward} if backward else {})
    kernels = []
    for name, source in targets.items():
        kernels.append(
            Kernel(
                name=name,
                target=name,
                load=functools.partial(_load, op_package / source, name, launches, bound),
                guard=functools.partial(cpu_guard, name, tuple(g for g in (guard, (guards or {}).get(name)) if g)),
                source=op_package / source,
                hashed=functools.partial(kernel_hash, functools.partial(flags_of, op_package / source, name)),
                toolchain=toolchain,
                passes=tuple(launches),
                differs=functools.partial(differs, op_package / source, name),
            )
        )
    return kernels


def with_libraries(kernel: Kernel, sources: Sequence[Path], *, forward: Launch, backward: Launch, first: int) -> Kernel:
    """A kernel of ``cpp_kernels`` whose launches take several libraries: ``forward`` of the first so many ``sources``,
    ``backward`` of all. They are compiled side by side, and a first call compiles none that it does not need."""

    @functools.cache
    def load(pass_: str) -> Callable[..., Any]:
        kernel.load(pass_)
        launch, needed = (forward, sources[:first]) if pass_ == "forward" else (backward, sources)
        with ThreadPoolExecutor(len(needed)) as pool:
            list(pool.map(lambda path: build_library(path, kernel.target), needed))
        return functools.partial(launch, *(library(path, kernel.target) for path in needed))

    def made_of() -> tuple[Any, ...]:
        return tuple((path, *flags_of(path, kernel.target)) for path in sources)

    def apart() -> str:
        return next(filter(None, (differs(path, kernel.target) for path in sources)), "")

    return dataclasses.replace(kernel, load=load, hashed=functools.partial(kernel_hash, made_of), differs=apart)


def _load(
    source: Path, target: str, launches: Mapping[str, Launch], bound: bool, pass_: str
) -> Callable[..., Any]:  # fmt: skip
    watch_forks()
    if bound:
        call: Callable[..., Any] = launches[pass_](library(source, target))
        return call
    return functools.partial(launches[pass_], library(source, target))


def cpu_guard(target: str, guards: tuple[Guard, ...], request: Request) -> str | None:
    """Why a kernel for a CPU declines: the device, the instruction set, or what its own guards say."""
    if request.device != "cpu":
        return f"runs on CPU tensors, got {request.device}"
    missing = TARGETS[target].needs - machine().features
    if missing:
        return f"this CPU has no {', '.join(sorted(missing))}"
    for guard in guards:
        reason = guard(request)
        if reason:
            return reason
    return None


SMALL = 2**22  # elements: from about here on a kernel takes longer than its launch
PACKAGE = Path(__file__).resolve().parent.parent


def triton_kernel(
    op_package: Path, *, guard: Guard | None = None, passes: tuple[str, ...] = ("forward", "backward"),
    name: str = "triton", inner: str = "float32", in_place: bool = False, launches: int = 1, module: str = "triton",
) -> Kernel:  # fmt: skip
    """The kernel of an op package's ``triton.py``, or of another ``module`` there, whose ``forward(*args, out=None)``
    and ``backward`` launch its kernels.

    ``prepare_forward(*args)`` may return what serves calls like this one with less work in Python (see ``Kernel``);
    without it a small call of one launch is recorded and replayed, but for an op that works ``in_place``. An op package
    whose choices hang on no address says more ``launches``: calls of any size that make up to as many are replayed. The
    module is imported when the kernel is loaded. Its hash covers all of ours that these functions reach, kernels too,
    and the kernel's configurations in tuning.toml.
    """
    functions, source = Launches(_module(op_package, module), passes), op_package / f"{module}.py"
    return Kernel(
        name=name,
        target="triton",
        load=functools.partial(_load_triton, functions),
        guard=functools.partial(_decline_gpu, guard),
        source=source,
        hashed=functools.partial(kernel_hash, functools.partial(_configured, source, name)),
        toolchain=triton_toolchain,
        passes=passes,
        device="cuda",
        prepare=functools.partial(_prepare_triton, functions, in_place, launches),
        inner=inner,
    )


def table_triton_kernel(
    op_package: Path, entry: str, *, passes: tuple[str, ...] = ("forward", "backward"), **more: Any
) -> Kernel:  # fmt: skip
    """``triton_kernel`` of an op that is an entry of a table: ``triton.py`` is one for all of them, and has a function
    ``ENTRY_forward`` and one ``ENTRY_backward`` for each. ``more`` is that function's: another ``module``, and the
    kernel's ``name`` and ``guard``."""
    functions = Launches(_module(op_package, more.get("module", "triton")), passes, f"{entry}_")
    return dataclasses.replace(
        triton_kernel(op_package, passes=passes, **more),
        load=functools.partial(_load_entry, functions),
        prepare=functools.partial(_prepare_entry, functions),
    )


def step_triton_kernel(op_package: Path, entry: str, guard: Guard) -> Kernel:
    """The same of an optimizer of a table, which steps in place: ``ENTRY_forward``, and ``ENTRY_prepare`` for what a
    call like others does once."""
    functions = Launches(_module(op_package, "triton"), ("forward",), f"{entry}_")
    return dataclasses.replace(
        triton_kernel(op_package, guard=guard, passes=("forward",), in_place=True),
        load=functools.partial(_load_entry, functions),
        prepare=functools.partial(_prepare_step, functions),
    )


def _prepare_step(functions: Launches, pass_: str, args: tuple[Any, ...]) -> Callable[..., Any]:
    _load_entry(functions, pass_)
    made: Callable[..., Any] = getattr(importlib.import_module(functions.module), f"{functions.prefix}prepare")(*args)
    return made


def _load_entry(functions: Launches, pass_: str) -> Callable[..., Any]:
    triton_toolchain()
    launch: Callable[..., Any] = getattr(importlib.import_module(functions.module), f"{functions.prefix}{pass_}")
    return launch


def _prepare_entry(functions: Launches, pass_: str, args: tuple[Any, ...]) -> Callable[..., Any] | None:
    """A replay of a small call, as of other pointwise ops."""
    if environment.is_interpreting() or any(a.numel() > SMALL for a in args if isinstance(a, torch.Tensor)):
        return None
    from kernelworks.build.replay import make_replay  # imports Triton

    return make_replay(_load_entry(functions, pass_), args, most=1)


def cuda_kernel(
    op_package: Path,
    *,
    source: str = "sm90.cu",
    guard: Guard | None = None,
    passes: tuple[str, ...] = ("forward",),
    name: str = "sm90",
    replays: tuple[str, ...] = (),
) -> Kernel:
    """The kernel of an op package's CUDA C++ for Hopper; ``forward(*args, out=None)`` and ``backward`` of ``NAME.py``
    launch it.

    ``prepare_forward(*args)`` may return what serves calls like this one with less work in Python (see ``Kernel``);
    passes that are named in ``replays``, whose choices hang on no address but its alignment to 16 bytes, are recorded
    and replayed (``series.py``). The hash covers the source and what it includes, all of ours that these functions
    reach, and the kernel's configurations in tuning.toml.
    """
    functions = Launches(_module(op_package, name), passes)
    return Kernel(
        name=name,
        target="sm_90a",
        load=functools.partial(_load_cuda, op_package / source, functions),
        guard=functools.partial(_decline_hopper, guard),
        source=op_package / source,
        hashed=functools.partial(kernel_hash, functools.partial(_configured, op_package / source, name, cuda.FLAGS)),
        toolchain=cuda.toolchain,
        passes=passes,
        device="cuda",
        prepare=functools.partial(_prepare_cuda, functions, replays),
    )


def with_forward_of(forward: Kernel, backward: Kernel) -> Kernel:
    """A kernel that runs the forward of one and the backward of another, under the latter's name; its certificate
    speaks for both, and where either declines it does."""

    def of(pass_: str) -> Kernel:
        return forward if pass_ == "forward" else backward

    def prepare(pass_: str, args: tuple[Any, ...]) -> Callable[..., Any] | None:
        found = of(pass_).prepare
        return found(pass_, args) if found else None

    return dataclasses.replace(
        backward,
        passes=("forward", "backward"),
        load=lambda pass_: of(pass_).load(pass_),
        guard=lambda request: backward.guard(request) or forward.guard(request),
        hashed=functools.partial(kernel_hash, tuple),  # of both kernels, which these functions hold
        toolchain=lambda: f"{forward.toolchain()}, {backward.toolchain()}",
        prepare=prepare,
    )


def also_of(kernel: Kernel, other: Kernel) -> Kernel:
    """A kernel that runs some of another's kernels too: its certificate speaks for both."""
    return dataclasses.replace(kernel, hashed=functools.partial(kernel_hash, lambda: (kernel, other)))


def _module(op_package: Path, name: str) -> str:
    return ".".join(("kernelworks", *op_package.resolve().relative_to(PACKAGE).parts, name))


def _configured(source: Path, op_kernel: str, *flags: Any) -> tuple[Any, ...]:
    """What kernels of a GPU are compiled and launched with: flags, and the kernel's configurations."""
    return (source.suffix, flags, configs(source).text(op_kernel))


def _load_cuda(source: Path, functions: Launches, pass_: str) -> Callable[..., Any]:
    cuda.cubin(source)
    launch: Callable[..., Any] = getattr(importlib.import_module(functions.module), pass_)
    return launch


@functools.cache
def _is_hopper() -> bool:
    return torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)


def _decline_hopper(guard: Guard | None, request: Request) -> str | None:
    if request.device == "cpu":
        return "runs on CUDA tensors, got cpu"
    if request.device == "cuda" and not _is_hopper():
        return "runs on compute capability 9.0 (Hopper)"
    return guard(request) if guard else None


@functools.cache
def triton_toolchain() -> str:
    """Triton's version; it carries its own assembler. Raises BuildError where it is not installed."""
    try:
        return f"triton {importlib.metadata.version('triton')}"
    except importlib.metadata.PackageNotFoundError:
        raise BuildError("no Triton: pip install triton (it comes with torch's CUDA builds)") from None


def _load_triton(functions: Launches, pass_: str) -> Callable[..., Any]:
    triton_toolchain()
    launch: Callable[..., Any] = getattr(importlib.import_module(functions.module), pass_)
    return launch


def _prepare(functions: Launches, pass_: str, args: tuple[Any, ...]) -> Callable[..., Any] | None:
    prepare = getattr(importlib.import_module(functions.module), f"prepare_{pass_}", None)
    return prepare(*args) if prepare else None


def _prepare_cuda(
    functions: Launches, replays: tuple[str, ...], pass_: str, args: tuple[Any, ...]
) -> Callable[..., Any] | None:  # fmt: skip
    """A replay of the call where it may be one, else what the op package prepares."""
    call = getattr(importlib.import_module(functions.module), pass_) if pass_ in replays else None
    return (series.make_replay(call, args) if call else None) or _prepare(functions, pass_, args)


def _prepare_triton(
    functions: Launches, in_place: bool, launches: int, pass_: str, args: tuple[Any, ...]
) -> Callable[..., Any] | None:
    """What the op package prepares, else a replay of the call where its launches are few. Of one launch small tensors
    only: an extra run costs nothing there, and there the host's time is what a caller waits for."""
    prepared = _prepare(functions, pass_, args)
    small = launches > 1 or all(a.numel() <= SMALL for a in args if isinstance(a, torch.Tensor))
    if prepared is not None or in_place or not small or environment.is_interpreting():
        return prepared
    from kernelworks.build.replay import make_replay  # imports Triton

    return make_replay(_load_triton(functions, pass_), args, most=launches)


def _decline_gpu(guard: Guard | None, request: Request) -> str | None:
    if request.device != "cuda" and not (request.device in ("cpu", "meta") and environment.is_interpreting()):
        return f"runs on CUDA tensors, got {request.device}"
    return guard(request) if guard else None


def searched_kernel(op_package: str, target: str) -> Kernel:
    """The kernel that a search found: ``searched.py`` in the op package, a file with a function of the op's name, which
    takes the op's arguments and compiles what it needs beside itself. It is a forward alone, for CPUs like the one that
    it was found on.

    ``op_package`` is the op package's ``__file__``. What runs is a copy in the cache, so that nothing is compiled into
    the package.
    """
    source = Path(op_package).resolve().parent / "searched.py"
    return Kernel(
        name="searched",
        target=target,
        load=functools.partial(_load_searched, source),
        guard=functools.partial(cpu_guard, target, ()),
        source=source,
        hashed=functools.partial(kernel_hash, functools.partial(_read_whole, source)),
        toolchain=toolchain,
        passes=("forward",),
        differs=lambda: "what its compiler makes of this CPU",
    )


def _read_whole(source: Path) -> tuple[Any, ...]:
    return (WholeModule(str(source)),)


@functools.cache
def _load_searched(source: Path, pass_: str) -> Callable[..., Any]:
    copy = environment.cache_dir("build") / f"searched-{hash_of('', [source])[:20]}" / source.name
    environment.write_whole(copy, source.read_text(encoding="utf-8"), ".searched-")
    spec = importlib.util.spec_from_file_location(f"kernelworks_searched_{source.parent.name}", copy)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # of the file's own: most are its compiler's
        raise BuildError(f"{source}: {type(error).__name__}: {error}", about=str(source)) from error
    watch_forks()
    return functools.partial(_searched, getattr(module, source.parent.name))


def _searched(function: Callable[..., Any], *args: Any, out: Any = None) -> Any:
    if sharing.is_forked and torch.get_num_threads() > 1:
        torch.set_num_threads(1)  # it takes as many as torch has, and OpenMP's pool is gone here
    return into(function(*args), out)


def python_kernel(name: str, forward: Launch, backward: Launch | None = None, guard: Guard | None = None) -> Kernel:
    """The ``torch`` kernel (what the user has today) or the ``reference`` kernel: plain torch, no certificate
    needed."""
    launches = {"forward": forward} | ({"backward": backward} if backward else {})
    return Kernel(
        name=name,
        target=name,
        load=launches.__getitem__,
        guard=guard or (lambda request: None),
        passes=tuple(launches),
        device="any",
    )


def into(result: Any, out: Any) -> Any:
    """``result`` (a tensor or a tuple of them), copied into ``out`` where that is given."""
    if out is None:
        return result
    for target, value in zip(out, result, strict=True) if isinstance(result, tuple) else ((out, result),):
        target.copy_(value)
    return out


def as_float64(value: Any) -> Any:
    """``value`` with every floating-point tensor, also in lists, in float64, and every complex one in complex128."""
    if isinstance(value, torch.Tensor):
        return value.to(wide_dtype(value.dtype))
    return [as_float64(v) for v in value] if isinstance(value, (list, tuple)) else value


def in_float64(reference: Callable[..., tuple[torch.Tensor, ...]], results: Sequence[Result] = ()) -> Launch:
    """The ``reference`` kernel's forward: the contract's definition in float64, each output rounded once to its own
    dtype, as ``results`` says it: without, that of the first floating-point input. Outputs of integers (indices, say)
    are what they are.

    One output is returned as a tensor, several as a tuple.
    """

    def forward(*args: Any, out: Any = None) -> Any:
        made: tuple[Any, ...] = tuple(reference(*as_float64(args)))
        said = (*results, *(Result() for _ in made[len(results) :]))[: len(made)]
        dtypes = dtypes_of(said, reference, args)
        outputs = tuple(_rounded(t, d) for t, d in zip(made, dtypes, strict=True))
        return into(outputs if len(outputs) > 1 else outputs[0], out)

    return forward


def _rounded(value: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    """A definition's result in the dtype that the contract promises. Raises TypeError where it is no number of that
    kind: to make a real number of a complex one is to lose half of it."""
    if value is None or not is_inexact(value.dtype):
        return value
    if number_kind(value.dtype) != number_kind(dtype):
        raise TypeError(f"the definition returns {value.dtype}, and the contract promises {dtype}")
    return value.to(dtype)
