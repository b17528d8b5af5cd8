"""What a reader of the page types next."""

from __future__ import annotations

from kernelworks.records import Diagnosis

__all__ = ["next_commands"]


def next_commands(record: Diagnosis) -> list[tuple[str, str]]:
    """Commands, each with what it does, the best first."""
    command = f"kernelworks diagnose {record.program}"
    if record.ambiguous:
        return [
            (command, "again, when the machine is quiet"),
            (f"{command} --rough", "rough figures now, while other processes use the machine"),
        ]
    if record.fix is None:
        return [(f"{command} --fix", "tries optimizations: each is predicted, verified and measured")]
    return []
