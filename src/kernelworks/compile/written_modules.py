"""Which files inductor writes, or has written before, for what is compiled within a context."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["note_modules"]

LOAD = "load_by_key_path"


@contextlib.contextmanager
def note_modules(found: set[str]) -> Iterator[None]:
    """Adds their names to ``found`` as they are loaded, new or from a cache."""
    from torch._inductor.codecache import PyCodeCache  # takes seconds: only if something is compiled

    cache: Any = PyCodeCache
    before, load = cache.__dict__[LOAD], getattr(cache, LOAD)

    def noted(*args: Any, **kwargs: Any) -> Any:
        module = load(*args, **kwargs)
        found.add(Path(getattr(module, "__file__", "") or "").stem)
        return module

    setattr(cache, LOAD, staticmethod(noted))
    try:
        yield
    finally:
        setattr(cache, LOAD, before)
