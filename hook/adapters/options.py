"""Parse the command line of an adapter. Part of the start path: builtins only."""

from hook import events
from hook.base.errors import Usage
from hook.policy import store


class Options:
    """The options of an adapter: paths, which must be absolute, and flags.

    `rest`: the arguments after `--`, None without `--`. `operands`: the arguments that are not options. `hook`: the
    file that containers' hook entries execute, "" for this program. `bundle`, `config`: of a hook's container, "" if
    the state names the bundle.
    """

    __slots__ = ("bundle", "config", "events", "flags", "hook", "operands", "policy", "real", "rest", "store")

    def __init__(self, arguments: "list[str]", paths: "tuple[str, ...]" = (), flags: "tuple[str, ...]" = ()) -> None:
        """`paths` and `flags`: the adapter's options besides --policy, --store and --events. Raises Usage."""
        self.real = ""
        self.hook = self.bundle = self.config = ""
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
            elif name in paths:
                if not equals:
                    value = pending.pop(0) if pending else ""
                if not value.startswith("/"):
                    raise Usage(f"--{name} takes an absolute path, not {value!r}")
                setattr(self, name, value)
            else:
                raise Usage(f"unknown option {argument!r}")
