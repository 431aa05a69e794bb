"""Generated hook entries under a real runtime: they work, also across an upgrade of the program."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from e2e.support import REASSERT, Bundle, Node, Running, run
from hook.node.artifacts.specs import oci_hook


@pytest.fixture
def entry(compiled_node: Node, directory: Path) -> dict[str, Any]:
    """A hook entry with the installer's link, and the options of the test node."""
    (directory / "reassert").symlink_to(REASSERT)
    made = oci_hook(str(directory / "reassert"), "createRuntime")
    made["args"][2:2] = compiled_node.options()
    return made


def test_entry_puts_mounts_back(real: str, entry: dict[str, Any], bundle: Bundle) -> None:
    bundle.spec["process"]["env"].append("REQUESTS_CA_BUNDLE=/etc/ssl/certs/ca-certificates.crt")
    bundle.spec["hooks"] = {"createRuntime": [entry]}
    bundle.save()
    with Running(real, bundle) as container:
        assert container.exec("/bin/ls", "/etc/ssl/certs").split() == ["company.crt"]


def test_link_is_followed_once(entry: dict[str, Any], bundle: Bundle) -> None:
    """The bootloader executes itself again: the link may lead to another version by then."""
    state = json.dumps({"ociVersion": "1.0.2", "id": "x", "bundle": str(bundle.directory), "pid": os.getpid()})
    env = dict(variable.split("=", 1) for variable in entry["env"])
    trace = ("strace", "-f", "-e", "trace=execve", entry["path"], *entry["args"][1:])
    done = run(*trace, input=state, env=env, check=False)
    assert "REQUESTS_CA_BUNDLE is not what the policy wants" in done.stderr
    assert re.findall(r'execve\("([^"]+)"', done.stderr) == [entry["path"], str(REASSERT.resolve())]
