"""Parse the command line of an adapter. Part of the start path: builtins only."""

from hook import events
from hook.base.errors import Usage
from hook.policy import store


class Options:
    """The options of an adapter: paths, which must be absolute, and flags.

    `rest`: the arguments after `--`, None without `--`. `operands`: the arguments that are no options. `hook`: the file
    that containers' hook entries execute, "" for this program. `cold`: why the agent does not answer this start, in a
    word (docs/agent.md); "" where nobody asked it.
    """

    __slots__ = ("cold", "events", "flags", "hook", "operands", "policy", "real", "rest", "store")

    def __init__(self, arguments: "list[str]", paths: "tuple[str, ...]" = (), flags: "tuple[str, ...]" = ()) -> None:
        """`paths` and `flags`: the adapter's options besides --policy, --store and --events. Raises Usage."""
        self.cold = ""
        self.real = ""
        self.hook = ""
        self.policy = store.SOURCE
        self.store = store.STORE
        self.events = events.EVENTS
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
            if not argument.startswith("--"):
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
