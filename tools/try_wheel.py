"""From the wheel to the first diagnosis, as a user has it: python tools/try_wheel.py [--torch-index URL]

Builds the wheel, makes an empty virtual environment, installs torch (not counted), then the wheel, and diagnoses a
script of a user's with an empty home. Then clears the cache, uninstalls, and looks at what is left. Says the seconds of
each step. Exit code 1 if installing and diagnosing took longer than a minute, or if something is left that
docs/reference/cache.md does not name; 3 if the machine was too busy to tell. Some five minutes, most of them torch's.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MOST_S = 60.0  # for the wheel and the first diagnosis
AMBIGUOUS = 3  # the exit code of a diagnosis on a busy machine
SCRIPT = """
import torch
from torch import nn

model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
optimizer = torch.optim.AdamW(model.parameters())
x, y = torch.randn(512, 64), torch.randint(0, 10, (512,))
for step in range(20):
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("loss", loss.item())
"""


def left_behind(home: Path, environment: Path, folder: Path) -> Iterator[Path]:
    """The files that are left of kernelworks in a home, in an environment, and where the script lies: all but the
    script, its report and its record."""
    yield from (path for path in home.rglob("*") if path.is_file())
    yield from (
        path
        for path in environment.rglob("*")
        if path.is_file() and "kernelworks" in str(path.relative_to(environment))
    )
    known = {"train.py", "train.html", "train.json"}
    yield from (path for path in folder.rglob("*") if path.is_file() and path.name not in known)


class Steps:
    """Commands in the new environment, each with its seconds."""

    def __init__(self, place: Path) -> None:
        self.bin, self.home, self.folder = place / "venv" / "bin", place / "home", place / "work"
        for each in (self.home, self.folder):
            each.mkdir()
        self.variables = {n: v for n, v in os.environ.items() if not n.startswith(("KERNELWORKS", "PYTHON", "XDG"))}

    def run(self, says: str, *command: str) -> tuple[float, int]:
        """Seconds and exit code; what it prints goes to the terminal. pip has the user's own home."""
        home = {} if command[0] == "pip" else {"HOME": str(self.home)}
        begin = time.monotonic()
        whole = [str(self.bin / command[0]), *command[1:]]
        code = subprocess.run(whole, cwd=self.folder, env={**self.variables, **home}, check=False).returncode
        seconds = time.monotonic() - begin
        print(f"== {says}: {seconds:.0f} s, exit code {code}", flush=True)
        return seconds, code

    def needed(self, says: str, *command: str) -> float:
        seconds, code = self.run(says, *command)
        if code:
            raise SystemExit(code)
        return seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--torch-index", default="https://download.pytorch.org/whl/cpu", help='where torch is; "": pip\'s own'
    )
    index = parser.parse_args().torch_index
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--wheel-dir", str(place), str(ROOT)]
        subprocess.run(build, check=True)
        (wheel,) = place.glob("*.whl")
        venv.create(place / "venv", with_pip=True)
        steps = Steps(place)
        (steps.folder / "train.py").write_text(SCRIPT, encoding="utf-8")
        steps.needed("torch, not counted", "pip", "install", "-q", "torch", *(["--index-url", index] if index else []))
        took = steps.needed("the wheel", "pip", "install", "-q", str(wheel))
        seconds, code = steps.run("the first diagnosis", "kernelworks", "diagnose", "train.py")
        took += seconds
        steps.needed("the second one", "kernelworks", "diagnose", "train.py", *(["--rough"] if code else []))
        steps.needed("what is kept", "kernelworks", "cache")
        steps.needed("cleared", "kernelworks", "cache", "--clear")
        steps.needed("uninstalled", "pip", "uninstall", "-q", "-y", "kernelworks")
        left = list(left_behind(steps.home, place / "venv", steps.folder))
        for path in left:
            print(f"left: {path.relative_to(place)}")
    print(f"wheel to first diagnosis: {took:.0f} s (at most {MOST_S:.0f}); files left: {len(left)}")
    return code if code == AMBIGUOUS else int(bool(code or left) or took > MOST_S)


if __name__ == "__main__":
    sys.exit(main())
