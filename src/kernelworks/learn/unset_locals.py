"""Local variables that a learner's source makes without a value, and the sentence where one is used as it is.

A compiler sees few of them. So a source that has one is compiled twice, with a pattern and with 0 in every such local:
where the two runs differ, one of them was read before it was set.
"""

from __future__ import annotations

import dataclasses
import re

from kernelworks.learn.faults import Verdict

__all__ = ["has_unset_local", "with_unset_local"]

UNSET_LOCAL = re.compile(
    r"(?P<before>__shared__\s+|extern\s+|__device__\s+|__constant__\s+)?"
    r"\b(?P<type>float|double|int|long|unsigned|\w+_t)\s+(?P<name>\w+)\s*"
    r"(?P<array>\[\s*(?P<count>\w+)\s*\](?:\s*\[\s*\w+\s*\])*)?\s*;"
)
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
MOST_ZEROS = 8  # that are written out


def _unset(text: str) -> list[re.Match[str]]:
    code = COMMENT.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    found = UNSET_LOCAL.finditer(code)
    return [m for m in found if not m["before"] and m["type"] not in ("return", "else")]


def has_unset_local(text: str) -> bool:
    """Whether a source makes a local variable without a value: it may still be set before it is read."""
    return bool(_unset(text))


def with_unset_local(text: str, verdict: Verdict) -> Verdict:
    """The verdict that such a local, of which the result depends, is used before it was set: with its line."""
    unset = _unset(text)
    # Rather one that is nowhere the target of a plain assignment: that is added to, or read.
    at = next((m for m in unset if not re.search(rf"\b{m['name']}\s*(\[[^]]*\]\s*)?=(?!=)", text[m.end() :])), unset[0])
    declared = f"{at['type']} {at['name']}{at['array'] or ''}"
    line = text[: at.start("name")].count("\n") + 1
    if at["array"] and "__syncthreads" in text:
        sentence = (
            f"{at['name']} is used where it was not set: {declared} is an array of each thread's own. What the threads "
            f"of a block share is __shared__ {declared};"
        )
        return dataclasses.replace(verdict, right=False, sentence=sentence, line=line)
    count = int(at["count"]) if (at["count"] or "").isdigit() else 0
    zeros = f"{{{', '.join(['0'] * count)}}}" if 0 < count <= MOST_ZEROS else "{}" if at["array"] else "0"
    sentence = f"{at['name']} is used before it was set: write {declared} = {zeros};"
    return dataclasses.replace(verdict, right=False, sentence=sentence, line=line)
