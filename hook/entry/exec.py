"""`exec` through the runtime wrapper: the process gets the env that was decided when the container was created.

Part of the start path: builtins only.
"""

import posix

from hook.core.base.errors import Unacceptable, describe
from hook.core.base.system import write_all
from hook.core.container import process
from hook.core.container.runtime_records import bundle_of
from hook.core.container.spec import Spec
from hook.core.decide import Case
from hook.core.reserve import Reserved
from hook.entry import write_spec as decision
from hook.entry.caller import RUNTIME, Caller, Options
from hook.entry.cmdline import Invocation


class ExecCaller(Caller):
    """The process that executes `exec`."""

    def process_file(self, path: str) -> "tuple[bytes, bool]":
        """Returns an exec's process file, and whether it can be replaced (a regular file). Raises TooLarge, OSError."""
        return process.read(path)

    def bundle(self, container_id: str, root: "str | None", real: str) -> str:
        """Returns a container's bundle directory. `root`: the real runtime's --root. Raises Undecided, OSError."""
        return bundle_of(container_id, root, real, self.environment)

    def decided(self, config: str) -> "Reserved | None":
        """Returns what was decided about a container at its create. Raises Undecided, OSError."""
        found = decision.read(Spec(self.config(config), config).annotations)
        return found.env if found else None


def correct_or_report(options: Options, invocation: Invocation, caller: Caller) -> "list[str]":
    """Correct the process file or the arguments. Returns the arguments for the real runtime. Raises Refused."""
    cold = caller.start.get("cold", "")
    asking = caller if isinstance(caller, ExecCaller) else ExecCaller(caller.environment, cold)  # the agent's is one
    case = Case(RUNTIME, invocation.container_id, lambda: caller.policy(options), start=caller.start)
    try:
        arguments = correct_exec(invocation, options.real, asking)
    except Unacceptable as error:  # in Audit mode, the exec is executed unchanged
        caller.report(options, case.failed(error))
        return invocation.arguments
    caller.count(options, case, is_exec=True)
    return arguments


def correct_exec(invocation: Invocation, real: str, caller: ExecCaller) -> "list[str]":
    """Correct the process file and `--env` options of reserved names. Returns the arguments for the real runtime.

    A container that was created without reassert has no stored decision, and its exec is not changed. Raises
    Unacceptable.
    """
    try:
        bundle = caller.bundle(invocation.container_id, invocation.global_value("root"), real)
        reserved = caller.decided(bundle.rstrip("/") + "/config.json")
        if reserved is None:
            return invocation.arguments
        arguments = list(invocation.arguments)
        _correct_process(invocation, arguments, reserved, caller)
        _replace_reserved(invocation, arguments, reserved)
        return arguments
    except Exception as error:  # an exec without the env that was decided at create is refused
        raise Unacceptable(f"exec: {describe(error)}") from error


def _correct_process(invocation: Invocation, arguments: "list[str]", reserved: Reserved, caller: ExecCaller) -> None:
    """Correct the process file. A pipe can be read only once, so the runtime gets a memory file with its content."""
    option = invocation.last("process")
    if option is None:
        return
    path = option.value
    caller.remove_temporary(path)
    content, is_regular = caller.process_file(path)
    target = process.ProcessFile(content, path)
    target.env = reserved.correct(target.env)
    if not is_regular:
        last = arguments[option.end - 1]
        preserved = _number(invocation.value("preserve-fds")) + _number(caller.environment.get(b"LISTEN_FDS"))
        arguments[option.end - 1] = last[: len(last) - len(path)] + memory_file(target.render(), 3 + preserved)
    elif target.changed():
        caller.replace(path, target.render())


def _number(text: "str | bytes | None") -> int:
    try:
        return max(0, int(text or 0))
    except ValueError:
        return 0


def memory_file(data: bytes, first: int) -> str:
    """The path of a memory file with `data`, valid in this process also after execve.

    Its descriptor is `first` or above: runc and crun pass those below into the container, and close all others before
    the container's process starts.
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


def _replace_reserved(invocation: Invocation, arguments: "list[str]", reserved: Reserved) -> None:
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
            flags = arguments[option.begin].partition("e")[0]  # getopt's cluster: `-te NAME=…` leaves `-t`
            left = [flags] if flags.strip("-") else []
            arguments[option.begin : option.end] = left
            first += len(left) - (option.end - option.begin) if first >= 0 else 0
        else:  # with the given spelling of the option: runc refuses -e and --env in one command
            given.add(name)
            first = option.begin
            last = arguments[option.end - 1]
            arguments[option.end - 1] = last[: len(last) - len(option.value)] + f"{name}={value}"
    if first >= 0:
        spelling = "--env" if arguments[first].startswith("--") else "-e"
        for name, value in reversed(reserved.values.items()):
            if value is not None and name not in given:
                arguments[first:first] = [spelling, f"{name}={value}"]
