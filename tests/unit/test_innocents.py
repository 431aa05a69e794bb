"""The rows of tests/innocents: what a row must have."""

from __future__ import annotations

import re

import marks
import pytest
from e2e.innocents.rows import DATA, Row, rows

pytestmark = marks.promise(
    "An agent of [tests/innocents](innocents/README.md) starts under the default policy in Enforce mode and "
    "under the policy at the top of docs/policy.md, corrected, and can read and write what it needs, or that page says "
    "why not"
)

NAME = re.compile("[a-z0-9]+(-[a-z0-9]+)*")
SOURCE = re.compile(r"[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)+ \S.*")
OF_VOLUMES = {"hostPath", "mountPath", "readOnly", "mountPropagation", "subPath", "type"}
OF_SECURITY = {
    *("privileged", "runAsUser", "runAsGroup", "readOnlyRootFilesystem", "allowPrivilegeEscalation", "capabilities"),
}
PROPAGATION = {"", "HostToContainer", "Bidirectional"}
TYPES = {"", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket", "CharDevice", "BlockDevice"}


def test_there_are_many_and_each_topic_is_told_in_a_comment() -> None:
    assert len(rows()) >= 90
    assert {path.stem for path in DATA.glob("*.yaml")} == {row.topic for row in rows().values()}
    assert all(path.read_text().startswith("# ") for path in DATA.glob("*.yaml"))
    assert sorted(row.id for row in rows().values()) == [f"IN-{number + 1:03}" for number in range(len(rows()))]


@pytest.mark.parametrize("row", rows().values(), ids=lambda row: row.name)
def test_row_is_whole(row: Row) -> None:
    assert NAME.fullmatch(row.name)
    assert SOURCE.fullmatch(row.source), "source: OWNER/NAME and a file or page"
    assert row.engine in ("containerd", "docker")
    assert bool(row.namespace) == row.is_pod
    assert row.namespace == "kube-system" or not row.static
    paths = [volume["mountPath"] for volume in row.volumes]
    assert len({path.rstrip("/") for path in [*paths, *row.emptyDirs]}) == len(paths) + len(row.emptyDirs)
    assert all(path.startswith("/") for path in [*paths, *row.emptyDirs, *row.reads, *row.writes])
    for volume in row.volumes:
        assert set(volume) <= OF_VOLUMES
        assert volume["hostPath"].startswith("/")
        assert volume.get("mountPropagation", "") in PROPAGATION
        assert volume.get("type", "") in TYPES
    assert set(row.securityContext) <= OF_SECURITY
    writable = [volume["mountPath"] for volume in row.volumes if not volume.get("readOnly")] + row.emptyDirs
    for path in row.writes:
        assert any(f"{path}/".startswith(above.rstrip("/") + "/") for above in writable), f"{path} is in no volume"
    assert set(row.refused) in (set(), {"why", "cure"})
