"""A program that reads its standard input finds the same in each run."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

# Runs each script as often as its first argument says. The second is what keeps the input.
RUNS = """
import sys
from kernelworks.profile.program import from_target
from kernelworks.profile.standard_input import kept_input
kept_input(int(sys.argv[2]))
for script in sys.argv[3:]:
    program = from_target(script)
    for _ in range(int(sys.argv[1])):
        program.run()
"""
READS = {
    "some": "sys.stdin.readline()",
    "input": "input() + '\\n'",
    "all": "sys.stdin.read()",
    "lines": "''.join(sys.stdin)",
    "bytes": "sys.stdin.buffer.read().decode()",
}
TEXT = "".join(f"line {i}\n" for i in range(3000))


@pytest.mark.parametrize("piped", [True, False], ids=["pipe", "file"])
def test_each_run_reads_what_the_first_did(piped: bool, tmp_path: Path) -> None:
    given = tmp_path / "given.txt"
    given.write_text(TEXT, encoding="utf-8")
    for name, reads in READS.items():
        to = f"open({str(tmp_path / name)!r}, 'a')"
        (tmp_path / f"{name}.py").write_text(f"import sys\n{to}.write({reads} + '---')\n", encoding="utf-8")
    with contextlib.ExitStack() as stack:
        source = stack.enter_context(given.open("rb"))
        if piped:
            cat = stack.enter_context(subprocess.Popen(["cat"], stdin=source, stdout=subprocess.PIPE))
            assert cat.stdout is not None
            source = cat.stdout
        kept = stack.enter_context(tempfile.TemporaryFile())
        scripts = [str(tmp_path / f"{name}.py") for name in READS]
        # a second process goes on with what the first one kept, as a later worker of a search does
        for times in ("2", "1"):
            command = [sys.executable, "-c", RUNS, times, str(kept.fileno()), *scripts]
            subprocess.run(command, check=True, stdin=source, pass_fds=(kept.fileno(),))
    for name in READS:
        *found, rest = (tmp_path / name).read_text(encoding="utf-8").split("---")
        assert found == ["line 0\n" if name in ("some", "input") else TEXT] * 3 and not rest, name
