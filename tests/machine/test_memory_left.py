"""The memory that is left to a process in a control group, which counts the pages of files that it has read."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelworks.machine import memory

MOST, TAKEN = 1 << 20, 1 << 19  # less than any machine has free


@pytest.mark.parametrize("group", memory.GROUPS, ids=["v2", "v1"])
def test_pages_of_files_are_no_memory_that_is_gone(
    group: memory._Group, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "GROUPS", (group._replace(folder=tmp_path),))
    (tmp_path / group.limit).write_text(f"{MOST}\n")
    (tmp_path / group.taken).write_text(f"{TAKEN}\n")
    assert memory.available_bytes() == MOST - TAKEN  # it does not say what can be given back
    (active, inactive), total = group.given_back, group.given_back[0].partition("active")[0]
    (tmp_path / "memory.stat").write_text(f"{total}anon 5000\n{active} 1000\n{inactive} 300\n{total}file_mapped 7\n")
    assert memory.available_bytes() == MOST - TAKEN + 1300
    (tmp_path / group.limit).write_text("max\n")
    assert memory.available_bytes() > MOST
    (tmp_path / group.limit).write_text("0\n")
    assert memory.available_bytes() == 0
