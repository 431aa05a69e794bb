"""What is wrong with this node: one function for each part. `status`, metrics and JSON show what they yield.

They are quick: `status` is a readiness probe. What else `status --all` shows is in more.py.
"""

from __future__ import annotations

import json
import os
import shlex
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from hook.compile.overlap import matched_types
from hook.core.base.compare import glob_match
from hook.core.base.errors import ReassertError, describe
from hook.core.base.finding import ERROR, NOTE, OK, WARNING, Finding
from hook.core.base.logfile import LOST
from hook.core.base.system import Untrusted, timestamp, trusted
from hook.core.container.allocation import CHECKPOINT_LIMIT, checkpoint_path
from hook.core.events import EVENTS
from hook.core.policy import store
from hook.core.policy.entries import EXCLUSIVE
from hook.core.policy.model import AUDIT, Policy, Rule
from hook.core.policy.store import KUBELET_ROOT
from hook.core.reserve.reserved_env import VISIBLE_GPUS
from hook.entry.dispatcher import FRONT
from hook.node import kept, systemd, wired
from hook.node.accepted import HANDLER
from hook.node.artifacts import dispatchers
from hook.node.change.program import called, path_in_use
from hook.node.engines import registry
from hook.node.engines.base import HOOK, NRI, RUNTIME, Handler
from hook.node.engines.facts import FACTS, containers_of
from hook.node.engines.shims import listed
from hook.node.kept import UNSEEN
from hook.node.loaded import NOT_KNOWN, STARTS, differing, front_of, preexisting
from hook.node.services import NOT_WANTED
from hook.node.sources import OF_PODS, of_policy, taken_away
from hook.ops.audit.remembered import unseen
from hook.ops.health.node import EngineState, Node
from hook.resident.terminal import counted

ENGINE, POLICY, AGENT, CONTAINERS, VERIFY = "engine", "policy", "agent", "containers", "verify"
"""Parts. A handler is the part `handler/NAME`, as for `verify`."""

_LOW, _BYTES = 0.05, 64 << 20
"""A file system with a smaller share of free space, or fewer free bytes, is a warning."""

_GPU_KIND, _NVIDIAS_RUNTIME = "nvidia.com/gpu", "nvidia-container-runtime"

_CLAIM = b"ClaimUID"
"""A field that each claim in kubelet's dra_manager_state has."""


def engines(node: Node) -> Iterator[Finding]:
    """Whether each engine can be asked and runs, and which settings of its own are against the policy."""
    # An engine that is not wired, such as docker's own containerd, is never wrong.
    for name, problem in node.broken.items():
        yield Finding(ERROR if name in node.record.engines() else NOTE, ENGINE, problem, engine=name)
    for state in node.engines:
        wrong = ERROR if state.is_wired else NOTE
        title, runs = state.engine.title, state.engine.running()
        if state.is_wired and not runs:
            command = f"systemctl start {state.engine.service}" if state.engine.service else ""
            yield Finding(ERROR, ENGINE, f"{title} does not run", command, engine=state.name)
        elif not state.is_wired and runs and node.record.engines():
            text = f"{title} runs on this node too and is not wired"
            yield Finding(NOTE, ENGINE, text, f"reassert install --engine {state.name}", engine=state.name)
        else:
            text = f"{title} {'runs' if runs else 'does not run'}{'' if state.is_wired else ', and is not wired'}"
            yield Finding(OK, ENGINE, text, engine=state.name)
        for text in state.now.warnings():
            yield Finding(wrong, ENGINE, text, engine=state.name)
        for text in state.now.hints():
            yield Finding(NOTE, ENGINE, text, engine=state.name)
        for _, finding in taken_away(node.policy, state.now.annotations()) if node.policy else ():
            yield replace(finding, engine=state.name)
        yield from _without_cdi(node, state, wrong)
    if node.is_whole:
        any_engine = node.engines or node.broken
        for text in registry.other_distributions() if any_engine else [registry.none_installed()]:
            yield Finding(NOTE, ENGINE, text)


def _without_cdi(node: Node, state: EngineState, wrong: str) -> Iterator[Finding]:
    """That an engine gives containers no CDI devices. It is wrong if kubelet has claims on this node."""
    lack = state.now.without_cdi()
    path = Path(node.policy.kubelet_root if node.policy else KUBELET_ROOT, "dra_manager_state")
    with suppress(OSError):  # kubelet knows no claims: it is older, or runs elsewhere
        if lack:
            severity = wrong if _CLAIM in path.read_bytes() else NOTE
            becomes = "resource claims (DRA) do nothing on this node, their containers start without the devices"
            yield Finding(severity, ENGINE, f"{becomes}: {lack}", engine=state.name)


def unrecorded(node: Node) -> Iterator[Finding]:
    """The engines that call reassert though no install is recorded: verify then finds protected what is not wired."""
    for state in node.engines:
        names = [each.name for each in state.loaded.handlers if STARTS & {*each.wired}]
        if names and not state.is_wired:
            text = (
                f"containers of {listed(names)} start with reassert, and {node.record.path} has no install of "
                f"{state.engine.title}: it was wired by hand, or this record was lost"
            )
            command = registry.install_command(state.name, node.record.engines())
            yield Finding(NOTE if node.is_wired else WARNING, ENGINE, text, command, node.record.path, state.name)


def handlers(node: Node) -> Iterator[Finding]:
    """The handlers whose containers start without reassert."""
    for state in node.wired:
        if not state.meets_starts:
            continue
        title, verb = state.engine.title, state.engine.verb
        install = registry.install_command(state.name, node.record.engines())
        if state.loaded.unknown:
            text = f"it is not known whether it is wired: {state.loaded.unknown}"
            yield Finding(ERROR, ENGINE, text, engine=state.name)
        for name in state.loaded.other:
            text = f"containers of {name} start without reassert: {title} runs with other settings than its files say"
            yield Finding(ERROR, HANDLER + name, f"{text}; the install {verb}s it", install, engine=state.name)
        for handler in state.loaded.handlers:
            if handler.name in state.loaded.other or handler.note == NOT_KNOWN:
                continue
            yield _handler(node, state, handler, install)


def _handler(node: Node, state: EngineState, handler: Handler, install: str) -> Finding:
    """What is to be said of a handler as it is in force."""
    part, name = HANDLER + handler.name, handler.name
    lacks = wired.lacking(handler, state.part)
    bypasses = f"containers of {name} start without reassert"
    if not lacks:
        return Finding(OK, part, f"handler {name} is wired ({', '.join(handler.wired)})", engine=state.name)
    if STARTS & {*handler.wired}:
        text = f"containers of {name} start without the adapter {', '.join(sorted(lacks))}{_restarts(node, state)}"
        return Finding(ERROR, part, text, install, engine=state.name)
    if _is_lost(node, state, handler):
        return Finding(ERROR, part, f"{bypasses}{_restarts(node, state)}", install, engine=state.name)
    note = f": {handler.note}" if handler.note else ""
    if not handler.is_installed:
        return Finding(NOTE, part, f"handler {name} is not wired{note}", engine=state.name)
    if node.accepted(state).leaves_out(name):
        return Finding(NOTE, part, f"{bypasses}, which was accepted by name{note}", engine=state.name)
    remedy = handler.remedy or f"{install} --except {shlex.quote(part)}"
    return Finding(ERROR, part, f"{bypasses}{note}", remedy, engine=state.name)


def hidden_gpus(node: Node) -> Iterator[Finding]:
    """The handlers under which a hook alone does not see which GPUs a container has asked for, and got.

    In its CDI modes NVIDIA's runtime gives the GPUs that the variable names, writes `void` in its place, and then calls
    the runtime that calls the hook.
    """
    rules = [rule for rule in (node.policy.candidates(None) if node.policy else ()) if not rule.is_audited]
    exclusive = [pattern for rule in rules for pattern in rule.raw.get(EXCLUSIVE) or ()]
    names = [rule.name for rule in rules if any(env.name == VISIBLE_GPUS for env in rule.env)]
    if not names or any(glob_match(pattern, "/dev/nvidia0") or pattern == _GPU_KIND for pattern in exclusive):
        return
    for state in node.wired:
        if {RUNTIME, NRI} & {*state.part.adapters}:  # who runs the plugin may be another, such as the chart
            continue
        for handler in state.loaded.handlers:
            if HOOK in handler.wired and os.path.basename(handler.runtime or "").startswith(_NVIDIAS_RUNTIME):
                text = (
                    f"containers of {handler.name} get each GPU that {VISIBLE_GPUS} names, against rule {names[0]}: "
                    "NVIDIA's runtime has given it, and removed the value, before the hook looks. A rule with "
                    "`exclusive: [/dev/nvidia*]` refuses them, and so does another adapter"
                )
                install = registry.install_command(state.name, node.record.engines())
                yield Finding(ERROR, "gpus", text, f"{install} --adapter runtime", engine=state.name)


def _restarts(node: Node, state: EngineState) -> str:
    """What an install would do to the engine, as the end of a sentence."""
    engine = state.engine
    restarts = node.policy and node.again(state, node.policy).restarts()
    return f"; the install {engine.verb}s {engine.title}" if restarts else ""


def _is_lost(node: Node, state: EngineState, handler: Handler) -> bool:
    """Whether an install would wire a handler that calls its runtime without reassert now."""
    in_scope = state.part.runtime_class in (None, handler.name)
    if not (in_scope and handler.runtime and handler.is_installed) or STARTS & {*handler.wired} or not node.policy:
        return False
    rewiring = node.again(state, node.policy)
    # Without its dispatcher a handler starts nothing.
    changed = [path for path in differing(rewiring) if dispatchers.is_place(path)]
    return rewiring.references_differ() or any(rewiring.disk.at(path) for path in changed)


def files(node: Node) -> Iterator[Finding]:
    """The files and units of the last install that are not as it left them, and newer settings."""
    for state in node.wired:
        if not node.policy:
            continue
        rewiring = node.again(state, node.policy)
        install = registry.install_command(state.name, node.record.engines())
        paths = differing(rewiring)
        if any(_is_lost(node, state, handler) for handler in state.loaded.handlers):
            pass  # `handlers` has it
        elif paths and (NRI in state.part.adapters or any(map(rewiring.was_changed, paths))):
            text = f"{', '.join(paths)} out of date{_restarts(node, state)}"
            yield Finding(ERROR, "files", text, install, paths[0], state.name)
        elif paths:
            text = f"newer settings are available ({', '.join(paths)}){_restarts(node, state)}"
            yield Finding(WARNING, "files", text, install, paths[0], state.name)
        else:
            yield Finding(OK, "files", "the files are as the last install wrote them", engine=state.name)
        placed = [path for path, _ in rewiring.artifacts if dispatchers.is_place(path) and os.path.exists(path)]
        for path in filter(None, (path_in_use(), front_of(state.part), *placed)):
            if not os.access(path, os.X_OK):
                what = "cannot be executed" if os.path.exists(path) else "is missing"
                yield Finding(ERROR, "files", f"{path} {what}, so no container starts", install, path, state.name)
        for unit in state.part.units:
            if not systemd.is_active(unit):
                yield Finding(ERROR, "units", f"{unit} does not run", install, engine=state.name)


def agent(node: Node) -> Iterator[Finding]:
    """How container starts are answered."""
    found = node.agent
    if found is None:
        yield Finding(OK, AGENT, "no adapter is wired that uses it")
        return
    yield from found.findings()
    yield Finding(NOTE if found.cold and found.cold != NOT_WANTED else OK, AGENT, found.as_text())


def policy(node: Node) -> Iterator[Finding]:
    """Whether there is a policy and it enforces something, and what of it this node cannot do."""
    if not node.is_wired:
        return
    in_force = node.policy
    if in_force is None:
        command = "reassert policy check" if os.path.lexists(store.SOURCE) else "reassert install"
        yield Finding(ERROR, POLICY, node.no_policy, command)
        return
    if text := in_force.warning:
        if os.path.islink(in_force.path) and not os.path.exists(in_force.path):
            text += f"; {in_force.path} is a symbolic link to {shlex.quote(os.readlink(in_force.path))}"
        yield Finding(ERROR, POLICY, text, f"reassert policy check {in_force.path}")
    why = enforces_nothing(node)
    if why:
        yield Finding(WARNING, POLICY, f"NOT ENFORCED: {why}")
    yield from of_policy(in_force, node.record.engines())


def enforces_nothing(node: Node) -> str:
    """Why the policy changes and refuses nothing, whatever containers start; "" if it may, or is not known."""
    engines = node.record.engines()
    if node.policy is None or not node.is_wired:
        return ""
    if not any(STARTS & {*node.record.parts[name].adapters} for name in engines):
        return "only the adapter cdi is wired, and pods need not ask for its devices"
    return not_enforced(node.policy, engines)


def not_enforced(in_force: Policy, engines: list[str]) -> str:
    """Why a policy changes and refuses nothing, whatever containers start; "" if it may. `engines`: those wired."""
    if in_force.mode == AUDIT:
        return "the mode is Audit"
    if any(not pattern.strip("*") for pattern in in_force.excluded_namespaces):
        return "the policy excludes every namespace"
    rules = [rule for rule in in_force.candidates(None) if not rule.is_audited]
    if not rules:
        return "the policy has no rules"
    if all(_matches_nothing(rule, in_force, engines) for rule in rules):
        return f"no container matches a rule ({', '.join(rule.name for rule in rules)})"
    return ""


def _matches_nothing(rule: Rule, in_force: Policy, engines: list[str]) -> bool:
    """Whether `exclude` excludes all that a rule matches, or it is for pods and no engine has pods."""
    namespaces, types = rule.conditions.get("namespaces", []), rule.conditions.get("containerTypes", [])
    excluded = in_force.excluded_namespaces
    return (
        (bool(namespaces) and all(any(glob_match(glob, name) for glob in excluded) for name in namespaces))
        or (bool(types) and matched_types(rule) <= {*in_force.excluded_types})
        or (_have_no_pods(engines) and bool({*OF_PODS} & {*rule.conditions}))
    )


def _have_no_pods(engines: list[str]) -> bool:
    return bool(engines) and all(name in FACTS and not FACTS[name].runs_pods for name in engines)


def trust(node: Node, wants: str = "/etc/systemd/system/paths.target.wants") -> Iterator[Finding]:
    """The units that build trust stores when a source changes, and do not any more. `wants`: the enabled ones."""
    for name in sorted(path.name for path in Path(wants).glob("reassert-trust*.path")):
        if systemd.state(name) == "failed":
            text = (
                f"{name} has failed: a change of its trust store's sources, such as a CA that is withdrawn, is built "
                "by its timer only, each hour (were all inotify instances of root taken?)"
            )
            yield Finding(ERROR, "trust", text, f"systemctl restart {name}")


def event_log(node: Node) -> Iterator[Finding]:
    """Why no event can be appended to the log, and how many were lost since the node was booted.

    A missing log is made with its first event.
    """
    if not node.is_wired:
        return
    if why := _unwritable(EVENTS):
        text = f"the event log {EVENTS} cannot be written: {why}; no event is logged"
        yield Finding(ERROR, "event log", text, place=EVENTS)
    with suppress(OSError):
        lost = os.stat(LOST)
        last = timestamp(lost.st_mtime_ns)
        text = f"{EVENTS} did not take {lost.st_size} of the events since the node was booted, the last at {last}"
        yield Finding(ERROR if lost.st_mtime >= os.stat(EVENTS).st_mtime else NOTE, "event log", text, place=EVENTS)


def _unwritable(path: str) -> str:
    """Why nothing can be appended to a log, "" if it can."""
    try:
        why = _not_a_log(os.lstat(path))
        if not why:
            os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC))
            system = os.statvfs(path)
            why = "the disk is full" if system.f_blocks and not system.f_bfree else ""
        return why
    except FileNotFoundError:
        directory = os.path.dirname(path)
        while not os.path.lexists(directory):
            directory = os.path.dirname(directory)
        may = os.path.isdir(directory) and os.access(directory, os.W_OK | os.X_OK)
        return "" if may else f"it is missing, and cannot be created in {directory}"
    except OSError as error:
        return error.strerror or str(error)


def _not_a_log(status: os.stat_result) -> str:
    if stat.S_ISLNK(status.st_mode):
        return "it is a symbolic link"
    if not stat.S_ISREG(status.st_mode):
        return "it is a directory" if stat.S_ISDIR(status.st_mode) else "it is not a regular file"
    return "" if status.st_uid in (0, os.geteuid()) else f"it belongs to the user {status.st_uid}, not to root"


def containers(node: Node) -> Iterator[Finding]:
    """The running containers that differ from the policy, and pods from before the install."""
    if not node.policy:
        return
    if node.is_wired and os.geteuid() == 0:
        yield from _differing(node)
    for state in node.wired:
        adapters, runtime_class = state.part.adapters, state.part.runtime_class
        for text in preexisting(state.engine, state.now, adapters, runtime_class):
            yield Finding(WARNING, CONTAINERS, text, engine=state.name)


def _differing(node: Node) -> Iterator[Finding]:
    """One finding for the containers that differ for the same reason."""
    try:
        known = node.audited
    except (ReassertError, OSError) as error:
        yield Finding(
            WARNING, CONTAINERS, f"running containers cannot be looked at: {describe(error)}", "reassert audit"
        )
        return
    names: dict[tuple[str, str, str], list[str]] = {}
    for key, each in known.containers.items():
        if each.severity != OK and (node.is_whole or each.engine in map(containers_of, node.names)):
            names.setdefault((each.severity, each.engine, each.cause), []).append(f"{each.title} ({key[:12]})")
    for (severity, engine, cause), found in sorted(names.items()):
        does = cause if cause == UNSEEN else f"{'differs' if len(found) == 1 else 'differ'} from the policy, {cause}"
        text = f"{counted(len(found), 'container')} {does}: {listed(found)}"
        yield Finding(severity, CONTAINERS, text, "reassert audit", engine=engine)
    if left := unseen(known):
        yield Finding(NOTE, CONTAINERS, f"{counted(left, 'new container')} not looked at yet", "reassert audit")
    if not names:
        count = counted(len(known.containers), "container")
        yield Finding(OK, CONTAINERS, f"{count}, none of which differs from the policy")


def permissions(node: Node) -> Iterator[Finding]:
    """The files that decide about containers and that others than root can write."""
    program = called(node.record)
    front = os.path.join(os.path.dirname(program), FRONT) if program else ""
    for path in filter(None, (store.SOURCE, store.STORE, dispatchers.DIRECTORY, program, front)):
        try:
            trusted(path)
        except FileNotFoundError:
            continue
        except Untrusted as error:
            yield Finding(ERROR, "permissions", error.why, error.remedy, path)
        except OSError as error:
            yield Finding(ERROR, "permissions", describe(error), place=path)
        else:
            yield Finding(OK, "permissions", f"only root can write to {path}", place=path)


def checkpoint(node: Node) -> Iterator[Finding]:
    """Kubelet's device checkpoint, if a rule needs it. That it is missing is said of the policy."""
    if not node.policy or not any(rule.uses_allocations for rule in node.policy.candidates(None)):
        yield Finding(OK, "checkpoint", "no rule needs kubelet's device checkpoint")
        return
    path = checkpoint_path(node.policy.kubelet_root)
    try:
        with Path(path).open("rb") as file:
            entries = json.loads(file.read(CHECKPOINT_LIMIT))["Data"]["PodDeviceEntries"] or []
        yield Finding(OK, "checkpoint", f"{path} has {counted(len(entries), 'allocation')}", place=path)
    except FileNotFoundError:
        text = f"{path} is missing: no device plugin has registered with kubelet"
        yield Finding(NOTE, "checkpoint", text, "ls -l " + os.path.dirname(path), path)
    except (OSError, ValueError, KeyError, TypeError) as error:
        text = f"{path} cannot be read: {describe(error) if isinstance(error, OSError) else 'it has another form'}"
        yield Finding(ERROR, "checkpoint", text, "systemctl restart kubelet", path)


def disk(_: Node) -> Iterator[Finding]:
    """The room for the event log, the policy and the sockets."""
    places: dict[int, str] = {}
    for wanted in (os.path.dirname(EVENTS), store.STORE, "/etc/reassert", "/run"):
        path = wanted
        while not os.path.isdir(path):
            path = os.path.dirname(path)
        places.setdefault(os.stat(path).st_dev, path)
    for path in places.values():
        room = os.statvfs(path)
        free = room.f_bavail * room.f_frsize
        part = room.f_bavail / room.f_blocks if room.f_blocks else 1.0
        files = room.f_favail / room.f_files if room.f_files else 1.0
        text = f"{path}: {free >> 20} MiB free ({part:.0%}), {files:.0%} of its files free"
        severity = ERROR if not free or not files else WARNING if part < _LOW or files < _LOW or free < _BYTES else OK
        command = "" if severity == OK else f"du -xh --max-depth=2 {path} | sort -h | tail"
        yield Finding(severity, "disk", text, command, path)


def kept_state(node: Node) -> Iterator[Finding]:
    """Why nothing is kept from one look to the next, nor a policy compiled once for all starts.

    Whether others than root could write there is no question of this.
    """
    if not node.is_wired or not os.path.isdir(store.STORE):
        return
    path = os.path.join(store.STORE, kept.FILE)
    lost = "no look of the timer and no `verify` is kept"
    if os.statvfs(store.STORE).f_flag & os.ST_RDONLY:
        top = next(str(each) for each in (Path(path).parent, *Path(path).parent.parents) if os.path.ismount(each))
        text = f"the file system of {store.STORE} is read-only: {lost}, and each start compiles a changed policy itself"
        yield Finding(ERROR, "store", text, f"mount -o remount,rw {shlex.quote(top)}", store.STORE)
    elif os.path.lexists(path) and not stat.S_ISREG(os.lstat(path).st_mode):
        text = f"{path} is not a regular file: {lost}"
        yield Finding(ERROR, "store", text, f"mv {path} {path}.old", path)


def interrupted(node: Node) -> Iterator[Finding]:
    """An install or uninstall that was killed."""
    if node.interrupted:
        what = f"the last {node.interrupted.operation} of {node.interrupted.engine} was interrupted"
        text = f"{what}; an install or uninstall restores every file first"
        yield Finding(ERROR, ENGINE, text, "reassert install")


def verified(node: Node) -> Iterator[Finding]:
    """What the last `verify` of each engine found, as long as it says something about the node now."""
    for state in node.wired:
        last = node.kept.verified.get(state.name)
        if last is None or not last.is_current or not state.meets_starts:
            text = "what containers get was not verified since the last install"
            yield Finding(NOTE, VERIFY, text, f"reassert verify --engine {state.name}", engine=state.name)
            continue
        again = f"reassert verify --engine {state.name}"
        accepted = node.accepted(state)
        is_other = bool(node.policy) and last.policy not in ("", node.policy.fingerprint if node.policy else "")
        for each in last.findings:
            text = f"{since(last.when)}, verify said: {each.text}"
            if each.part in last.untried and accepted.covers(each.part):
                yield replace(each, severity=NOTE, text=text, remedy="")
            elif each.severity == ERROR and is_other:
                yield replace(each, severity=WARNING, text=f"under an earlier policy, {text}", remedy=again)
            elif each.severity == ERROR:
                yield replace(each, text=text, remedy=each.remedy or again)
            else:
                yield replace(each, text=text)


def since(when: float) -> str:
    """How long ago something was: in days, hours, minutes or seconds, at least two of them."""
    seconds = kept.age(when)
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        if seconds >= 2 * length:
            return f"{seconds // length:.0f} {unit} ago" if seconds < float("inf") else "at a time to come"
    return "now"


CHECKS = (
    *(engines, unrecorded, handlers, hidden_gpus, files, agent, policy, verified, trust, event_log, containers),
    *(permissions, checkpoint, disk, kept_state, interrupted),
)


def all_of(node: Node) -> list[Finding]:
    """Returns what every check finds. Of two errors about one part, the first counts."""
    found: list[Finding] = []
    for check in CHECKS:
        told = {(each.engine, each.part) for each in found if each.severity == ERROR and each.part != ENGINE}
        found += [each for each in guarded(check, node) if check != verified or (each.engine, each.part) not in told]
    return found


def guarded(check: Callable[[Node], Iterator[Finding]], node: Node) -> Iterator[Finding]:
    """Yields what a check finds. That it fails is a finding too."""
    try:
        yield from check(node)
    except (ReassertError, OSError) as error:
        severity = ERROR if node.is_wired else NOTE
        yield Finding(severity, check.__name__.replace("_", " "), f"this cannot be looked at: {describe(error)}")
