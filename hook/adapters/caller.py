"""What an adapter needs of the process that called it. Part of the start path: builtins only.

Of a cold start that is this process itself: its descriptors, its environment, its working directory. The agent, which
answers for others, has a subclass (hook/agent/work.py); all else is the same code.
"""

import posix

from hook import events
from hook.base.system import append_line, is_file, read_fd, read_file, replace_file, say
from hook.container.spec import LIMIT, Spec
from hook.policy import store
from hook.reserve import decision

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.adapters.options import Options
    from hook.policy.model import Policy
    from hook.reserve.env import Reserved

STATE = "the OCI state on stdin"


class Caller:
    """The process that is to be told, and whose files and descriptors are meant."""

    __slots__ = ("environment", "start")

    def __init__(self, environment: "dict[bytes, bytes]", cold: str = "") -> None:
        """`environment`: as the engine gave it. `cold`: why the agent does not answer, "" where nobody asked it."""
        self.environment = environment
        self.start = {"start": "cold", "cold": cold} if cold else {"start": "cold"}

    def say(self, text: str) -> None:
        """One line on the caller's standard error."""
        say(text)

    def policy(self, options: "Options") -> "Policy":
        """The policy in force."""
        return store.load(options.policy, options.store)

    def state(self) -> bytes:
        """What the runtime gives a hook on stdin. Raises TooLarge, OSError."""
        return read_fd(0, LIMIT, STATE)

    def parents_arguments(self) -> "list[str]":
        """The arguments of the caller's parent process, without its name. Raises TooLarge, OSError."""
        command = read_file(f"/proc/{posix.getppid()}/cmdline", LIMIT).decode("utf-8", "surrogateescape")
        return command.split("\0")[1:-1]

    def config(self, path: str) -> bytes:
        """A container's config.json. Raises Undecided, OSError."""
        return read_file(path, LIMIT)

    def process_file(self, path: str) -> "tuple[bytes, bool]":
        """An exec's process file, and whether it is a file that can be replaced. Raises TooLarge, OSError."""
        # Blocking: a pipe's writer may need its time, and the real runtime would wait for it too.
        fd = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC)
        try:
            plain = is_file(posix.fstat(fd)) and is_file(posix.lstat(path))
            return read_fd(fd, LIMIT, path), plain
        finally:
            posix.close(fd)

    def bundle(self, container_id: str, root: "str | None", real: str) -> str:
        """A container's bundle. `root`: of the real runtime's --root. Raises Undecided, OSError."""
        from hook.adapters.state import bundle_of  # no create pays for it

        return bundle_of(container_id, root, real, self.environment)

    def decided(self, config: str) -> "Reserved | None":
        """What was decided about a container at its create. Raises Undecided, OSError."""
        found = decision.read(Spec(self.config(config), config).annotations)
        return found.env if found else None

    def checkpoint(self, path: str, limit: int) -> bytes:
        """The device checkpoint of kubelet. Raises Undecided, OSError."""
        return read_file(path, limit)

    def replace(self, path: str, data: bytes) -> None:
        """Put a corrected file in the place of the engine's. Raises OSError."""
        replace_file(path, data)

    def before_mounting(self) -> None:
        """Called before anything is mounted in a container."""

    def log_event(self, path: str, event: "dict[str, object]") -> None:
        """Append to the event log."""
        events.write(path, event)

    def append(self, path: str, line: bytes) -> None:
        """Append to the runtime's --log. Raises OSError."""
        append_line(path, line, 0o644)
