"""The CDI spec as a file of this node."""

from __future__ import annotations

import json

from hook.emit.cdi import cdi_spec
from hook.node.change.files import Change, State
from hook.policy.model import Policy

PATH = "/etc/cdi/reassert.json"


def cdi_file(policy: Policy, program: str) -> Change:
    """Where it belongs and what is to be in it. Raises ReassertError for a policy of which nothing can be carried."""
    return PATH, State(json.dumps(cdi_spec(policy, program), indent=2, ensure_ascii=False).encode() + b"\n")
