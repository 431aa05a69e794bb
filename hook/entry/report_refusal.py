"""Tell an engine that a container or an exec was refused. Loaded for a refusal only; start path: builtins only."""

import time

from hook.core.base.errors import describe
from hook.core.base.files import append_line
from hook.core.base.jsontext import encode
from hook.core.base.system import timestamp
from hook.core.base.text import message
from hook.entry.caller import Caller
from hook.entry.cmdline import Invocation

EXEC_REFUSED = 255
"""Exit status of a refused exec, as of a failed exec of runc. An engine takes any other status for the process's."""


def refuse(invocation: Invocation, refusal: str, caller: Caller) -> int:
    """Write the refusal to stderr and to the runtime's --log, in its --log-format: engines read the reason there.

    Engines decode the line and print it to the user, so control characters are escaped. Returns the exit status for the
    engine.
    """
    status = EXEC_REFUSED if invocation.verb == "exec" else 1
    text = message(refusal.replace("\n", " "))
    caller.say(text)
    line = "reassert: " + text
    log = invocation.global_value("log") or ""
    path = log.removeprefix("file:")
    if not path or path.startswith(("journald:", "syslog:")):
        return status
    now = timestamp(time.time_ns())
    if invocation.global_value("log-format") == "json":
        entry = encode({"level": "error", "msg": line, "time": now})
    else:
        entry = f"time={encode(now)} level=error msg={encode(line)}"
    try:
        caller.still_waits()
        append_line(path, entry.encode("utf-8", "backslashreplace"), 0o644)
    except OSError as error:
        caller.say(f"cannot write {path}: {describe(error)}")
    return status
