"""The emptyDirs of a rule, on a machine of the test's own."""

from __future__ import annotations

import os
from pathlib import Path

import marks
import pytest

from hook.core.base.errors import Unacceptable, Undecided
from hook.core.container.start import Start
from hook.core.facts import Container
from hook.core.linux.volumes import make, sweep
from hook.core.plan import plan
from hook.core.reserve.place_mount import PlaceMount
from unit.ownmachine import Machine
from unit.support import POD, policy

PODS = Path("/var/lib/kubelet/pods")


def volume(medium: str = "Memory") -> PlaceMount:
    rule = {"name": "r", "mounts": [{"mountPath": "/cache", "emptyDir": {"medium": medium}}]}
    [edit] = plan(policy(rule), Container(POD, Start([], []))).mounts
    return edit


def test_containers_of_a_pod_that_start_at_once_have_one_volume_in_memory(machine: Machine) -> None:
    (PODS / str(POD.uid)).mkdir(parents=True)
    edit = volume()

    def another() -> None:
        make([edit], lambda: None, is_probe=False)

    make([edit], another, is_probe=False)
    link = Path(edit.source())
    assert os.path.ismount(link.resolve())
    assert sorted(link.parent.iterdir()) == sorted([link, link.resolve()]), "that of the slower one is removed"
    (PODS / str(POD.uid)).rmdir()
    sweep(str(PODS))
    assert not link.parent.exists()


@pytest.mark.parametrize("medium", ["", "Memory"])
def test_a_pod_that_kubelet_does_not_know_gets_none(machine: Machine, medium: str) -> None:
    PODS.mkdir(parents=True)
    with pytest.raises(Undecided, match=r"pods/.* does not exist, where kubelet has its directory of the pod"):
        make([volume(medium)], lambda: None, is_probe=False)
    assert list(PODS.iterdir()) == []
    make([volume(medium)], lambda: None, is_probe=True)
    assert Path(volume(medium).source()).is_dir()


@marks.hole(
    "By a link in the place of a pod's directory, root made directories anywhere on the node for a rule's `emptyDir`",
    since="0.4.0",
    fixed="0.4.0",
    severity="medium",
)
@pytest.mark.parametrize("place", ["", "/reassert", "/reassert/HASH"])
def test_nothing_is_made_through_a_link(machine: Machine, tmp_path: Path, place: str) -> None:
    """A container with a volume of the pods puts the link there. It leads to a directory of the node."""
    edit = volume("")
    pod, target = PODS / str(POD.uid), Path("/var/lib/target")
    link = Path(f"{pod}{place}".replace("HASH", Path(edit.source()).name))
    link.parent.mkdir(parents=True)
    target.mkdir()
    link.symlink_to(target)
    with pytest.raises(Unacceptable, match="is not a directory"):
        make([edit], lambda: None, is_probe=False)
    assert list(target.iterdir()) == []
