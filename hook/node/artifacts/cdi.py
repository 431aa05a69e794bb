"""The file of the CDI spec."""

from __future__ import annotations

import json

from hook.core.policy.model import Policy
from hook.node.artifacts.cdi_spec import cdi_spec
from hook.node.change.files import Change, State

PATH = "/etc/cdi/reassert.json"


def cdi_file(policy: Policy, program: str) -> Change:
    """Returns the change that writes the CDI spec. Raises ReassertError if CDI can express nothing of the policy."""
    return PATH, State(json.dumps(cdi_spec(policy, program), indent=2, ensure_ascii=False).encode() + b"\n")
