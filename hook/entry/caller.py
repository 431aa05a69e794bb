"""How an adapter was called: its options, and the process that called it. Part of the start path: builtins only.

In a cold start, that is this process: its descriptors, its environment, its working directory. The agent answers for
another process and has a subclass (hook/agent/work.py). Everything else is the same code.
"""

import posix

from hook.core import events
from hook.core.base.errors import Refused, Usage
from hook.core.base.system import read_file, replace_file, temporary_of
from hook.core.container.spec import LIMIT
from hook.core.policy import store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.core.decide import Case, Verdict
    from hook.core.facts.cri import Ask
    from hook.core.policy.model import Policy


RUNTIME = "runtime"
"""The adapter that a runtime wrapper is, in events."""


SENTRY = "/dev/null"
"""The value of --hook in front of runsc. gVisor's kernel, the sentry, mounts what config.json lists, in memory of its
own, where no hook can look. The dispatcher says so (hook.entry.dispatcher.is_gvisor)."""


class Options:
    """The options of an adapter: paths, which must be absolute, and flags.

    `rest`: the arguments after `--`, None without `--`. `operands`: the arguments that are not options. `hook`: the
    file that containers' hook entries execute, "" for this program, SENTRY for none. `bundle`, `config`: of a hook's
    container, "" if the state names the bundle. `cold`: the word for why the agent does not answer this start
    (docs/agent.md); "" if it was not asked.
    """

    def __init__(self, arguments: "list[str]", paths: "tuple[str, ...]" = (), flags: "tuple[str, ...]" = ()) -> None:
        """`paths` and `flags`: the adapter's options besides --policy, --store and --events. Raises Usage."""
        self.real = self.hook = self.bundle = self.config = self.cold = ""
        self.policy, self.store, self.events = store.SOURCE, store.STORE, events.EVENTS
        self.flags: set[str] = set()
        self.operands: list[str] = []
        self.rest: list[str] | None = None
        paths = ("policy", "store", "events", *paths)
        pending = list(arguments)
        while pending:
            argument = pending.pop(0)
            if argument == "--":
                self.rest = pending
                return
            name, equals, value = argument[2:].partition("=")
            if not argument.startswith("--") and argument != "-h":
                self.operands.append(argument)
            elif name in flags and not equals:
                self.flags.add(name)
            elif name == "cold" and equals:  # front's own word: never a reason to refuse a container
                self.cold = value if value.isascii() and value.isidentifier() else "unknown"
            elif name in paths:
                if not equals:
                    value = pending.pop(0) if pending else ""
                if not value.startswith("/"):
                    raise Usage(f"--{name} takes an absolute path, not {value!r}")
                setattr(self, name, value)
            else:
                raise Usage(f"unknown option {argument!r}")


class Caller:
    """The process whose call is answered: relative paths, descriptors and messages are for it.

    `ask`: asks an engine in place of hook.core.facts.cri; the agent's subclass caches answers.
    """

    ask: "Ask | None" = None

    def __init__(self, environment: "dict[bytes, bytes]", cold: str = "") -> None:
        """`environment`: the environment that the engine gave. `cold`: as in Options."""
        self.environment = environment
        self.start = {"start": "cold", "cold": cold} if cold else {"start": "cold"}

    def say(self, text: str, is_hook: bool = False) -> None:
        """Writes one line to the caller's standard error. `is_hook`: a hook without one writes to the runtime's."""
        from hook.core.base.system import say

        say(text, is_hook)

    def policy(self, options: Options) -> "Policy":
        """Returns the policy in force."""
        return store.load(options.policy, options.store)

    def config(self, path: str) -> bytes:
        """Returns a container's config.json. Raises Undecided, OSError."""
        return read_file(path, LIMIT)

    def checkpoint(self, path: str, limit: int) -> bytes:
        """Returns kubelet's device checkpoint. Raises Undecided, OSError."""
        return read_file(path, limit)

    def remove_temporary(self, path: str) -> None:
        """Removes the agent's temporary file for `path`, named by front's pid: a late agent could still rename it."""
        if "cold" in self.start:
            try:
                posix.unlink(temporary_of(path, posix.getpid()))
            except OSError:  # as almost always
                pass

    def still_waits(self) -> None:
        """Does nothing. Is called in long loops and before a log is written.

        The agent's subclass stops there if front gave up, or if the request takes the other threads' time.
        """

    def before_mounting(self) -> None:
        """Does nothing. Is called before anything is mounted; the agent's subclass stops there."""

    def replace(self, path: str, data: bytes) -> None:
        """Replaces the engine's file by a corrected one. Raises OSError."""
        replace_file(path, data)

    def report(self, options: Options, verdict: "Verdict") -> None:
        """Writes the event. Raises Refused if the verdict is a refusal."""
        if verdict.event:
            self.still_waits()
            events.write(options.events, verdict.event)
        elif verdict.unchanged:
            self.count(options, verdict.unchanged)
        if verdict.refusal:
            raise Refused(verdict.refusal)

    def count(self, options: Options, case: "Case", is_exec: bool = False) -> None:
        """Called for a container that needed no edit, and for an exec, which the agent's subclass counts."""
