"""`exec` and `update` through the runtime wrapper: a running container keeps what was decided when it was created.

Also says why a container is not restored from a checkpoint.

The process of an `exec` gets the env that was decided. Device rules stay what they were: engines hand their own, stored
linux.resources to each update (containerd and CRI-O at UpdateContainerResources), with the device rules that were there
before reassert corrected them. crun (libcrun_container_update) and youki write these rules to the cgroup; runc
(update.go, SkipDevices) and runsc do not. Every other option of `update` is a limit of CPU, memory, I/O or pids.
"""

from __future__ import annotations

import posix

from hook.core.base.errors import Unacceptable, describe
from hook.core.base.jsontext import Malformed, bounded, decode, encode, members
from hook.core.base.system import is_file, read_fd, write_all
from hook.core.container import oci
from hook.core.container.identity import CONTAINER, CRIO, crio
from hook.core.container.runtime_records import bundle_of
from hook.core.container.spec import (
    CONFIG_ENTRIES,
    CONFIG_LIMIT,
    PROCESS,
    RESOURCES,
    Spec,
    apply,
    check_names,
    encoded,
    splice,
    strings,
    without_nul,
)
from hook.core.container.start import Entries
from hook.core.decide import Case
from hook.core.linux import gvisor
from hook.core.plan import Plan
from hook.core.policy.sources import not_allowed
from hook.core.reserve.edits import Reason
from hook.core.reserve.reserved_env import Reserved
from hook.entry import write_spec
from hook.entry.caller import Caller
from hook.entry.cmdline import Invocation, Option

RESOURCES_STDIN = "-"
"""The value of --resources for standard input, in all runtimes."""


class ExecCaller(Caller):
    """The process that executes `exec` or `update`."""

    def process_file(self, path: str) -> tuple[bytes, bool]:
        """Returns an exec's process file, and whether it can be replaced (a regular file). Raises TooLarge, OSError."""
        return read_process(path)

    def bundle(self, container_id: str, root: str | None, real: str) -> str:
        """Returns a container's bundle directory. `root`: the real runtime's --root. Raises Undecided, OSError."""
        return bundle_of(container_id, root=root, real=real, environment=self.environment)

    def decided(self, config: str) -> Reserved | None:
        """Returns what was decided about a container at its create. Raises Undecided, OSError."""
        decision = write_spec.read(Spec(self.config(config), config).annotations)
        return decision.env if decision else None

    def resources(self, path: str) -> bytes:
        """Returns the resources of an update. Raises TooLarge, OSError."""
        return read_fd(0, CONFIG_LIMIT, "the resources on stdin") if path == RESOURCES_STDIN else read_process(path)[0]


def handle(invocation: Invocation, caller: Caller) -> list[str]:
    """Do what a verb of a running container needs. Returns the arguments for the real runtime. Raises Refused.

    An error refuses the command. In Audit mode, it is executed unchanged.
    """
    case = Case(caller, invocation.container_id)
    asking = caller if isinstance(caller, ExecCaller) else ExecCaller(caller.options, caller.environment)
    try:
        arguments = _ACTIONS[invocation.verb](invocation, caller.options.real, asking)
    except Exception as error:
        refusal = Unacceptable(f"{invocation.verb}: {describe(error)}")
        refusal.__cause__ = error  # the container did not cause a shortage, and the agent must not refuse it for one
        caller.report(case, case.failed(refusal))
        return invocation.arguments
    if invocation.verb == "exec":
        caller.count(case, is_exec=True)
    return arguments


def _config(invocation: Invocation, real: str, caller: ExecCaller) -> str:
    """The path of the container's config.json. Raises Undecided, OSError."""
    bundle = caller.bundle(invocation.container_id, invocation.global_value("root"), real)
    return bundle.rstrip("/") + "/config.json"


def _exec(invocation: Invocation, real: str, caller: ExecCaller) -> list[str]:
    """The arguments for the real runtime, with a corrected process file and `--env` options.

    A container that was created without reassert has no stored decision, and its exec is not changed.
    """
    reserved = caller.decided(_config(invocation, real, caller))
    if reserved is None:
        return invocation.arguments
    arguments = list(invocation.arguments)
    _correct_process(invocation, arguments, reserved, caller)
    given = [option.value for option in invocation.options if option.name == "env"]
    _replace_reserved(invocation, arguments, _within(reserved, given))
    return arguments


def _within(reserved: Reserved, env: Entries) -> Reserved:
    """What is reserved for a process that would have this env. Raises Unacceptable."""
    found = reserved.within(env)
    if found.refused:
        raise Unacceptable(not_allowed(found.refused[0]))
    return found


def _set_value(arguments: list[str], option: Option, value: str) -> None:
    """Give an option another value, in the spelling that it has."""
    last = arguments[option.end - 1]
    arguments[option.end - 1] = last[: len(last) - len(option.value)] + value


def _correct_process(invocation: Invocation, arguments: list[str], reserved: Reserved, caller: ExecCaller) -> None:
    """Correct the process file. A pipe can be read only once, so the runtime gets a memory file with its content."""
    option = invocation.last("process")
    if option is None:
        return
    path = option.value
    caller.remove_temporary(path)
    content, is_regular = caller.process_file(path)
    target = ProcessFile(content, path)
    target.env = _within(reserved, target.env).correct(target.env)
    if not is_regular:
        preserved = _number(invocation.value("preserve-fds")) + _number(caller.environment.get(b"LISTEN_FDS"))
        _set_value(arguments, option, memory_file(target.render(), 3 + preserved))
    elif target.changed():
        caller.replace(path, target.render())


def _number(text: str | bytes | None) -> int:
    try:
        return max(0, int(text or 0))
    except ValueError:
        return 0


def memory_file(data: bytes, first: int) -> str:
    """The path of a memory file with `data`, valid in this process also after execve.

    Its descriptor is `first` or above: runc and crun pass lower ones into the container, and close all others before
    its process starts.
    """
    fd = posix.memfd_create("process.json", posix.MFD_CLOEXEC)
    write_all(fd, data)
    read_only = posix.open(f"/proc/self/fd/{fd}", posix.O_RDONLY | posix.O_CLOEXEC)
    posix.close(fd)
    taken = posix.listdir("/proc/self/fd")
    number = first
    while str(number) in taken:
        number += 1
    posix.dup2(read_only, number, inheritable=True)
    posix.close(read_only)
    return f"/proc/self/fd/{number}"


def _replace_reserved(invocation: Invocation, arguments: list[str], reserved: Reserved) -> None:
    """Give `--env` options of reserved names the reserved value, and add those that are missing.

    runc puts `--env` after the container's own env, where it would win. crun before 1.28 takes it instead of the
    container's env, reserved names with it (src/exec.c).
    """
    first = -1  # the first option that is left, as an index of `arguments`
    given: set[str] = set()
    for option in reversed(invocation.options):
        if option.name != "env":
            continue
        name = option.value.partition("=")[0]
        if not reserved.owner(name):
            first = option.begin
            continue
        value = reserved.values.get(name)
        if value is None:
            flags = arguments[option.begin].partition("e")[0]  # a cluster of getopt: `-te NAME=…` leaves `-t`
            left = [flags] if flags.strip("-") else []
            arguments[option.begin : option.end] = left
            first += len(left) - (option.end - option.begin) if first >= 0 else 0
        else:  # in the given spelling of the option: runc refuses -e and --env in one command
            given.add(name)
            first = option.begin
            _set_value(arguments, option, f"{name}={value}")
    if first >= 0:
        spelling = "--env" if arguments[first].startswith("--") else "-e"
        for name, value in reversed(reserved.values.items()):
            if value is not None and name not in given:
                arguments[first:first] = [spelling, f"{name}={value}"]


def read_process(path: str) -> tuple[bytes, bool]:
    """The content of a process file, and whether it can be replaced (a regular file). Raises TooLarge, OSError."""
    # Blocking: the writer of a pipe may be slow, and the real runtime would wait for it too.
    fd = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC)
    try:
        plain = is_file(posix.fstat(fd)) and is_file(posix.lstat(path))
        return read_fd(fd, CONFIG_LIMIT, path), plain
    finally:
        posix.close(fd)


class ProcessFile:
    """The file of `exec --process FILE`: a process object of the runtime-spec. Only `env` can be replaced."""

    def __init__(self, data: bytes, where: str) -> None:
        self.where = where
        try:
            self._text = without_nul(decode(bounded(data, CONFIG_ENTRIES, where)))
            self._members, _ = members(self._text, strings="env")
            check_names(self._members, PROCESS)
            self.env = self._original = strings(self._members, "env", "env")
        except Malformed as error:
            raise Unacceptable(f"{where}: {error}") from None

    def changed(self) -> bool:
        """Whether `env` was replaced."""
        return self.env != self._original

    def render(self) -> bytes:
        """The text with the replaced env in it."""
        return apply(self._text, [splice(self._members, self._text.index("{"), "env", encoded(self.env))])


def _update(invocation: Invocation, real: str, caller: ExecCaller) -> list[str]:
    """The arguments for the real runtime, which name other resources if those have device rules.

    Passed on unchanged are updates without --resources, without device rules, and of a container about whose devices
    nothing was decided.
    """
    option = invocation.last("resources")
    if option is None or not option.value:
        return invocation.arguments
    config = _config(invocation, real, caller)
    spec = Spec(caller.config(config), config)
    decided = write_spec.read(spec.annotations)
    if decided is None or not decided.devices:
        return invocation.arguments
    path = memory_file(_with_rules(caller.resources(option.value), oci.objects(spec.device_rules)), 3)
    arguments = list(invocation.arguments)
    _set_value(arguments, option, path)
    return arguments


def not_restored(decided: Plan, case: Case, spec: Spec) -> list[Reason]:
    """Why a checkpoint must not be restored: one reason for each rule that applies.

    A restored container has the env and mounts of its checkpoint, whatever config.json says. CRI-O writes annotations
    of the checkpoint over its own ones, and kubelet's labels over both: it has no image that counts, and is no sandbox.
    """
    if case.identity and case.identity.engine == CRIO:
        own = {"io.kubernetes.cri-o.ContainerType": CONTAINER, "io.kubernetes.cri-o.Image": ""}
        decided = case.decide(crio({**spec.annotations, **own}), spec)
    message = "a restored container has the env and mounts of its checkpoint, which reassert cannot correct"
    if case.audited_rules:
        case.audited_rules.would_refuse(
            [Reason(match.rule.name, "", message) for match in decided.matches if match.is_audited]
        )
    return [Reason(match.rule.name, "", message) for match in decided.matches if match.applies]


def _start(invocation: Invocation, real: str, caller: ExecCaller) -> list[str]:
    """Confine the gofer of a pod's second container, which gVisor's `start` makes."""
    config = _config(invocation, real, caller)
    confine(Spec(caller.config(config), config), caller)
    return invocation.arguments


def confine(spec: Spec, caller: Caller) -> None:
    """Confine gVisor's gofer by what `create` decided. Raises Malformed, Undecided, OSError."""
    decided = write_spec.read(spec.annotations)
    if decided:
        reserved = [mount for mount in spec.mounts if mount.path in decided.mounts]
        gvisor.confine(reserved, decided.devices, caller.before_mounting)


def _with_rules(data: bytes, rules: list[dict[str, object]]) -> bytes:
    """Resources whose device rules are the container's, if they have any. All other bytes stay. Raises Unacceptable.

    The rules are replaced, not removed: with systemd's cgroups, crun takes missing rules for an empty list.
    """
    where = "the resources"
    try:
        text = without_nul(decode(bounded(data, CONFIG_ENTRIES, where)))
        members_of, end = members(text)
        check_names(members_of, RESOURCES)
        if text[end:].strip():
            raise Malformed("more text after the object")
    except Malformed as error:
        raise Unacceptable(f"{where}: {error}") from None
    if "devices" not in members_of:
        return data
    return apply(text, [splice(members_of, text.index("{"), "devices", encode(rules))])


_ACTIONS = {"exec": _exec, "update": _update, "start": _start}
