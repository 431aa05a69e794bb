"""What the wrapper and precreate leave in config.json for the hook that looks at the container. Builtins only.

They can only write text. Where mounts are reserved, the text is no proof: an image can lead a path elsewhere, and a
runtime makes devices and consoles after the mounts. So they add a createRuntime hook, which looks into the container's
mount namespace, puts back what is missing there, refuses what cannot be mended, and writes the event.
"""

import sys

from hook.adapters.options import Options
from hook.base.child import own_command
from hook.base.excerpt import line
from hook.base.jsontext import parse
from hook.container.spec import Spec
from hook.decide import CONFIG, CONTAINER, Case, Done
from hook.plan import Plan
from hook.reserve import decision
from hook.reserve.env import Reserved

STAGE = "createRuntime"
FLAG = "handed-on"
"""An option of `reassert hook`: the annotation is this program's own, and its event is to be completed."""

SECONDS = 30
"""How long a runtime waits for the hook; it may have to compile the policy first (hook.policy.store)."""


def correct(case: Case, options: Options, decided: Plan, spec: Spec) -> Done:
    """Make the edits in a spec, stamp the decision, and hand the look at mounts on to the hook."""
    if decided.audit_only():
        spec.annotations = decision.stamp(spec.annotations, Reserved({}, []), "")
        return Done()
    decided.apply(spec)
    draft = None
    if decided.mounts:
        draft = _bounded(case.event(decided, Done(CONTAINER)))
        entry = _hook(options)
        there = spec.hooks.get(STAGE)
        others = [other for other in there if other != entry] if isinstance(there, list) else []
        spec.hooks = {**spec.hooks, STAGE: [*others, entry]}
    spec.annotations = decision.stamp(spec.annotations, decided.env, decided.policy.fingerprint, draft)
    return Done(CONFIG, handed_on=bool(decided.mounts))


def _bounded(event: "dict[str, object] | None") -> "dict[str, object] | None":
    """The event with no more of a pod's in it than will be logged: runtimes copy annotations into their state."""
    return parse(line(event)) if event else None


def _hook(options: Options) -> "dict[str, object]":
    """The OCI hook entry (runtime-spec, config.md, "POSIX-platform Hooks"). `env` is never empty: CVE-2025-23266."""
    if options.hook:  # a text file of hook/emit/front.py, which says where policy, store and events are
        env = ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]
        return {"path": options.hook, "args": [options.hook, f"--{FLAG}", STAGE], "env": env, "timeout": SECONDS}
    command = own_command()
    env = ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]
    if hasattr(sys, "_MEIPASS"):  # what spares PyInstaller's bootloader a second start, see emit/dispatcher.py
        env += [f"_PYI_ARCHIVE_FILE={command[0]}", "_PYI_PARENT_PROCESS_LEVEL=0", f"LD_LIBRARY_PATH={sys._MEIPASS}"]
    arguments = ["hook", f"--{FLAG}", "--policy", options.policy, "--store", options.store]
    return {
        "path": command[0],
        "args": [*command, *arguments, "--events", options.events, STAGE],
        "env": env,
        "timeout": SECONDS,
    }
