"""Count cold starts that leave no event: containers that needed nothing, and execs. Start path: builtins only.

The agent makes the file and takes the lines away (hook.entry.unchanged_starts). Where there is no file, nothing is
counted.
"""

import posix

from hook.core import events
from hook.entry.write_spec import FLAG

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.core.decide import Case
    from hook.entry.caller import Options

NAME = "unchanged-starts"
"""In the directory of compiled policies: a line `KIND COLD SECONDS WHOSE` for each start; `probe` before those of
probes. KIND: the adapter, or EXEC. SECONDS: since the epoch. WHOSE: as `whose` says."""

LIMIT = 1 << 20
"""Size in bytes from which nothing is added, as when no agent has run for long: about 20,000 starts."""

PROBE, NO_REASON, EXEC = "probe", "-", "exec"

_FLAGS = posix.O_WRONLY | posix.O_APPEND | posix.O_NOFOLLOW | posix.O_NONBLOCK | posix.O_NOCTTY | posix.O_CLOEXEC


def record(options: "Options", case: "Case", kind: str = "") -> None:
    """Add a line. `kind`: EXEC, or "" for a container. A file that is missing or cannot be written is no error."""
    words = [PROBE] if is_probe(case) else []
    words += [kind or adapter(options, case), case.start.get("cold", NO_REASON)]
    words += [str(case.began[0] // 1_000_000_000), whose(options, case)]
    try:
        fd = posix.open(f"{options.store}/{NAME}", _FLAGS)
    except OSError:
        return
    try:
        if posix.fstat(fd).st_size < LIMIT:
            posix.write(fd, " ".join(words).encode() + b"\n")
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


def whose(options: "Options", case: "Case") -> str:
    """The real runtime, as an absolute path; of a hook, which is not told it, the container's id; or NO_REASON."""
    text = options.real or case.container_id.lstrip("/")
    return text if text.isprintable() and 0 < len(text) <= 128 else NO_REASON
