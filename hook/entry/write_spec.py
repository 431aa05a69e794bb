"""How the wrapper and precreate hand a container over to the createRuntime hook, in config.json. Builtins only.

The wrapper and precreate can only edit config.json. For reserved mounts that proves nothing: a symbolic link of the
image can lead a path elsewhere, and a runtime creates devices and consoles after the mounts. That proves nothing about
forbidden devices either: another hook can make them. So they add a createRuntime hook to config.json. The hook verifies
both in the container's mount namespace, restores missing mounts, refuses the container if it cannot, and writes the
event.

gVisor's runsc makes the mounts in a kernel of its own, where no hook can look. What its links would do is found out
before (hook.core.linux.early.in_sentry_astray), and the event says that config.json was verified, not the container.
"""

import sys

from hook.core.base.compare import directories
from hook.core.base.errors import Undecided
from hook.core.base.jsontext import Malformed, encode, parse
from hook.core.base.system import is_link, own_command
from hook.core.container.spec import Spec
from hook.core.decide import CONFIG, CONTAINER, Case, Done
from hook.core.events import line
from hook.core.plan import Plan
from hook.core.reserve import Reason, Reserved
from hook.entry.caller import Caller, Options

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

STAGE = "createRuntime"
ANNOTATION = "reassert/decision"
"""It holds the decision: `exec` reads the reserved env, `update` whether device rules must stay, and the hook the event
that it has to complete.

Reassert keeps no other state for a container: the decision is deleted with its bundle. `create` always replaces or
removes the annotation, so a pod that sets it gains nothing. Only `exec`, `update` and that hook may trust it."""

FLAG = "handed-on"
"""An option of `reassert hook`: reassert itself wrote the decision's annotation, and the hook completes its event."""

SECONDS = 30
"""How long a runtime waits for the hook. The hook may have to compile the policy first (hook.core.policy.store)."""


def correct(
    case: Case, caller: Caller, options: Options, decided: Plan, spec: Spec, bundle: str, config: str = ""
) -> Done:
    """Make the edits in a spec and add the decision's annotation, and the createRuntime hook if it has work to do.

    `bundle`: the directory from which a relative root.path counts. `config`: the path of config.json, if the hook is to
    be told both: the state that a runtime gives to the hook does not name them reliably.
    """
    denials = _devices_astray(decided, spec, bundle, caller)
    if decided.audit_only():
        spec.annotations = stamp(spec.annotations, Reserved({}, []), "")
        return Done(denials=denials)
    if denials:
        return Done(CONFIG, denials)
    decided.apply(spec)
    draft = ""
    if case.in_sentry:
        from hook.core.linux.early import in_sentry_astray

        allocations = case.container.facts.allocations
        denials = in_sentry_astray(rootfs(spec, bundle), decided, allocations, spec, caller.still_waits)
        if denials:
            return Done(CONFIG, denials)
    elif decided.is_seen_in_the_container():
        event = case.event(decided, Done(CONTAINER), is_draft=True)
        draft = line(event) if event else ""  # shortened: runtimes copy annotations to their state
        entry = _hook(options, ["--bundle", bundle, "--config", config] if config else [])
        entries: Any = spec.hooks.get(STAGE) or []
        # A hook of an earlier start of this bundle is left out: the bundle may have been in another place.
        others = [other for other in entries if f"--{FLAG}" not in (other.get("args") or ())]
        spec.hooks = {**spec.hooks, STAGE: [*others, entry]}
    paths = [edit.name for edit in decided.mounts]
    has_devices = decided.closed is not None or True in [edit.kind == "device" for edit in decided.edits]
    spec.annotations = stamp(spec.annotations, decided.env, decided.policy.fingerprint, draft, paths, has_devices)
    return Done(CONFIG, handed_on=decided.is_seen_in_the_container() and not case.in_sentry)


def _devices_astray(decided: Plan, spec: Spec, bundle: str, caller: Caller) -> "list[Reason]":
    """Why devices of the container must not be made: a link leads them into a reserved mount. Raises OSError."""
    if not isinstance(spec.root.get("path"), str) or not any(edit.mount for edit in decided.mounts):
        return []
    root = rootfs(spec, bundle)
    made_in = directories([str(device.get("path", "")) for device in spec.devices])
    if (
        made_in <= {"/dev"}
        and True not in [edit.can_be_written() for edit in decided.mounts]
        and not is_link(root + "/dev")
    ):
        return []  # the usual case; the rest of the check loads ctypes
    from hook.core.linux.early import astray

    return astray(root, decided.mounts, spec, caller.still_waits)


def rootfs(spec: Spec, bundle: str) -> str:
    """The container's root directory. Raises Undecided."""
    path = spec.root.get("path")
    if not isinstance(path, str):
        raise Undecided("config.json has no root.path")
    return path if path.startswith("/") else f"{bundle.rstrip('/')}/{path}"


def _hook(options: Options, where: "list[str]") -> "dict[str, object]":
    """The OCI hook entry (runtime-spec, config.md, "POSIX-platform Hooks"). `env` is never empty: CVE-2025-23266.

    `where`: options that name the bundle and config.json.
    """
    env = ["PATH=/usr/sbin:/usr/bin:/sbin:/bin", "TZ=UTC0"]
    if options.hook:  # a text file of hook/node/artifacts/front.py, which says where policy, store and events are
        command = [options.hook]
    else:
        command = [*own_command(), "hook"]
        if hasattr(sys, "_MEIPASS"):  # avoids a second start of PyInstaller's bootloader, see entry/dispatcher.py
            env += [f"_PYI_ARCHIVE_FILE={command[0]}", "_PYI_PARENT_PROCESS_LEVEL=0", f"LD_LIBRARY_PATH={sys._MEIPASS}"]
        where = [*where, "--policy", options.policy, "--store", options.store, "--events", options.events]
    return {"path": command[0], "args": [*command, f"--{FLAG}", *where, STAGE], "env": env, "timeout": SECONDS}


def stamp(
    annotations: "dict[str, str]",
    reserved: Reserved,
    fingerprint: str,
    draft: str = "",
    mounts: "list[str] | None" = None,
    has_devices: bool = False,
) -> "dict[str, str]":
    """The annotations with this decision as the only one; with none if nothing is reserved and there is no `draft`.

    `draft`: the event that the createRuntime hook completes, as a line of JSON. `mounts`: the paths of reserved mounts,
    for that hook. `has_devices`: whether devices were decided, for `update`.
    """
    if not reserved and not draft and not has_devices and ANNOTATION not in annotations:
        return annotations
    stamped = {key: value for key, value in annotations.items() if key != ANNOTATION}
    if reserved or draft or has_devices:
        decision = {"version": 1, "policy": fingerprint, "env": reserved.values, "absent": reserved.absent}
        decision["devices"] = has_devices
        if mounts:
            decision["mounts"] = mounts
        text = encode(decision)
        stamped[ANNOTATION] = f'{text[:-1]},"event":{draft}}}' if draft else text
    return stamped


class Decision:
    """What `create` decided for a container: the policy's fingerprint, the reserved env, paths of reserved mounts.

    `draft`: the event to complete, None if the annotation holds none. `devices`: whether devices were decided, so that
    an `update` must not change their rules; also for a container that an earlier version created, which did not say.
    """

    def __init__(
        self, policy: object, env: Reserved, mounts: "list[object]", draft: "dict[str, object] | None", devices: bool
    ) -> None:
        self.policy = policy
        self.env = env
        self.mounts = mounts
        self.draft = draft
        self.devices = devices


def read(annotations: "dict[str, str]") -> "Decision | None":
    """The decision in the annotation, None without the annotation. Raises Undecided if it cannot be read."""
    text = annotations.get(ANNOTATION)
    if text is None:
        return None
    try:
        value = parse(text)
        if not isinstance(value, dict) or value.get("version") != 1:
            raise Malformed("unknown version")
        event = value.get("event")
        draft = event if isinstance(event, dict) else None
        env = Reserved(dict(value["env"]), list(value["absent"]))
        has_devices = value.get("devices") is not False
        return Decision(value.get("policy"), env, list(value.get("mounts", [])), draft, has_devices)
    except (KeyError, TypeError, ValueError) as error:  # Malformed is a ValueError
        raise Undecided(f"annotation {ANNOTATION} cannot be read: {error}") from None
