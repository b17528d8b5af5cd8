"""How precisely this process multiplies float32, read and put back whole: torch's one word, and those of its backends.

Where nobody has set them the backends say "none". ``torch.set_float32_matmul_precision("highest")`` computes the same,
and they say "ieee" from then on, which inductor's caches tell apart. Who puts back the one word alone has every program
that is loaded from them compiled anew. torch refuses to say its word once a backend's contradicts it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

__all__ = ["Float32Products"]

BACKENDS = {"cuda": "a GPU", "mkldnn": "a CPU"}  # as torch names them -> where they multiply
WHOLE_WORDS = ("none", "ieee")  # what a backend says that leaves no digits out


@dataclass(frozen=True)
class Float32Products:
    """``word`` is torch's: highest, high or medium. ``backends``: what each of ``BACKENDS`` says."""

    word: str
    backends: tuple[str, ...]

    @classmethod
    def of_process(cls) -> Float32Products:
        backends = tuple(torch._C._get_fp32_precision_getter(name, "matmul") for name in BACKENDS)
        try:
            word = torch.get_float32_matmul_precision()
        except RuntimeError:  # a backend was set apart: torch's word is beneath that
            _set_backends(("ieee",) * len(BACKENDS))
            word = torch.get_float32_matmul_precision()
            _set_backends(backends)
        return cls(word, backends)

    @property
    def is_whole_on_gpu(self) -> bool:
        return self.backends[0] in WHOLE_WORDS

    def restore(self) -> None:
        torch.set_float32_matmul_precision(self.word)
        _set_backends(self.backends)

    def __str__(self) -> str:
        narrow = {
            BACKENDS[name]: said for name, said in zip(BACKENDS, self.backends, strict=True) if said not in WHOLE_WORDS
        }
        if bool(narrow) == (self.word != "highest"):
            return self.word
        return " and ".join(f"{said} on {where}" for where, said in narrow.items()) or f"{self.word}, and whole"


def _set_backends(words: tuple[str, ...]) -> None:
    for name, word in zip(BACKENDS, words, strict=True):
        torch._C._set_fp32_precision_setter(name, "matmul", word)
