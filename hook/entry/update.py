"""`update` through the runtime wrapper: device rules stay those that were decided when the container was created.

Engines hand their own, stored linux.resources to each update (containerd and CRI-O at UpdateContainerResources), with
the device rules that were there before reassert corrected them. crun (libcrun_container_update) and youki write these
rules to the cgroup; runc (update.go, SkipDevices) and runsc do not. Every other option of `update` is a limit of CPU,
memory, I/O or pids. Part of the start path: builtins only.
"""

import posix

from hook.core.base.errors import Unacceptable, describe
from hook.core.base.jsontext import Malformed, bounded, decode, encode, members
from hook.core.base.system import read_fd
from hook.core.container import process
from hook.core.container.spec import ENTRIES, LIMIT, RESOURCES, Spec, apply, check_names, splice, without_nul
from hook.core.decide import Case
from hook.entry import write_spec as decision
from hook.entry.caller import RUNTIME, Caller, Options
from hook.entry.cmdline import Invocation
from hook.entry.exec import ExecCaller, memory_file

STDIN = "-"
"""The value of --resources for standard input, in all runtimes."""


class UpdateCaller(ExecCaller):
    """The process that executes `update`."""

    def resources(self, path: str) -> bytes:
        """Returns the resources of an update. Raises TooLarge, OSError."""
        return read_fd(0, LIMIT, "the resources on stdin") if path == STDIN else process.read(path)[0]


def correct_or_report(options: Options, invocation: Invocation, caller: Caller) -> "list[str]":
    """Correct the resources. Returns the arguments for the real runtime. Raises Refused."""
    if not isinstance(caller, UpdateCaller):  # the agent's is one
        caller = UpdateCaller(caller.environment, caller.start.get("cold", ""))
    try:
        return _corrected(invocation, options.real, caller)
    except Exception as error:  # in Audit mode, the update is executed unchanged
        case = Case(RUNTIME, invocation.container_id, lambda: caller.policy(options), start=caller.start)
        caller.report(options, case.failed(Unacceptable(f"update: {describe(error)}")))
        return invocation.arguments


def _corrected(invocation: Invocation, real: str, caller: UpdateCaller) -> "list[str]":
    """The arguments for the real runtime, which name other resources if those have device rules.

    Passed on as it is: an update without --resources, one without device rules, and one of a container about whose
    devices nothing was decided. Raises Unacceptable, OSError, and whatever ExecCaller.bundle raises.
    """
    option = invocation.last("resources")
    if option is None or not option.value:
        return invocation.arguments
    bundle = caller.bundle(invocation.container_id, invocation.global_value("root"), real)
    config = bundle.rstrip("/") + "/config.json"
    spec = Spec(caller.config(config), config)
    decided = decision.read(spec.annotations)
    if decided is None or not decided.devices:
        return invocation.arguments
    data = _with_rules(caller.resources(option.value), spec.device_rules)
    path = memory_file(data, 3)
    if option.value == STDIN:
        posix.dup2(int(path.rpartition("/")[2]), 0)
        return invocation.arguments
    arguments = list(invocation.arguments)
    last = arguments[option.end - 1]
    arguments[option.end - 1] = last[: len(last) - len(option.value)] + path
    return arguments


def _with_rules(data: bytes, rules: "list[dict[str, object]]") -> bytes:
    """Resources whose device rules are the container's, if they have any. All other bytes stay. Raises Unacceptable.

    The rules are replaced, not removed: with systemd's cgroups, crun takes missing rules for an empty list.
    """
    where = "the resources"
    try:
        text = without_nul(decode(bounded(data, ENTRIES, where)))
        found, end = members(text)
        check_names(found, RESOURCES)
        if text[end:].strip():
            raise Malformed("more text after the object")
    except Malformed as error:
        raise Unacceptable(f"{where}: {error}") from None
    if "devices" not in found:
        return data
    return apply(text, [splice(found, text.index("{"), "devices", encode(rules))])
