"""How an adapter was called: its options, and the process that called it.

In a cold start, that is this process: its descriptors, its environment, its working directory. The agent answers for
another process and has a subclass (hook/agent/work.py). Everything else is the same code.
"""

from __future__ import annotations

import posix

from hook.core import events
from hook.core.base.errors import Refused, Usage
from hook.core.base.system import read_file, replace_file, say, temporary_of
from hook.core.container.spec import CONFIG_LIMIT, Spec
from hook.core.decide import Adapter, Case
from hook.core.linux.look_node_paths import Known
from hook.core.policy import store
from hook.core.policy.model import Policy
from hook.core.verdict import Verdict
from hook.entry import SENTRY

WRAPPER = "runtime"
"""The adapter that a runtime wrapper is, in events."""


class Options:
    """The options of an adapter: paths, which must be absolute, and flags."""

    def __init__(self, arguments: list[str], paths: tuple[str, ...] = (), flags: tuple[str, ...] = ()) -> None:
        """`paths` and `flags`: the adapter's options besides --policy, --store and --events. Raises Usage."""
        self.real = ""
        """The real runtime, "" in a hook."""
        self.hook = ""
        """The file that containers' hook entries execute; "" for this program, SENTRY for none."""
        self.bundle = self.config = ""
        """The directory and the config.json of a hook's container; "" if the state on stdin names the bundle."""
        self.cold = ""
        """The word for why the agent does not answer this start (internals/agent.md); "" if the agent was not asked."""
        self.policy, self.store, self.events = store.SOURCE, store.STORE, events.EVENTS
        self.flags: set[str] = set()
        self.operands: list[str] = []
        """The arguments that are not options."""
        self.rest: list[str] | None = None
        """The arguments after `--`, None without `--`."""
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


class Caller(Adapter):
    """The process whose call is answered: relative paths, descriptors and messages are for it."""

    name = WRAPPER
    learns = True
    known: Known | None = None
    """What looks at mounts have found before; the agent keeps it."""

    made: tuple[str, list[str]] | None = None
    """The root file system of a build, and the mount points in it that are to be removed afterwards."""

    def __init__(self, options: Options, environment: dict[bytes, bytes]) -> None:
        self.options = options
        """The options of the adapter that it called."""
        self.environment = environment
        """The environment that the engine gave."""
        self.store = self.sockets = options.store
        self.is_gvisor = options.hook == SENTRY
        self.started = {"start": "cold", "cold": options.cold} if options.cold else {"start": "cold"}

    def say(self, text: str, is_hook: bool = False) -> None:
        """Writes one line to the caller's standard error. `is_hook`: a hook without one writes to the runtime's."""
        say(text, is_hook)

    def policy(self) -> Policy:
        """Returns the policy in force."""
        return store.load(self.options.policy, self.options.store)

    def spec(self, path: str) -> Spec:
        """Returns a container's config.json, parsed. Raises Undecided, Unacceptable, OSError."""
        self.file = path
        return Spec(self.config(path), path)

    def config(self, path: str) -> bytes:
        """Returns a container's config.json. Raises Undecided, OSError."""
        return read_file(path, CONFIG_LIMIT, waits=True)

    def read(self, path: str, limit: int) -> bytes:
        """See Adapter."""
        return read_file(path, limit, waits=True)

    def remove_temporary(self, path: str) -> None:
        """Removes the agent's temporary file for `path`, named by front's pid: a late agent could still rename it."""
        if "cold" in self.started:
            try:
                posix.unlink(temporary_of(path, posix.getpid()))
            except OSError:  # as almost always
                pass

    def before_waiting(self) -> None:
        """Does nothing. Is called before this process waits for the runtime's end; the agent's subclass stops there."""

    def replace(self, path: str, data: bytes) -> None:
        """Replaces the engine's file by a corrected one. Raises OSError."""
        replace_file(path, data)

    def report(self, case: Case, verdict: Verdict) -> None:
        """Writes the event. Raises Refused if the verdict is a refusal."""
        if verdict.event:
            self.still_waits()
            events.write(self.options.events, verdict.event, case.policy.event_log if case.policy else ())
        elif not verdict.handed_on:
            self.count(case)
        if verdict.refusal:
            raise Refused(verdict.refusal)

    def count(self, case: Case, is_exec: bool = False) -> None:
        """Called for a container that needed no edit, and for an exec, which the agent's subclass counts."""
