"""What engines read: OCI hook entries and hooks.d files, the base spec of containerd, and the CDI spec.

CDI alone enforces nothing: a container that requests no device gets nothing, and env can be overridden after CDI. So
every CDI device also adds the hook, which verifies the container.
"""

from __future__ import annotations

import json
from typing import Any

from hook.core.base.errors import ReassertError
from hook.core.facts.files import first_line
from hook.core.policy.model import AUDIT, Policy, Rule
from hook.core.policy.sources import Env, Given
from hook.node.change.files import Change, State
from hook.node.errors import NodeError

SECONDS = 30
"""Timeout of the hook. It includes a compilation of the policy (hook.core.policy.store)."""

STAGE = "createRuntime"
"""When the engines' entries run: hook.entry.hook has the stages that the hook knows."""

KIND = "reassert.internal/rule"
"""vendor/class. ICANN reserved `.internal` for private use (July 2024). A device has the name of its rule."""

VERSION = "0.5.0"
"""The lowest CDI version with device names that begin with a digit (CDI's SPEC.md, "Released versions")."""

CDI_FILE = "/etc/cdi/reassert.json"


def oci_hook(program: str, file: str = "") -> dict[str, Any]:
    """An entry of `hooks` in the OCI runtime-spec (config.md, "POSIX-platform Hooks").

    `program`: an absolute path of reassert that stays valid over upgrades, since engines may keep the entry for months.
    `file`: what is called instead of the program where there is an agent to ask (`warm_hook`). `env` is never empty: a
    hook without env gets the container's env from runc before 1.3 (CVE-2025-23266).
    """
    env = ["PATH=/usr/sbin:/usr/bin:/sbin:/bin", "TZ=UTC0"]
    command = [file] if file else ["reassert", "hook"]
    return {"path": file or program, "args": [*command, STAGE], "env": env, "timeout": SECONDS}


def hooks_d(program: str, file: str = "") -> dict[str, Any]:
    """A hooks.d file, oci-hooks(5) 1.0.0, for every container.

    It has one stage: all stages of a file get the same arguments, and reassert takes its stage as an argument.
    """
    entry = oci_hook(program, file)
    return {"version": "1.0.0", "hook": entry, "when": {"always": True}, "stages": [STAGE]}


def base_spec(default: dict[str, Any], program: str, env: list[str], hook_file: str = "") -> dict[str, Any]:
    """A spec with the verifying hook as the last of its stage, and these entries at the end of its env.

    The hook runs for every container but the sandbox. `hook_file`: what it calls instead of the program. An
    entry whose name is in the default already takes its place.
    """
    names = {entry.partition("=")[0] for entry in env}
    process = dict(default.get("process") or {})
    process["env"] = [e for e in process.get("env") or [] if e.partition("=")[0] not in names] + env
    hooks = dict(default.get("hooks") or {})
    hooks[STAGE] = [*(hooks.get(STAGE) or []), oci_hook(program, hook_file)]
    return {**default, "process": process, "hooks": hooks}


def reserved_env(policy: Policy) -> list[str]:
    """Returns an env entry for each name to which the policy gives a value: the first rule's, in the policy's order.

    Without them the verifying hook would refuse every container that lacks a reserved name. If a pod or
    a device plugin sets such a name again, containerd replaces the entry, so NRI, which cannot correct a duplicate,
    never sees one. A name that must
    be absent is not included: NRI cannot remove env. Raises NodeError for a value that cannot be read.
    """
    values: dict[str, str] = {}
    for rule in policy.candidates(None):
        for env in [] if rule.is_audited else rule.env:
            given = _given(env)
            if given and given.text is not None:
                values.setdefault(env.name, given.text)
    return [f"{name}={value}" for name, value in values.items()]


def _given(env: Env) -> Given | None:
    try:
        return env.by_default(first_line)
    except (ReassertError, OSError) as error:
        raise NodeError(f"the value of env {env.name} cannot be read: {error}") from None


def cdi_spec(policy: Policy, program: str) -> dict[str, Any]:
    """A CDI spec with a device for each rule without `match`.

    `program`: as in `oci_hook`. A CDI spec cannot express `match`, absent names, and values of files and of device
    plugins, so these are left out; the hook verifies them. Raises ReassertError if there is nothing for a device.
    """
    if policy.missing:
        raise ReassertError(policy.missing)
    if policy.mode == AUDIT:
        raise ReassertError(f"{policy.path}: mode is Audit, which changes nothing, and a CDI spec does")
    edits = {rule.name: _edits(rule) for rule in policy.candidates(None) if not rule.conditions and not rule.is_audited}
    devices = [{"name": name, "containerEdits": content} for name, content in edits.items() if content]
    if not devices:
        raise ReassertError(f"{policy.path}: no rule without match gives an env name a value or mounts something")
    entry = oci_hook(program)
    return {
        "cdiVersion": VERSION,
        "kind": KIND,
        "devices": devices,
        "containerEdits": {"hooks": [{"hookName": STAGE, **entry}]},
    }


def _edits(rule: Rule) -> dict[str, Any]:
    env = [f"{e.name}={e.constant}" for e in rule.env if e.constant is not None]
    mounts = [
        {"hostPath": m.source, "containerPath": m.destination, "options": list(m.options), "type": "bind"}
        for m in rule.mounts
        if m.source
    ]
    return {key: value for key, value in (("env", env), ("mounts", mounts)) if value}


def cdi_file(policy: Policy, program: str) -> Change:
    """Returns the change that writes the CDI spec. Raises ReassertError if CDI can express nothing of the policy."""
    return CDI_FILE, State(json.dumps(cdi_spec(policy, program), indent=2, ensure_ascii=False).encode() + b"\n")
