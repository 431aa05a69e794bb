"""`reassert cdi generate`: the policy as CDI devices, for containers that request them.

CDI alone enforces nothing: a container that requests no device gets nothing, and env can be overridden after CDI. So
every device also adds the hook, which verifies the container.
"""

from __future__ import annotations

from typing import Any

from hook.core.base.errors import ReassertError
from hook.core.policy.entries import VALUE
from hook.core.policy.model import AUDIT, Policy, Rule
from hook.node.artifacts.hookentry import oci_hook

KIND = "reassert.internal/rule"
"""vendor/class. ICANN reserved `.internal` for private use (July 2024). A device has the name of its rule."""

VERSION = "0.5.0"
"""The lowest CDI version with device names that begin with a digit (CDI's SPEC.md, "Released versions")."""


def cdi_spec(policy: Policy, program: str) -> dict[str, Any]:
    """A CDI spec with a device for each rule without `match`.

    `program`: as in `oci_hook`. A CDI spec cannot express `match`, absent names, and values of files and of device
    plugins, so these are left out; the hook verifies them. Raises ReassertError if there is nothing for a device.
    """
    if policy.missing:
        raise ReassertError(policy.missing)
    if policy.mode == AUDIT:
        raise ReassertError(f"{policy.path}: mode is Audit, which changes nothing, and a CDI spec does")
    edits = {rule.name: _edits(rule) for rule in policy.candidates(None) if not rule.conditions and not rule.tried}
    devices = [{"name": name, "containerEdits": content} for name, content in edits.items() if content]
    if not devices:
        raise ReassertError(f"{policy.path}: no rule without match gives an env name a value or mounts something")
    entry = oci_hook(program, "createRuntime")
    return {
        "cdiVersion": VERSION,
        "kind": KIND,
        "devices": devices,
        "containerEdits": {"hooks": [{"hookName": "createRuntime", **entry}]},
    }


def _edits(rule: Rule) -> dict[str, Any]:
    env = [f"{e.name}={e.text}" for e in rule.env if e.source == VALUE]
    mounts = [
        {"hostPath": m.source, "containerPath": m.destination, "options": list(m.options), "type": "bind"}
        for m in rule.mounts
        if m.source
    ]
    return {key: value for key, value in (("env", env), ("mounts", mounts)) if value}
