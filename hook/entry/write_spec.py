"""How the wrapper hands a container over to the createRuntime hook, in config.json.

The wrapper can only edit config.json. For reserved mounts that proves nothing: a symbolic link of the
image can lead a path elsewhere, and a runtime creates devices and consoles after the mounts. That proves nothing about
forbidden devices either: another hook can make them. So it adds a createRuntime hook to config.json. The hook verifies
both in the container's mount namespace, restores missing mounts, refuses the container if it cannot, and writes the
event.

gVisor's runsc makes the mounts in a kernel of its own, where no hook can look. What its links would do is found out
before (hook.core.linux.gvisor.astray), and the event says that config.json was verified, not the container.
"""

from __future__ import annotations

import posix
import sys
from collections.abc import Callable, Sequence
from typing import Any

from hook.core.base.compare import directories, parents
from hook.core.base.errors import Undecided, named
from hook.core.base.jsontext import Malformed, encode, parse
from hook.core.base.system import SYMLINK_LIMIT, is_directory, is_link, is_shortage, own_command
from hook.core.container.spec import Spec
from hook.core.decide import Case
from hook.core.events import line
from hook.core.linux import early, gvisor
from hook.core.plan import Plan
from hook.core.policy import trust_layout
from hook.core.policy.sources import Allowed
from hook.core.reserve.edits import Reason
from hook.core.reserve.mounts import KIND
from hook.core.reserve.reserved_env import Reserved
from hook.core.verdict import CONFIG, CONTAINER, NOWHERE, Verdict
from hook.entry.caller import Caller, Options

HOOK_STAGE = "createRuntime"
ANNOTATION = "reassert/decision"
"""It holds the decision: `exec` reads the reserved env, `update` whether device rules must stay, and the hook the event
that it has to complete.

Reassert keeps no other state for a container: the decision is deleted with its bundle. `create` always replaces or
removes the annotation, so a pod that sets it gains nothing. Only `exec`, `update` and that hook may trust it."""

HOOK_FLAG = "handed-on"
"""An option of `reassert hook`: reassert itself wrote the decision's annotation, and the hook completes its event."""

_AFTERWARDS = ["/bin/sh", "-c", 'if [ -x "$0" ]; then "$0" "$@"; else while read -r _; do :; done; fi; exit 0']
"""How the poststop hook is called. runc from 1.3 on fails to delete a container whose hook fails, and its build fails
then: the program is gone where an uninstall came in between. What the runtime writes to the hook is read even so:
crun ends by SIGPIPE where no process reads it."""

HOOK_SECONDS = 30
"""How long a runtime waits for the hook. The hook may have to compile the policy first (hook.core.policy.store)."""


def correct(case: Case, caller: Caller, decided: Plan, spec: Spec, *, bundle: str, config: str) -> Verdict:
    """Make the edits in a spec and add the decision's annotation, and the createRuntime hook if it has work to do.

    `bundle`: the directory from which a relative root.path counts. `config`: the path of config.json. The hook is
    told both: the state that a runtime gives to the hook does not name them reliably.
    """
    denials = of_the_image(decided, spec, bundle, caller.still_waits)
    if caller.is_gvisor and decided.audit_only() and not denials:
        denials = _astray_in_gvisor(case, caller, decided, decided.applied(spec), bundle=bundle)
    is_seen = decided.is_seen_in_the_container() and not caller.is_gvisor
    where = ["--bundle", bundle, "--config", config]
    done = Verdict(CONFIG, denials)
    done.hides = hidden(decided, spec, bundle)
    if decided.audit_only():
        draft = ""
        done.verified, done.handed_on = NOWHERE, is_seen and not denials
        if done.handed_on:  # the hook changes nothing either
            draft = _draft(case, decided, Verdict(), done.hides)
            _add_hook(spec, caller.options, where)
        spec.annotations = stamp(
            spec.annotations, Reserved({}, []), fingerprint=decided.policy.fingerprint, draft=draft
        )
        return done.with_logs(decided)
    if denials:
        return done
    decided.apply(spec)
    draft = ""
    if caller.is_gvisor:
        denials = _astray_in_gvisor(case, caller, decided, spec, bundle=bundle)
        if denials:
            return Verdict(CONFIG, denials)
    elif is_seen:
        draft = _draft(case, decided, Verdict(CONTAINER), done.hides)
        _add_hook(spec, caller.options, where)
    paths = [edit.name for edit in decided.mounts]
    has_devices = decided.exclusive is not None or True in [edit.kind == "device" for edit in decided.edits]
    spec.annotations = stamp(
        spec.annotations,
        decided.env,
        fingerprint=decided.policy.fingerprint,
        draft=draft,
        mounts=paths,
        has_devices=has_devices,
    )
    done.handed_on = is_seen
    return done if is_seen or not decided.node_logs else done.with_logs(decided)


def _astray_in_gvisor(case: Case, caller: Caller, decided: Plan, spec: Spec, *, bundle: str) -> list[Reason]:
    return gvisor.astray(
        rootfs(spec, bundle),
        decided,
        allocations=case.container.facts.allocations,
        spec=spec,
        still_waits=caller.still_waits,
    )


def _draft(case: Case, decided: Plan, done: Verdict, hides: Sequence[str]) -> str:
    """The event that the hook completes. It is shortened: runtimes copy annotations to their state."""
    done.hides = hides
    event = case.draft(decided, done)
    return line(event) if event else ""


def _add_hook(spec: Spec, options: Options, where: list[str], stage: str = HOOK_STAGE) -> None:
    """`where`: as for `_hook`."""
    entries: Any = spec.hooks.get(stage) or []
    # A hook of an earlier start of this bundle is left out: the bundle may have been in another place.
    others = [other for other in entries if f"--{HOOK_FLAG}" not in (other.get("args") or ())]
    spec.hooks = {**spec.hooks, stage: [*others, _hook(options, where, stage)]}


def remove_afterwards(spec: Spec, options: Options, made: list[str], *, bundle: str, config: str) -> None:
    """Add a poststop hook that removes these mount points, which the decision names. Others as for `correct`."""
    decision = parse(spec.annotations[ANNOTATION])
    spec.annotations = {**spec.annotations, ANNOTATION: encode({**decision, "made": made})}
    _add_hook(spec, options, ["--bundle", bundle, "--config", config], "poststop")


def of_the_image(
    decided: Plan, spec: Spec, bundle: str, still_waits: Callable[[], None] = lambda: None
) -> list[Reason]:
    """Why a container must not start, by what its image and its volumes have before the runtime looks at them.

    `spec`: not corrected. `bundle`: as for `correct`. Raises Unacceptable, OSError.
    """
    return _devices_astray(decided, spec, bundle, still_waits) + misplaced(decided, spec, bundle)


def _devices_astray(decided: Plan, spec: Spec, bundle: str, still_waits: Callable[[], None]) -> list[Reason]:
    """Why devices of the container must not be made: a link leads them into a reserved mount. Raises OSError."""
    if not isinstance(spec.root.get("path"), str) or not any(edit.mount for edit in decided.mounts):
        return []
    root = rootfs(spec, bundle)
    made_in = directories([device.written for device in spec.devices])
    if (
        made_in <= {"/dev"}
        and True not in [edit.can_be_written() for edit in decided.mounts]
        and not is_link(root + "/dev")
    ):
        return []  # the usual case; the rest of the check loads _ctypes

    return early.astray(root, decided.mounts, spec, still_waits)


def hidden(decided: Plan, spec: Spec, bundle: str) -> list[str]:
    """The image's own files that directories of a trust store hide: regular files whose names the store lacks.

    CA files of distributions are links there, but for the bundles, whose names the store has. A server's certificate or
    a CA that the image brought is a file. A directory behind a link is not looked into.
    """
    files = []
    for edit in decided.mounts if isinstance(spec.root.get("path"), str) else ():
        directory = rootfs(spec, bundle).rstrip("/") + edit.name
        if (
            not edit.source().endswith(("/live/certs", "/live/alone/certs"))
            or "ro" not in edit.options()
            or not _is_plain(directory, edit.name)
        ):
            continue
        try:
            with posix.scandir(directory) as entries:
                names = [
                    e.name for _, e in zip(range(_STEPS), entries, strict=False) if e.is_file(follow_symlinks=False)
                ]
            names = sorted({*names} - {*posix.listdir(edit.source())})
        except OSError:
            continue
        if names:
            more = f" and {len(names) - 1} more files" if len(names) > 1 else ""
            files.append(f"rule {edit.rule} hides {named(f'{edit.name}/{names[0]}')} of the image{more}")
    return files


def _is_plain(directory: str, path: str) -> bool:
    """Whether no component of a path at the end of a directory's name is a link."""
    root = directory[: -len(path)]
    return not any(is_link(root + above) for above in (path, *parents(path)[:-1]))


_STEPS = 2000
"""Names of a path that are followed in an image, whose author can make it 80,000 names long by links."""


def misplaced(decided: Plan, spec: Spec, bundle: str) -> list[Reason]:
    """Why reserved mounts cannot be made: the image has a file where a directory has to be, or the reverse.

    The runtime would fail with an error of its own, before any hook, so that no event said it. Where the image is not
    all that is on the way, the runtime decides. Raises OSError for a shortage.
    """
    reserved = [edit for edit in decided.mounts if edit.mount]
    if not reserved or not isinstance(spec.root.get("path"), str):
        return []
    root = rootfs(spec, bundle).rstrip("/")
    mounted = {*[mount.path for mount in spec.mounts], *[edit.name for edit in reserved]}
    reasons = []
    for edit in reserved:
        try:
            wrong = _of_another_kind(root, edit.name, is_directory(posix.stat(edit.source())), mounted)
        except OSError as error:
            if is_shortage(error):
                raise
            continue  # something is missing: the runtime makes it, or says what it lacks
        if wrong:
            cure = (
                "trust: {mount: Aside} mounts nothing there"
                if trust_layout.store_of(edit.source())
                else "correct the image"
            )
            reasons.append(Reason(edit.rule, KIND, f"mount {named(edit.name)} cannot be made: {wrong}; {cure}"))
    return reasons


def _of_another_kind(root: str, path: str, is_dir: bool, mounted: set[str]) -> str:
    """What the image has on the way to `path`: a file instead of a directory, or the reverse; "" if it has neither.

    Links are followed as the container does. `mounted`: paths of mounts, which hide what the image has. Raises OSError.
    """
    names = path.split("/")[::-1]
    current, links, steps = "", 0, 0
    while names and steps < _STEPS:
        steps += 1
        name = names.pop()
        if name in ("", ".", ".."):
            current = current.rpartition("/")[0] if name == ".." else current
            continue
        current = f"{current}/{name}"
        if current in mounted and current != path:
            return ""
        status = posix.lstat(root + current)
        if status.st_mode & 0o170000 == 0o120000:
            links += 1
            if links > SYMLINK_LIMIT:
                return ""
            target = posix.readlink(root + current)
            names += target.split("/")[::-1]
            current = "" if target[:1] == "/" else current.rpartition("/")[0]
        elif is_directory(status) != (is_dir or any(names)):
            kind, needed = ("a directory", "a file") if is_directory(status) else ("a file", "a directory")
            return f"{named(current)} in the image is {kind}, and {needed} has to be there"
    return ""


def rootfs(spec: Spec, bundle: str) -> str:
    """The container's root directory. Raises Undecided."""
    path = spec.root.get("path")
    if not isinstance(path, str):
        raise Undecided("config.json has no root.path")
    return path if path.startswith("/") else f"{bundle.rstrip('/')}/{path}"


def _hook(options: Options, where: list[str], stage: str) -> dict[str, object]:
    """The OCI hook entry (runtime-spec, config.md, "POSIX-platform Hooks"). `env` is never empty: CVE-2025-23266.

    `where`: options that name the bundle and config.json.
    """
    env = ["PATH=/usr/sbin:/usr/bin:/sbin:/bin", "TZ=UTC0"]
    if options.hook:  # a file of hook.entry.dispatcher.warm_hook, which says where policy, store and events are
        command = [options.hook]
    else:
        command = [*own_command(), "hook"]
        if hasattr(sys, "_MEIPASS"):  # avoids a second start of PyInstaller's bootloader, see entry/dispatcher.py
            env += [f"_PYI_ARCHIVE_FILE={command[0]}", "_PYI_PARENT_PROCESS_LEVEL=0", f"LD_LIBRARY_PATH={sys._MEIPASS}"]
        where = [*where, "--policy", options.policy, "--store", options.store, "--events", options.events]
    command = [*_AFTERWARDS, *command] if stage == "poststop" else command
    return {
        "path": command[0],
        "args": [*command, f"--{HOOK_FLAG}", *where, stage],
        "env": env,
        "timeout": HOOK_SECONDS,
    }


def stamp(
    annotations: dict[str, str],
    reserved: Reserved,
    *,
    fingerprint: str,
    draft: str = "",
    mounts: list[str] | None = None,
    has_devices: bool = False,
) -> dict[str, str]:
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
        if reserved.allowed:
            decision["allowed"] = {name: allowed.given for name, allowed in reserved.allowed.items()}
        if mounts:
            decision["mounts"] = mounts
        text = encode(decision)
        stamped[ANNOTATION] = f'{text[:-1]},"event":{draft}}}' if draft else text
    return stamped


class Decision:
    """What `create` decided for a container: the policy's fingerprint, the reserved env, paths of reserved mounts."""

    def __init__(
        self,
        policy: object,
        *,
        env: Reserved,
        mounts: list[object],
        draft: dict[str, object] | None,
        devices: bool,
        made: Sequence[str] = (),
    ) -> None:
        self.policy = policy
        self.env = env
        self.mounts = mounts
        self.draft = draft
        """The event to complete, None if the annotation holds none."""
        self.devices = devices
        """Whether devices were decided, so that an `update` must not change their rules; also for a container that an
        earlier version created, which did not say."""
        self.made = made
        """Mount points in the root file system of a build, to be removed after it."""


def without_unmade(draft: dict[str, Any]) -> dict[str, Any] | None:
    """A draft of Audit mode, for a hook in Enforce mode: without edits that create did not make. Tried ones stay."""
    edits = draft.get("edits")
    kept = [edit for edit in edits if "mode" in edit] if isinstance(edits, list) else []
    return {**draft, "edits": kept} if draft.get("tried") else None


def read(annotations: dict[str, str]) -> Decision | None:
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
        allowed = {name: Allowed(name, given) for name, given in value.get("allowed", {}).items()}
        env = Reserved(dict(value["env"]), list(value["absent"]), allowed)
        has_devices = value.get("devices") is not False
        paths, made = list(value.get("mounts", [])), [str(path) for path in value.get("made", [])]
        return Decision(value.get("policy"), env=env, mounts=paths, draft=draft, devices=has_devices, made=made)
    except (AttributeError, KeyError, TypeError, ValueError) as error:  # Malformed is a ValueError
        raise Undecided(f"annotation {ANNOTATION} cannot be read: {error}") from None
