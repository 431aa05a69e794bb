"""The OCI spec on which containerd bases every container's (`base_runtime_spec`), with reassert's entries."""

from __future__ import annotations

from typing import Any

from hook.core.base.errors import ReassertError
from hook.core.facts.files import first_line
from hook.core.policy.entries import FILE, Env
from hook.core.policy.model import Policy
from hook.node.artifacts.hookentry import oci_hook
from hook.node.errors import NodeError

STAGE = "createRuntime"


def base_spec(default: dict[str, Any], program: str, env: list[str], hook_file: str = "") -> dict[str, Any]:
    """A spec with the verifying hook as the last of its stage, and these entries at the end of its env.

    The hook runs for every container but the sandbox. `hook_file`: what it calls instead of the program. An
    entry whose name is in the default already takes its place.
    """
    names = {entry.partition("=")[0] for entry in env}
    process = dict(default.get("process") or {})
    process["env"] = [e for e in process.get("env") or [] if e.partition("=")[0] not in names] + env
    hooks = dict(default.get("hooks") or {})
    hooks[STAGE] = [*(hooks.get(STAGE) or []), oci_hook(program, STAGE, file=hook_file)]
    return {**default, "process": process, "hooks": hooks}


def reserved_env(policy: Policy) -> list[str]:
    """Returns an env entry for each name to which the policy gives a value: the first rule's, in the policy's order.

    Without these entries the verifying hook would refuse every container that lacks a reserved name. If a pod or
    a device plugin sets such a name again, containerd replaces the entry, so NRI, which cannot correct a duplicate,
    never sees one. A name that must
    be absent is not included: NRI cannot remove env. Raises NodeError for a value that cannot be read.
    """
    values: dict[str, str] = {}
    for rule in policy.candidates(None):
        for env in [] if rule.tried else rule.env:
            value = _value(env)
            if value is not None:
                values.setdefault(env.name, value)
    return [f"{name}={value}" for name, value in values.items()]


def _value(env: Env) -> str | None:
    if env.source == FILE:
        try:
            return first_line(str(env.text))
        except (ReassertError, OSError) as error:
            raise NodeError(f"the value of env {env.name} cannot be read: {error}") from None
    return env.text
