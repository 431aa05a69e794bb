"""What a container of gVisor is refused for, and the way out that the message names: only one that is one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hook.core.container.oci import Mount
from hook.core.container.spec import Spec
from hook.core.linux.gvisor import astray
from hook.core.reserve.place_mount import PlaceMount
from hook.core.reserve.plan import Plan
from unit.support import bind, config, policy

RESERVED = "/volume/ca"


def reasons(directory: Path, *, is_link: bool, volumes_above: bool) -> list[str]:
    """Of a container with a volume above the reserved mount. `is_link`: the volume has a link at that place."""
    for name in ("rootfs/volume", "node"):
        (directory / name).mkdir(parents=True)
    if is_link:
        (directory / "node/ca").symlink_to("/etc")
    made = config([], [bind("/volume", f"{directory}/node"), bind(RESERVED, "/etc/ssl")])
    decided = Plan(policy())
    mount = Mount(bind(RESERVED, "/etc/ssl"))
    companions = frozenset({RESERVED})
    decided.mounts = [PlaceMount("ca", RESERVED, mount, companions=companions, before=[], volumes_above=volumes_above)]
    spec = Spec(json.dumps(made).encode(), "config.json")
    return [reason.message for reason in astray(f"{directory}/rootfs", decided, allocations=[], spec=spec)]


WHY = (
    f"mount {RESERVED} is in the volume /volume, in which a link can lead it elsewhere, "
    "and no hook can look into gVisor"
)


@pytest.mark.parametrize(
    ("is_link", "volumes_above", "expected"),
    [
        (False, False, [f"{WHY}; volumesAbove: Allow permits it"]),
        (False, True, []),
        (True, False, [WHY]),
        (True, True, [WHY]),
    ],
)
def test_a_volume_above_a_reserved_mount_is_permitted_only_without_a_link(
    tmp_path: Path, is_link: bool, volumes_above: bool, expected: list[str]
) -> None:
    assert reasons(tmp_path, is_link=is_link, volumes_above=volumes_above) == expected
