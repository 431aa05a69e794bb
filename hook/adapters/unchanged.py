"""Count cold starts of containers that needed nothing. They leave no event. Part of the start path: builtins only.

The agent makes the file where it serves metrics (hook.metrics.unchanged), and takes the lines away. Where there is no
file, nothing is counted.
"""

import posix

from hook import events
from hook.adapters.handover import FLAG

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.adapters.caller import Options
    from hook.decide import Case

NAME = "unchanged-starts"
"""In the directory of compiled policies: a line `ADAPTER COLD` for each start; `probe` before those of probes."""

LIMIT = 1 << 20
"""Size in bytes from which nothing is added, as when no agent has run for long: about 60,000 starts."""

PROBE, NO_REASON = "probe", "-"

_FLAGS = posix.O_WRONLY | posix.O_APPEND | posix.O_NOFOLLOW | posix.O_NONBLOCK | posix.O_NOCTTY | posix.O_CLOEXEC


def record(options: "Options", case: "Case") -> None:
    """Add a line. A file that is missing or cannot be written is no error."""
    words = [PROBE] if is_probe(case) else []
    words += [adapter(options, case), case.start.get("cold", NO_REASON)]
    try:
        fd = posix.open(f"{options.store}/{NAME}", _FLAGS)
    except OSError:
        return
    try:
        if posix.fstat(fd).st_size < LIMIT:
            posix.write(fd, " ".join(words).encode("ascii", "replace") + b"\n")
    except OSError:
        pass
    finally:
        posix.close(fd)


def is_probe(case: "Case") -> bool:
    """Whether the container is a test container of reassert."""
    return events.is_probe(case.adapter, case.container_id, case.who)


def adapter(options: "Options", case: "Case") -> str:
    """The adapter that corrects the container: the wrapper or `precreate`, where the hook completes their work."""
    if FLAG not in options.flags:
        return case.adapter
    return "runtime" if options.config else "precreate"  # only the wrapper tells its hook the path (handover)
