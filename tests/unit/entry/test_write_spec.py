"""What create decided travels in the bundle, and a pod cannot write it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hook.core.base.errors import Undecided
from hook.core.plan import plan
from hook.core.reserve.reserved_env import Reserved
from hook.entry.write_spec import ANNOTATION, hidden, misplaced, read, stamp
from unit.support import POD, Container, bind, policy, spec

NOTHING = Reserved({}, [])


@given(st.dictionaries(st.text(), st.none() | st.text()), st.lists(st.text()))
def test_stamped_decision_is_read_back(values: dict[str, str | None], absent: list[str]) -> None:
    stamped = stamp({"x": "y"}, Reserved(values, absent), fingerprint="fingerprint", mounts=["/m"])
    found = read(stamped)
    if values or absent:
        assert found is not None
        assert (found.policy, found.env.values, found.env.absent) == ("fingerprint", values, absent)
        assert found.mounts == ["/m"]
    else:
        assert (found, stamped) == (None, {"x": "y"})


@pytest.mark.parametrize("reserved", [NOTHING, Reserved({"A": "1"}, [])])
def test_annotation_that_a_pod_brought_along_is_overwritten_or_removed(reserved: Reserved) -> None:
    forged = {ANNOTATION: json.dumps({"version": 1, "policy": "", "env": {"LD_PRELOAD": "/x"}, "absent": []}), "x": "y"}
    stamped = stamp(forged, reserved, fingerprint="fingerprint")
    found = read(stamped)
    assert (found.env.values if found else {}) == reserved.values
    assert stamped["x"] == "y"
    assert ANNOTATION in forged, "the given annotations are not changed in place"


def test_container_without_a_decision_has_none() -> None:
    assert read({"x": "y"}) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"version":2,"env":{},"absent":[]}',
        '{"version":1}',
        '{"version":1,"env":[3],"absent":[]}',
        '{"version":1,"env":{},"absent":[],"mounts":1}',
    ],
)
def test_decision_that_cannot_be_read_is_undecided(text: str) -> None:
    with pytest.raises(Undecided, match="annotation reassert/decision cannot be read"):
        read({ANNOTATION: text})


# -- images in which a reserved mount has no place


@pytest.fixture
def image(root_dir: Path) -> Path:
    """The root of an image, in a bundle, beside a directory and a file of the node."""
    (root_dir / "rootfs/etc").mkdir(parents=True)
    (root_dir / "store").mkdir()
    (root_dir / "file").touch()
    return root_dir / "rootfs"


def said(image: Path, path: str, source: str = "store", *own: str, **fields: Any) -> list[str]:
    mounts = [{"hostPath": str(image.parent / source), "mountPath": path, "volumesAbove": "Allow"}]
    target = spec(mounts=[bind(each) for each in own])
    decided = plan(policy({"name": "ca", "mounts": mounts}, **fields), Container(POD, target))
    return [reason.message for reason in misplaced(decided, target, str(image.parent))]


CANNOT = (
    "mount /etc/ssl/certs cannot be made: {} in the image is a file, and a directory has to be there; correct the image"
)


def test_file_where_a_directory_has_to_be_is_named(image: Path) -> None:
    (image / "etc/ssl").mkdir()
    (image / "etc/ssl/certs").write_text("roots")
    assert said(image, "/etc/ssl/certs") == [CANNOT.format("/etc/ssl/certs")]
    (image / "etc/ssl/certs").rename(image / "etc/roots")
    (image / "etc/ssl/certs").symlink_to("/etc/roots")
    assert said(image, "/etc/ssl/certs") == [CANNOT.format("/etc/roots")]
    assert said(image, "/etc/ssl/certs/x", "file")[0].startswith("mount /etc/ssl/certs/x cannot be made: /etc/roots in")


def test_file_on_the_way_is_named(image: Path) -> None:
    (image / "etc/pki").touch()
    found = said(image, "/etc/pki/tls/certs")
    assert found == [CANNOT.replace("ssl", "pki/tls").format("/etc/pki")]


def test_directory_where_a_file_has_to_be_is_named(image: Path) -> None:
    (image / "etc/ca.pem").mkdir()
    what = "/etc/ca.pem in the image is a directory, and a file has to be there"
    assert said(image, "/etc/ca.pem", "file") == [f"mount /etc/ca.pem cannot be made: {what}; correct the image"]


def test_place_that_is_right_or_missing_is_no_problem(image: Path) -> None:
    assert said(image, "/etc/ssl/certs") == said(image, "/etc/ca.pem", "file") == []
    (image / "etc/pki/tls/certs").mkdir(parents=True)
    (image / "etc/ssl").mkdir()
    (image / "etc/ssl/certs").symlink_to("../pki/tls/certs/.")
    assert said(image, "/etc/ssl/certs") == []
    (image / "etc/ca.pem").touch()
    assert said(image, "/etc/ca.pem", "file") == []


def test_links_that_lead_nowhere_out_of_the_image_or_in_a_circle_are_the_runtimes_business(image: Path) -> None:
    for target in ("/nowhere", "../../../../../etc/passwd", "certs"):
        (image / "etc/ssl").mkdir(exist_ok=True)
        (image / "etc/ssl/certs").unlink(missing_ok=True)
        (image / "etc/ssl/certs").symlink_to(target)
        assert said(image, "/etc/ssl/certs") == [], target


def test_what_a_mount_hides_of_the_image_does_not_count(image: Path) -> None:
    (image / "etc/ssl").touch()
    assert said(image, "/etc/ssl/certs", "store", "/etc/ssl") == []
    assert len(said(image, "/etc/ssl/certs", "store", "/etc/ssl/certs")) == 1  # the rule replaces that mount


def test_store_is_told_from_other_directories(image: Path) -> None:
    (image.parent / "live/certs").mkdir(parents=True)
    (image / "etc/pki").touch()
    assert said(image, "/etc/pki/x", "live/certs")[0].endswith("; trust: {mount: Aside} mounts nothing there")


# -- files of the image that a store hides


def hides(image: Path, path: str = "/etc/ssl/certs", source: str = "live/certs") -> list[str]:
    target = spec()
    mounts = [{"hostPath": str(image.parent / source), "mountPath": path}]
    return hidden(plan(policy({"name": "ca", "mounts": mounts}), Container(POD, target)), target, str(image.parent))


def test_files_of_the_image_that_the_store_lacks_are_named(image: Path) -> None:
    store, certs = image.parent / "live/certs", image / "etc/ssl/certs"
    for path in (store, certs):
        path.mkdir(parents=True)
        (path / "ca-certificates.crt").touch()
    (certs / "Root.pem").symlink_to("/usr/share/ca-certificates/Root.crt")
    (certs / "java").mkdir()
    assert hides(image) == []
    (certs / "web-server.pem").touch()
    assert hides(image) == ["rule ca hides /etc/ssl/certs/web-server.pem of the image"]
    (certs / "own.pem").touch()
    assert hides(image) == ["rule ca hides /etc/ssl/certs/own.pem of the image and 1 more files"]
    assert hides(image, "/.reassert-trust") == hides(image, source="store") == []
    certs.rename(image / "certs")
    certs.symlink_to("/certs")
    assert hides(image) == []  # the directory of another mount, or of SUSE, which has a file for each CA
