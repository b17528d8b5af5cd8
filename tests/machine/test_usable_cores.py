"""Quotas of control groups in planted trees, as systemd, Docker, Slurm and Kubernetes set them."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelworks.machine import usable_cores as subject

V1, V1_TURNED, BOTH = "cpu,cpuacct", "cpuacct,cpu", "unified"


@pytest.mark.parametrize(
    ("groups", "files", "cores"),
    [
        ("0::/\n", {}, 64.0),
        ("0::/\n", {"cpu.max": "max 100000"}, 64.0),
        ("0::/\n", {"cpu.max": "250000 100000"}, 2.5),
        ("0::/job/step\n", {"job/step/cpu.max": "400000 100000"}, 4.0),
        ("0::/job/step\n", {"job/cpu.max": "300000 100000", "job/step/cpu.max": "max 100000"}, 3.0),
        ("0::/job/step\n", {"job/cpu.max": "900000 100000", "job/step/cpu.max": "200000 50000"}, 4.0),
        ("0::/job/step\n", {"other/cpu.max": "100000 100000"}, 64.0),
        ("0::/host/name\n", {"cpu.max": "150000 100000"}, 1.5),  # a container's own group is the root of its tree
        ("0::/../beside\n", {"beside/cpu.max": "150000 100000"}, 1.5),
        ("0::/a:b\n", {"a:b/cpu.max": "700000 100000"}, 7.0),  # systemd's names hold colons
        (
            "4:cpu,cpuacct:/docker/x\n3:memory:/docker/x\n",
            {f"{V1}/docker/x/cpu.cfs_quota_us": "600000", f"{V1}/docker/x/cpu.cfs_period_us": "100000"},
            6.0,
        ),
        (
            "4:cpu:/pod/x\n",
            {
                "cpu/pod/x/cpu.cfs_quota_us": "-1", "cpu/pod/x/cpu.cfs_period_us": "100000",
                "cpu/pod/cpu.cfs_quota_us": "500000", "cpu/pod/cpu.cfs_period_us": "100000",
            },
            5.0,
        ),
        (
            "4:cpuacct,cpu:/\n",
            {f"{V1_TURNED}/cpu.cfs_quota_us": "50000", f"{V1_TURNED}/cpu.cfs_period_us": "100000"},
            0.5,
        ),
        (
            "2:cpuset:/x\n",
            {"cpu/x/cpu.cfs_quota_us": "50000", "cpu/x/cpu.cfs_period_us": "100000"},
            64.0,
        ),
        ("1:cpu:/x\n0::/x\n", {f"{BOTH}/x/cpu.max": "800000 100000"}, 8.0),
        ("0::/x\n", {"x/cpu.max": "a word"}, 64.0),
        ("0::/x\n", {"x/cpu.max": "100000 0"}, 64.0),
        ("", {"cpu.max": "900000 100000"}, 9.0),  # the system does not say which group
    ],
)  # fmt: skip
def test_the_least_quota_of_a_group_and_all_that_hold_it(
    groups: str, files: dict[str, str], cores: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in files.items():
        place = tmp_path / "tree" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(f"{text}\n")
    (tmp_path / "groups").write_text(groups)
    monkeypatch.setattr(subject, "MOUNTED", tmp_path / "tree")
    monkeypatch.setattr(subject, "GROUPS_OF_PROCESS", tmp_path / "groups")
    monkeypatch.setattr(subject.os, "sched_getaffinity", lambda pid: set(range(64)), raising=False)
    assert subject.usable_cores() == cores


def test_a_machine_without_groups_has_its_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "MOUNTED", tmp_path / "none")
    monkeypatch.setattr(subject, "GROUPS_OF_PROCESS", tmp_path / "nothing")
    monkeypatch.setattr(subject.os, "sched_getaffinity", lambda pid: {1, 5, 7}, raising=False)
    assert subject.usable_cores() == 3.0
