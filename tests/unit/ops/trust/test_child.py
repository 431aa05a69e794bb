"""The child without rights in which certificates are parsed: what it can do, and what the build takes of it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import marks
import pytest

from hook.inside.rights import OVERFLOW_UID
from hook.ops.trust.build import _understood, in_a_child
from hook.ops.trust.errors import TrustError
from unit.ops.trust.authority import bundle, ca, key
from unit.support import ROOT

pytestmark = marks.promise("Certificates are parsed by a process without rights", about="Trust store")

ATTEMPTS: dict[str, Callable[[Path], object]] = {
    "reads a file of root": lambda path: (path / "secret").read_text(),
    "writes a file of root": lambda path: (path / "open").write_text("x"),
    "makes a file": lambda path: (path / "everybody" / "new").write_text("x"),
    "removes a file": lambda path: (path / "open").unlink(),
    "becomes root": lambda path: os.setuid(0),
    "starts a process": lambda path: os.fork(),
    "ends its parent": lambda path: os.kill(os.getppid(), signal.SIGKILL),
    "reads its parent's memory": lambda path: Path(f"/proc/{os.getppid()}/mem").open("rb").close(),
    "uses a descriptor of the caller": lambda path: [os.fstat(fd) for fd in range(3, 100)],
}


@pytest.mark.users
@pytest.mark.parametrize("attempt", ATTEMPTS)
def test_a_parser_that_is_taken_over_gets_nothing(root_dir: Path, attempt: str) -> None:
    root_dir.chmod(0o755)
    (root_dir / "secret").touch(0o600)
    (root_dir / "open").touch(0o644)
    (root_dir / "everybody").mkdir()
    (root_dir / "everybody").chmod(0o777)

    def work() -> dict[str, Any]:
        try:
            ATTEMPTS[attempt](root_dir)
        except OSError as error:
            return {"stopped": error.errno}
        return {"stopped": 0}

    assert in_a_child(work)["stopped"]
    assert not [path for path in (root_dir / "everybody").iterdir() if path.read_bytes()]
    assert (root_dir / "open").read_bytes() == b""


def test_a_parser_that_crashes_is_told() -> None:
    def work() -> dict[str, Any]:
        os.kill(os.getpid(), signal.SIGSEGV)
        return {}

    with pytest.raises(TrustError, match="the child process that reads the certificates failed"):
        in_a_child(work)


GOOD = {
    "certificates": [
        {"sha256": "0a", "subject": "x", "notAfter": "2030-01-01T00:00:00Z", "added": True, "file": "/f", "entry": 1}
    ],
    "warnings": ["w\x1b[2J"],
    "contents": ["eA=="],
    "files": {"certs/a_1.pem": 0},
}


def test_an_answer() -> None:
    certificates, warnings, files = _understood(GOOD)
    assert (certificates[0]["subject"], files) == ("x", {"certs/a_1.pem": b"x"})
    assert "\x1b" not in warnings[0]


@pytest.mark.parametrize(
    "wrong",
    [
        {"files": {path: 0}}
        for path in ("../x", "/etc/x", "certs/../../x", "certs//x", "", ".", "manifest.json", "certs/.x", "a\nb", "a/")
    ]
    + [{"files": {"a": 1}}, {"contents": ["?"]}, {"files": []}, {"certificates": [{}]}, {"warnings": 1}],
)
def test_an_answer_that_no_honest_child_gives(wrong: dict[str, Any]) -> None:
    with pytest.raises(TrustError, match="gave a wrong answer"):
        _understood({**GOOD, **wrong})


@pytest.mark.users
def test_the_program_parses_certificates_without_rights(root_dir: Path) -> None:
    """As /proc/PID/status says it, while it works on many."""
    one, other = ca("One CA", signer=key(1)), ca("Other CA", signer=key(2))
    (root_dir / "many.pem").write_bytes(bundle(one, *[other] * 1900))
    command = [sys.executable, "-m", "hook", "trust", "build", "--no-system", "--out", f"{root_dir}/store"]
    build = subprocess.Popen([*command, "--add", f"{root_dir}/many.pem"], cwd=ROOT, stderr=subprocess.DEVNULL)
    seen: dict[str, list[str]] = {}
    descriptors: list[str] = []
    while build.poll() is None and seen.get("CapPrm") != ["0" * 16]:
        for child in Path(f"/proc/{build.pid}/task/{build.pid}/children").read_text().split():
            with contextlib.suppress(OSError):
                lines = Path(f"/proc/{child}/status").read_text().splitlines()
                seen = {name: text.split() for name, _, text in (line.partition(":") for line in lines)}
                descriptors = os.listdir(f"/proc/{child}/fd")
    assert build.wait() == 0
    assert (seen["NoNewPrivs"], seen["Groups"]) == (["1"], [])
    assert seen["Uid"] == seen["Gid"] == [str(OVERFLOW_UID)] * 4
    assert {*seen["CapEff"], *seen["CapPrm"], *seen["CapInh"], *seen["CapAmb"]} == {"0" * 16}
    assert descriptors == ["0", "1", "2"]
    assert (root_dir / "store/live/manifest.json").stat().st_uid == 0
