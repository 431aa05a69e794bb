"""OCI hook entries and hooks.d files that make a runtime or an engine call `reassert hook`."""

from __future__ import annotations

from typing import Any

from hook.entry.hook import STAGES

SECONDS = 30
"""Timeout of the hook. It includes a compilation of the policy (hook.core.policy.store)."""


def oci_hook(program: str, stage: str, flags: tuple[str, ...] = (), file: str = "") -> dict[str, Any]:
    """An entry of `hooks` in the OCI runtime-spec (config.md, "POSIX-platform Hooks").

    `program`: an absolute path of reassert that stays valid over upgrades, since engines may keep the entry for months.
    `flags`: of `reassert hook`; without any, the hook does all of its work. `file`: what is called instead of the
    program where there is an agent to ask (hook.node.artifacts.front.warm_hook). `env` is never empty: a hook without
    env gets the container's env from runc before 1.3 (CVE-2025-23266).
    """
    if stage not in STAGES:
        raise ValueError(stage)
    env = ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]
    command = [file] if file else ["reassert", "hook"]
    return {"path": file or program, "args": [*command, *flags, stage], "env": env, "timeout": SECONDS}


def hooks_d(program: str, stage: str, flags: tuple[str, ...] = (), file: str = "") -> dict[str, Any]:
    """A hooks.d file, oci-hooks(5) 1.0.0, for every container.

    It has one stage: all stages of a file get the same arguments, and reassert takes its stage as an argument.
    """
    entry = oci_hook(program, stage, flags, file)
    return {"version": "1.0.0", "hook": entry, "when": {"always": True}, "stages": [stage]}
