"""`exec` through the wrapper: the new process gets the env that was decided at create. Start path: builtins only."""

import posix

from hook.adapters.caller import Caller
from hook.adapters.cmdline import Invocation
from hook.base.errors import Unacceptable, describe
from hook.base.system import write_all
from hook.container.spec import ProcessFile
from hook.reserve.env import Reserved


def correct_exec(invocation: Invocation, real: str, caller: Caller) -> "list[str]":
    """The arguments with which to exec: the process file is corrected, `--env` of reserved names replaced.

    A container that was created without reassert has no decision and passes unchanged. Raises Unacceptable.
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
    except Exception as error:  # the promise made at create holds, or there is no exec
        raise Unacceptable(f"exec: {describe(error)}") from None


def _correct_process(invocation: Invocation, arguments: "list[str]", reserved: Reserved, caller: Caller) -> None:
    """A regular file is replaced. A pipe can be read only once: the runtime is given what was in it, corrected."""
    option = invocation.last("process")
    if option is None:
        return
    path = option.value
    content, plain = caller.process_file(path)
    target = ProcessFile(content, path)
    target.env = reserved.correct(target.env)
    data = target.render()
    if not plain:
        last = arguments[option.end - 1]
        preserved = _number(invocation.value("preserve-fds")) + _number(caller.environment.get(b"LISTEN_FDS"))
        arguments[option.end - 1] = last[: len(last) - len(path)] + _memory_file(data, 3 + preserved)
    elif target.changed():
        caller.replace(path, data)


def _number(text: "str | bytes | None") -> int:
    try:
        return max(0, int(text or 0))
    except ValueError:
        return 0


def _memory_file(data: bytes, first: int) -> str:
    """A path to `data` for this process, whatever program it becomes; its descriptor is none below `first`.

    Those are passed on into the container. All others runc and crun close before the container's process starts.
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
    """`-e NAME=…` on the command line comes after the container's own env and would win: the reserved value instead."""
    for option in reversed(invocation.options):
        name = option.value.partition("=")[0]
        if option.name != "env" or not reserved.owner(name):
            continue
        value = reserved.values.get(name)
        if value is None:
            flags = arguments[option.begin].partition("e")[0]  # getopt's cluster: `-te NAME=…` leaves `-t`
            arguments[option.begin : option.end] = [flags] if flags.strip("-") else []
        else:  # in the spelling that was used: runc refuses -e beside --env
            last = arguments[option.end - 1]
            arguments[option.end - 1] = last[: len(last) - len(option.value)] + f"{name}={value}"
