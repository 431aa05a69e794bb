"""`reassert cdi generate`: the policy as CDI devices, for containers that ask for them.

A carrier for what somebody wants to have, never enforcement: whoever does not ask gets nothing, and env can be set
again after it. So every device also brings the verifying hook.
"""

from __future__ import annotations

from typing import Any

from hook.base.errors import ReassertError
from hook.emit.hookentry import oci_hook
from hook.policy.model import AUDIT, Policy, Rule
from hook.reserve.env import VALUE

KIND = "reassert.internal/rule"
"""vendor/class. `.internal` is nobody's domain (ICANN's resolution of July 2024); a device is named after its rule."""

VERSION = "0.5.0"
"""The lowest CDI version that has all of this: names that begin with a digit (CDI's SPEC.md, "Released versions")."""


def cdi_spec(policy: Policy, program: str) -> dict[str, Any]:
    """A CDI spec with a device for each rule that is the same for every container.

    `program`: as in `oci_hook`. Left out are rules with `match`, which a device cannot weigh, and of the others what a
    CDI spec cannot say: absent names, values of files and of device plugins. The hook verifies those too. Raises
    ReassertError where nothing is left.
    """
    if policy.missing:
        raise ReassertError(policy.missing)
    if policy.mode == AUDIT:
        raise ReassertError(f"{policy.path}: mode is Audit, which changes nothing, and a CDI spec does")
    edits = {rule.name: _edits(rule) for rule in policy.candidates(None) if not rule.conditions}
    devices = [{"name": name, "containerEdits": found} for name, found in edits.items() if found]
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
