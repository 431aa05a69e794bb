"""The OCI spec that containerd starts every container's from (`base_runtime_spec`), with reassert's part in it."""

from __future__ import annotations

from typing import Any

from hook.base.errors import ReassertError
from hook.emit.hookentry import oci_hook
from hook.gather import first_line
from hook.node.errors import NodeError
from hook.policy.model import Policy
from hook.reserve.env import FILE, Env

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
    """An entry for each name that the policy gives a value, in the policy's order; the first rule's value.

    The verifying hook alone refuses a container that lacks it, whoever should have set it. And containerd replaces a
    name that stands in the base spec, whoever sets it again, so no duplicate reaches NRI, which could not correct it.
    A name that may have to be absent cannot be among them: NRI cannot remove env. Raises NodeError for a value that
    cannot be read.
    """
    values: dict[str, str] = {}
    for rule in policy.candidates(None):
        for env in rule.env:
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
