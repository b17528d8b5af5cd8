"""What a program prints is shown once, on either stream, however it writes to it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kernelworks.profile.printed_output import dropped_output
from kernelworks.profile.program import from_target

WAYS = {
    "print": "print('out')\nprint('err', file=sys.stderr)",
    "logging": "logging.basicConfig(level=logging.INFO)\nlogging.info('err')\nprint('out')",
    "logging to stdout": "logging.basicConfig(level=logging.INFO, stream=sys.stdout)\nlogging.info('out')\n"
    "print('err', file=sys.stderr)",
    "bytes": "sys.stdout.buffer.write(b'out')\nsys.stderr.buffer.write(b'err')",
    "wrapped": "sys.stdout = io.TextIOWrapper(sys.stdout.buffer, encoding='utf-8')\nprint('out', flush=True)\n"
    "print('err', file=sys.stderr)",
    "detached": "sys.stdout = io.TextIOWrapper(sys.stdout.detach(), encoding='utf-8')\nprint('out', flush=True)\n"
    "print('err', file=sys.stderr)",
    "closed": "print('out')\nprint('err', file=sys.stderr)\nsys.stdout.close()",
    "reconfigured": "sys.stdout.reconfigure(line_buffering=True)\nsys.stdout.writelines(['o', 'ut'])\n"
    "print('err', file=sys.stderr)",
}
HEAD = "import io, logging, sys\nlogging.getLogger().handlers.clear()\n"


@pytest.mark.parametrize("as_function", [False, True], ids=["script", "function"])
@pytest.mark.parametrize("way", WAYS)
def test_a_program_is_heard_once(
    way: str, as_function: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / f"heard_{list(WAYS).index(way)}_{as_function}.py"
    if as_function:  # a handler that is made as the file is imported holds the stream of that moment
        lines = "".join(f"    {line}\n" for line in WAYS[way].splitlines() if "basicConfig" not in line)
        made = "".join(f"{line}\n" for line in WAYS[way].splitlines() if "basicConfig" in line)
        file.write_text(f"{HEAD}{made}def run():\n{lines}", encoding="utf-8")
    else:
        file.write_text(HEAD + WAYS[way], encoding="utf-8")
    before = sys.stdout, sys.stderr
    program = from_target(f"{file}:run" if as_function else str(file))
    for _ in range(3):
        program.run()
    with dropped_output():  # as a check runs a module of it once more
        program.run()
    assert (sys.stdout, sys.stderr) == before
    print("end")  # what the program did to its stdout, it did not do to ours
    found = capfd.readouterr()
    assert found.out.count("out") == 1 and found.out.endswith("end\n"), found.out
    assert found.err.count("err") == 1, found.err


def test_a_worker_that_goes_on_shows_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "shown_before.py"
    file.write_text(
        "import sys\nprint('out')\nprint('err', file=sys.stderr)\ndef run(): print('out')", encoding="utf-8"
    )
    for target in (str(file), f"{file}:run"):
        from_target(target, silent=True).run()
    assert capfd.readouterr() == ("", "")
