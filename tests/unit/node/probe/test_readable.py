"""What `verify` says of a file that a container cannot read. Real containers are in tests/e2e/cri/test_verify.py.

No machine of the tests has SELinux or AppArmor: here are the labels that Linux shows with them (proc(5), attr/current).
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import marks
import pytest

from hook.core.policy.entries import Mount
from hook.node.probe.readable import Unreadable, cause, to_open
from hook.node.probe.report import PROTECTED, HandlerResult, Report
from unit.node.probe.local import ENGINE, POLICY, RUNC

pytestmark = marks.promise(
    "`verify` starts hostile containers, tries every way to a closed device, and reports `protected` only for"
    " parts that were tried"
)

DENIED = "head: cannot open '/ca.pem' for reading: Permission denied"
FILE = Unreadable("/ca.pem", "/srv/ca.pem", "the mode of /srv/ca.pem is 0600, owner 0:0", "chmod o+r /srv/ca.pem")


@pytest.fixture
def file(tmp_path: Path) -> str:
    made = tmp_path / "ca.pem"
    made.touch(0o644)
    tmp_path.chmod(0o755)
    return str(made)


def test_an_apparmor_profile_is_named(file: str) -> None:
    why, remedy = cause(file, file, "docker-default (enforce)", DENIED)
    assert why == f"{DENIED}; its mode permits it; AppArmor: the profile docker-default may lack a rule for it"
    assert remedy == ""
    assert "AppArmor" not in cause(file, file, "docker-default (complain)", DENIED)[0], "it denies nothing"


@pytest.mark.users
def test_the_labels_of_selinux_are_named_and_what_changes_that_of_the_file(file: str) -> None:
    process = "system_u:system_r:container_t:s0:c1,c2"
    os.setxattr(file, "security.selinux", b"system_u:object_r:var_lib_t:s0\0")
    why, remedy = cause(file, file, process, DENIED)
    assert why.endswith(f"SELinux: the process is {process}, the file system_u:object_r:var_lib_t:s0")
    assert remedy == f"semanage fcontext -a -t container_file_t {file} && restorecon -R {file}"
    directory = os.path.dirname(file)
    remedy = cause(directory, file, process, DENIED)[1]
    assert remedy == f"semanage fcontext -a -t container_file_t '{directory}(/.*)?' && restorecon -R {directory}"


def test_the_mode_is_named_whatever_the_label(file: str) -> None:
    Path(file).chmod(0o640)
    why, remedy = cause(file, file, "docker-default (enforce)", DENIED)
    assert why == f"the mode of {file} is 0640, owner {os.geteuid()}:{os.getegid()}"
    assert remedy == f"chmod o+r {file}"


def test_what_is_opened(tmp_path: Path) -> None:
    """Of a directory, one file that everybody may read: /etc/ssl has private keys too. Links may lead nowhere there."""
    tmp_path.chmod(0o755)
    for name, mode in (("a.key", 0o600), ("b.pem", 0o644), ("c.pem", 0o644)):
        (tmp_path / name).touch(mode)
    (tmp_path / "0.pem").symlink_to("/etc/hostname")
    (tmp_path / "none").mkdir()
    whole = Mount(f"{tmp_path}/", "/etc/ssl", ["ro"], [], False)
    key = Mount(str(tmp_path / "a.key"), "/key", ["ro"], [], False)
    others = [Mount("", "/closed", [], [], False), Mount(str(tmp_path / "none"), "/none", [], [], False)]
    others.append(Mount("/dev/null", "/null", [], [], False))
    assert to_open([whole, key, *others]) == [(whole, str(tmp_path / "b.pem")), (key, str(tmp_path / "a.key"))]


def reported(result: HandlerResult, *accepted: str) -> tuple[dict[str, Any], int, str]:
    report = Report(ENGINE, POLICY, [result], {}, accepted)
    return json.loads(report.as_json()), report.status(), report.as_table()


def test_it_is_a_warning_until_it_is_accepted() -> None:
    result = HandlerResult(RUNC, PROTECTED, ["put back: 1 mounts"], PROTECTED, unreadable=(FILE,))
    report, status, table = reported(result)
    assert (status, report["protected"]) == (4, True)
    assert f"unreadable {FILE}: run `chmod o+r /srv/ca.pem`" in table.splitlines()
    assert table.startswith("result     every handler is protected; not readable in every container: /ca.pem\n")
    report, status, table = reported(result, "file/*")
    assert (status, report["unreadable"][0]["accepted"]) == (0, True)
    assert table.startswith("result     every handler is protected\n")


def test_what_could_not_be_opened_was_not_tried() -> None:
    result = HandlerResult(RUNC, PROTECTED, ["put back: 1 mounts"], PROTECTED, unread="no such file: head")
    report, status, _ = reported(result)
    because = {"part": "read/runc", "because": "no such file: head", "accepted": False}
    assert (status, report["notTried"]) == (1, [because])
    assert reported(result, "read/*")[1] == 0
