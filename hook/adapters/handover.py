"""How the wrapper and precreate hand a container over to the createRuntime hook, in config.json. Builtins only.

The wrapper and precreate can only edit config.json. For reserved mounts that proves nothing: a symbolic link of the
image can lead a path elsewhere, and a runtime creates devices and consoles after the mounts. Nor does it for devices
that must not be there: another hook can make them. So they add a createRuntime hook to config.json. The hook verifies
both in the container's mount namespace, restores missing mounts, refuses the container if it cannot, and writes the
event.
"""

import sys

from hook.adapters.options import Options
from hook.base.child import own_command
from hook.base.excerpt import line
from hook.base.jsontext import parse
from hook.base.system import is_link
from hook.container.paths import clean
from hook.container.spec import Spec
from hook.decide import CONFIG, CONTAINER, Case, Done
from hook.plan import Plan
from hook.reserve import decision
from hook.reserve.env import Reserved
from hook.reserve.outcome import Reason

STAGE = "createRuntime"
FLAG = "handed-on"
"""An option of `reassert hook`: reassert itself wrote the decision's annotation, and the hook completes its event."""

SECONDS = 30
"""How long a runtime waits for the hook. The hook may have to compile the policy first (hook.policy.store)."""


def correct(case: Case, options: Options, decided: Plan, spec: Spec, bundle: str) -> Done:
    """Make the edits in a spec and add the decision's annotation. Add the createRuntime hook if there is use for it.

    `bundle`: the directory from which a relative root.path counts.
    """
    if decided.audit_only():
        spec.annotations = decision.stamp(spec.annotations, Reserved({}, []), "")
        return Done()
    denials = _devices_astray(decided, spec, bundle)
    if denials:
        return Done(CONFIG, denials)
    decided.apply(spec)
    draft = None
    if decided.is_seen_in_the_container():
        draft = _bounded(case.event(decided, Done(CONTAINER)))
        entry = _hook(options)
        entries = spec.hooks.get(STAGE)
        others = [other for other in entries if other != entry] if isinstance(entries, list) else []
        spec.hooks = {**spec.hooks, STAGE: [*others, entry]}
    spec.annotations = decision.stamp(spec.annotations, decided.env, decided.policy.fingerprint, draft)
    return Done(CONFIG, handed_on=decided.is_seen_in_the_container())


def _devices_astray(decided: Plan, spec: Spec, bundle: str) -> "list[Reason]":
    """Why devices of the container must not be made: a link leads them into a reserved mount. Raises OSError."""
    root = spec.member("root")
    path = root.get("path") if isinstance(root, dict) else None
    if not isinstance(path, str) or not any(edit.mount for edit in decided.mounts):
        return []
    rootfs = path if path.startswith("/") else f"{bundle.rstrip('/')}/{path}"
    paths = [str(device.get("path", "")) for device in spec.devices]
    # runc takes `..` out of the text, crun follows links before it
    directories = {way.rpartition("/")[0] or "/" for at in paths for way in (at, clean(at))}
    if directories <= {"/dev"} and not is_link(rootfs + "/dev"):
        return []  # as almost always; the rest of the check loads ctypes
    from hook.linux.early import astray

    return astray(rootfs, sorted({*directories, "/dev"}), decided.mounts, spec)


def _bounded(event: "dict[str, object] | None") -> "dict[str, object] | None":
    """The event, shortened as for the log: it holds strings of a pod, and runtimes copy annotations to their state."""
    return parse(line(event)) if event else None


def _hook(options: Options) -> "dict[str, object]":
    """The OCI hook entry (runtime-spec, config.md, "POSIX-platform Hooks"). `env` is never empty: CVE-2025-23266."""
    if options.hook:  # a text file of hook/emit/front.py, which says where policy, store and events are
        env = ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]
        return {"path": options.hook, "args": [options.hook, f"--{FLAG}", STAGE], "env": env, "timeout": SECONDS}
    command = own_command()
    env = ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]
    if hasattr(sys, "_MEIPASS"):  # avoids a second start of PyInstaller's bootloader, see emit/dispatcher.py
        env += [f"_PYI_ARCHIVE_FILE={command[0]}", "_PYI_PARENT_PROCESS_LEVEL=0", f"LD_LIBRARY_PATH={sys._MEIPASS}"]
    arguments = ["hook", f"--{FLAG}", "--policy", options.policy, "--store", options.store]
    return {
        "path": command[0],
        "args": [*command, *arguments, "--events", options.events, STAGE],
        "env": env,
        "timeout": SECONDS,
    }
