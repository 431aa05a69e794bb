"""A node that is a directory of this machine."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.paths import REASSERT

if TYPE_CHECKING:
    from hook.core.policy.model import Policy

POLICY = """\
apiVersion: reassert/v1
kind: NodePolicy
metadata: {name: test}
spec:
  exclude: {namespaces: [kube-system]}
  rules:
  - name: company-ca
    env:
    - {name: REQUESTS_CA_BUNDLE, value: /etc/ssl/certs/ca-certificates.crt}
    - {name: PYTHONHTTPSVERIFY, absent: true}
    mounts:
    - {hostPath: CA, mountPath: /etc/ssl, readOnly: true}
"""
"""`CA` is replaced by the node's directory of CA files."""

WANTED = "REQUESTS_CA_BUNDLE=/etc/ssl/certs/ca-certificates.crt"
"""The entry of POLICY's first name."""


class Node:
    """Policy, store, event log and CA files below `directory`, which only root writes to: a policy's owner is checked.

    What compiles or writes a dispatcher is `hook` of this checkout, in this process: that takes a tenth of the time of
    the frozen program.
    """

    def __init__(self, directory: Path, policy: str = POLICY) -> None:
        """`policy`: "" for no policy file."""
        self.directory = directory
        self.policy = directory / "etc/policy.yaml"
        self.store = directory / "lib"
        self.events = directory / "log/events.jsonl"
        self.ca = directory / "ca"
        (self.ca / "certs").mkdir(parents=True)
        (self.ca / "certs/company.crt").write_text("company\n")
        self.policy.parent.mkdir()
        if policy:
            self.write_policy(policy)

    def placed(self, text: str) -> str:
        """A policy with `CA` replaced by this node's CA directory."""
        return text.replace("hostPath: CA", f"hostPath: {self.ca}")

    def write_policy(self, text: str) -> None:
        """The policy file, `placed`: replaced at once, as editors do, since an agent would compile a half."""
        new = self.policy.with_name("new")
        new.write_text(self.placed(text))
        new.rename(self.policy)

    def compile(self, text: str = "") -> None:
        """Compile the policy, as `reassert policy compile` does long before a container starts. `text`: a new one."""
        from hook.compile.in_force import refresh

        if text:
            self.write_policy(text)
        refresh(str(self.policy), str(self.store))

    def load(self) -> Policy:
        """The policy as a start gets it, which has a change compiled in a child process."""
        from hook.core.policy.store import load

        return load(str(self.policy), str(self.store))

    @property
    def compiled(self) -> Path:
        """The file of the compiled policy that this version reads."""
        from hook.core.policy.store import store_path

        return Path(store_path(str(self.policy), str(self.store)))

    def options(self) -> list[str]:
        """What every adapter is told about this node."""
        return ["--policy", str(self.policy), "--store", str(self.store), "--events", str(self.events)]

    def dispatcher(self, real: str) -> str:
        """Path of a `reassert-runc` for a real runtime, as `reassert dispatcher` prints it."""
        from hook.entry.dispatcher import dispatcher

        path = self.directory / f"reassert-{Path(real).name}"
        if not path.exists():
            write_program(path, dispatcher(real, str(REASSERT), extra=self.options()))
        return str(path)

    def logged(self) -> list[dict[str, Any]]:
        """The event log."""
        return [json.loads(line) for line in self.events.read_text().splitlines()] if self.events.exists() else []


def write_program(path: Path, text: str) -> str:
    """Write a script that can be executed, and replaced while it is. Returns its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(path.name + ".new")
    new.write_text(text)
    new.chmod(0o755)
    os.rename(new, path)
    return str(path)
