"""Parse the command lines of runc and crun. Part of the start path: builtins only.

runc has Go's flag syntax: one dash or two, `--name value` or `--name=value`, no clusters. crun has getopt's: `-b DIR`,
`-bDIR`, `-tb DIR`, and unambiguous prefixes of long names. runc also accepts options after the container's id
(urfave/cli reorders them), except for exec. The parser accepts both.
Sources: runc's main.go, create.go, run.go, restore.go, exec.go; crun's src/*.c, tables of options.
"""

_GLOBAL_VALUES = ("log", "log-format", "root", "criu", "rootless", "cgroup-manager", "log-level")
_GLOBAL_FLAGS = ("debug", "systemd-cgroup", "help", "version", "no-pivot")

CREATE_VALUES = ("bundle", "config", "console-socket", "pidfd-socket", "pid-file", "preserve-fds")
CREATE_FLAGS = ("no-pivot", "no-new-keyring", "no-subreaper", "detach", "keep")

_HELP = ("h", "help", "?", "usage")
_GLOBAL_HELP = (*_HELP, "v", "V", "version")
"""Options with which a runtime prints something and exits. In another spelling, config.json is edited for nothing."""

EDITING_VERBS = ("create", "run", "restore", "exec")
"""Verbs that start a process. All other verbs go to the real runtime unchanged."""


class Option:
    """An option of a command line. `begin` and `end`: the range of its arguments, `end` excluded."""

    def __init__(self, name: str, value: str, begin: int, end: int) -> None:
        self.name = name
        self.value = value
        self.begin = begin
        self.end = end


class Invocation:
    """A parsed command line.

    `verb`: "" if it is missing. `globals`: the options before the verb. `options`: those of the verb, in order.
    `container_id`: "" if it is missing. `operands`: the index of the first argument that is not an option of the verb.
    """

    def __init__(self, arguments: "list[str]") -> None:
        self.arguments = arguments
        self.globals, at = _options(arguments, 0, _GLOBAL_VALUES, _GLOBAL_FLAGS)
        self.verb = arguments[at] if at < len(arguments) else ""
        self.options: list[Option] = []
        self.operands = at + 1
        if self.verb in EDITING_VERBS:
            values, flags = _names(self.verb)
            self.options, self.operands = _options(arguments, at + 1, values, flags)
            at = self.operands
            while self.verb != "exec" and at < len(arguments) and arguments[at - 1] != "--":
                more, at = _options(arguments, at + 1, values, flags)
                self.options += more
        self.container_id = arguments[self.operands] if self.operands < len(arguments) else ""

    def starts_nothing(self) -> bool:
        """Whether the command starts no process: another verb, a help or version option, or a missing container id."""
        if self.verb not in EDITING_VERBS or not self.container_id:
            return True
        asked = [o for o in self.globals if o.name in _GLOBAL_HELP] + [o for o in self.options if o.name in _HELP]
        return any("=" not in self.arguments[option.begin] for option in asked)

    def last(self, name: str) -> "Option | None":
        """An option of the verb; the last one of this name."""
        for option in reversed(self.options):
            if option.name == name:
                return option
        return None

    def value(self, name: str) -> "str | None":
        """The value of an option of the verb; the last one counts."""
        option = self.last(name)
        return option.value if option else None

    def global_value(self, name: str) -> "str | None":
        """The value of an option before the verb; the last one counts."""
        return next((option.value for option in reversed(self.globals) if option.name == name), None)


def _names(verb: str) -> "tuple[tuple[str, ...], tuple[str, ...]]":
    """The names of a verb's options: of those with a value, and of those without."""
    if verb == "exec":
        from hook.adapters.exec import FLAGS, VALUES
    elif verb == "restore":
        from hook.adapters.spelling import FLAGS, VALUES
    else:
        return CREATE_VALUES, CREATE_FLAGS
    return VALUES, FLAGS


def _options(
    arguments: "list[str]", at: int, values: "tuple[str, ...]", flags: "tuple[str, ...]"
) -> "tuple[list[Option], int]":
    """The options from index `at` on, and the index of the first argument after them. Unknown options take no value."""
    options: list[Option] = []
    while at < len(arguments):
        argument = arguments[at]
        if argument == "--":
            return options, at + 1
        if argument == "-" or not argument.startswith("-"):
            break
        name, equals, value = argument.lstrip("-").partition("=")
        if name not in values and name not in flags:
            from hook.adapters.spelling import spelled_out  # engines write long names

            name, equals, value = spelled_out(argument, values, flags)
        begin, at = at, at + 1
        if name in values and not equals and at < len(arguments):
            value, at = arguments[at], at + 1
        options.append(Option(name, value, begin, at))
    return options, at
