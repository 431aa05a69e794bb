"""A mount below a read-only reserved directory needs a file or directory there; a runtime can make none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hook.core.decide import Case
from hook.core.facts.mount_points import lacks
from unit.support import POD, WithPolicy, bind, policy, spec

BELOW = "/etc/ssl/certs/own/db.pem"


def refusal(*mounts: dict[str, Any], own: tuple[str, ...] = (BELOW,), gvisor: bool = False, **fields: Any) -> str:
    case = Case(WithPolicy(policy({"name": "ca", "mounts": list(mounts)}, **fields), is_gvisor=gvisor), "0a")
    return case.decide(POD, spec(mounts=[bind(path) for path in own])).refusal()


def certs(root: Path, *allowed: str, **more: Any) -> dict[str, Any]:
    return {"hostPath": str(root), "mountPath": "/etc/ssl/certs", "allowBelow": list(allowed), **more}


def test_container_whose_mount_has_no_place_is_refused_and_the_cure_is_named(root_dir: Path) -> None:
    found = refusal(certs(root_dir, BELOW))
    assert found == (
        f"rule ca: mount {BELOW} has no place in the reserved mount /etc/ssl/certs, which is read-only: "
        f"make own/db.pem, an empty file or directory, in {root_dir}"
    )
    store = root_dir / "live/certs"
    store.mkdir(parents=True)
    assert "a trust store has only its own files; mount it at another path" in refusal(certs(store, BELOW))
    assert refusal(certs(root_dir, BELOW), mode="Audit") == ""


def test_container_without_such_a_mount_or_with_its_place_starts(root_dir: Path) -> None:
    assert refusal(certs(root_dir, BELOW), own=()) == ""
    (root_dir / "own").mkdir()
    assert "make own/db.pem, an" in refusal(certs(root_dir, "/etc/ssl/certs/own"))
    (root_dir / "own/db.pem").touch()
    assert refusal(certs(root_dir, "/etc/ssl/certs/own")) == ""


def test_writable_directory_and_one_that_a_volume_covers_are_the_runtimes_business(root_dir: Path) -> None:
    assert refusal(certs(root_dir, BELOW, readOnly=False)) == ""
    (root_dir / "own").mkdir()
    assert refusal(certs(root_dir, "/etc/ssl/certs/own"), own=("/etc/ssl/certs/own", BELOW)) == ""
    assert refusal(certs(root_dir, BELOW), gvisor=True) == ""  # whose sentry makes the mounts by itself


def test_reserved_mount_below_another_one_needs_a_place_too(root_dir: Path) -> None:
    upper, lower = root_dir / "ssl", root_dir / "certs"
    for path in (upper, lower):
        path.mkdir()
    mounts = {"hostPath": str(upper), "mountPath": "/etc/ssl"}, {"hostPath": str(lower), "mountPath": "/etc/ssl/certs"}
    assert f"make certs, an empty file or directory, in {upper}" in refusal(*mounts, own=())
    (upper / "certs").mkdir()
    assert refusal(*mounts, own=()) == ""


def test_link_on_the_way_is_the_runtimes_business(root_dir: Path) -> None:
    (root_dir / "own").symlink_to("/elsewhere")
    assert not lacks(str(root_dir), "/own/db.pem")
    assert not lacks(str(root_dir), "/own")
    assert lacks(str(root_dir), "/other/db.pem")


@pytest.mark.parametrize("name", ["x" * 300, "a\udcff"])
def test_name_that_no_file_can_have_is_no_error(name: str, root_dir: Path) -> None:
    lacks(str(root_dir), f"/{name}/y")
