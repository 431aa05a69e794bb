"""What an engine is given to call `reassert hook`: an OCI hook entry, and the hooks.d file around one."""

from __future__ import annotations

from typing import Any

from hook.adapters.hook import STAGES

SECONDS = 30
"""How long a runtime waits for the hook; it may have to compile the policy first (hook.policy.store)."""


def oci_hook(program: str, stage: str, flags: tuple[str, ...] = ()) -> dict[str, Any]:
    """An entry of `hooks` in the OCI runtime-spec (config.md, "POSIX-platform Hooks").

    `program`: absolute path of reassert, as it lasts over upgrades: an engine may not read the entry again for months.
    `flags`: those of `reassert hook`; none is all of its work. `env` is never empty: without one, runc before 1.3 hands
    over the container's own (CVE-2025-23266).
    """
    if stage not in STAGES:
        raise ValueError(stage)
    env = ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]
    return {"path": program, "args": ["reassert", "hook", *flags, stage], "env": env, "timeout": SECONDS}


def hooks_d(program: str, stage: str, flags: tuple[str, ...] = ()) -> dict[str, Any]:
    """A hooks.d file, oci-hooks(5) 1.0.0, for every container.

    One stage only: all stages of a file get the same arguments, and reassert is told its stage by an argument.
    """
    entry = oci_hook(program, stage, flags)
    return {"version": "1.0.0", "hook": entry, "when": {"always": True}, "stages": [stage]}
