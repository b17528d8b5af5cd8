"""Which bytes of a call's inputs come from beyond the last cache: by what was touched since."""

from __future__ import annotations

from kernelworks.profile.cost import Work
from kernelworks.profile.cost.operands import Arguments, Operand
from kernelworks.profile.trace import Call

__all__ = ["Reuse"]


class Reuse:
    """Which inputs of a call have left the caches since they were last touched.

    A tensor is far when more bytes than the last cache holds were touched since it was read or written. Weights that
    a run reads once were last touched a whole run ago. A tensor seen for the first time that is no weight has just
    been made. Calls are to be given in the order of the program.
    """

    def __init__(self, cache_bytes: int, persistent: dict[int, int], run_bytes: float) -> None:
        self.cache_bytes, self.persistent, self.run_bytes = cache_bytes, persistent, run_bytes
        self.clock = 0.0
        self.touched: dict[int, float] = {}
        self._known: dict[int, list[tuple[int, int]]] = {}

    def far(self, call: Call, work: Work) -> float:
        """The share of the call's input bytes that comes from beyond the last cache."""
        far, total = 0.0, 0.0
        tensors = self._known.get(call.like)
        if tensors is None:
            tensors = _tensors(call)
            if call.like:
                self._known[call.like] = tensors
        for pointer, size in tensors:
            total += size
            if pointer in self.touched:
                distance = self.clock - self.touched[pointer]
            else:
                distance = self.run_bytes if pointer in self.persistent else size
            far += size if distance > self.cache_bytes else 0
        self.clock += work.read + work.written
        for pointer, _ in tensors:
            self.touched[pointer] = self.clock
        return far / total if total else 0.0


def _tensors(call: Call) -> list[tuple[int, int]]:
    """Address and bytes of every tensor argument."""
    found = []
    for item, pointer in zip(Arguments(call).items, call.pointers, strict=False):
        pairs = zip(item, pointer, strict=False) if isinstance(item, list) and isinstance(pointer, list) else ()
        for operand, address in (*pairs, (item, pointer)):
            if isinstance(operand, Operand) and isinstance(address, int) and address:
                found.append((address, operand.bytes))
    return found
