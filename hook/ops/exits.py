"""The exit statuses of every command: one table, from which docs/is-it-in-force.md is written."""

from __future__ import annotations

STATUSES = {
    0: "well: nothing is wrong, or it is done",
    1: "an error: something is wrong and is said, or the command failed",
    2: "wrong usage: an unknown option, command or container; nothing was done",
    3: "nothing to judge here: the node is not wired, or there is nothing to verify",
    4: "warnings only: nothing is broken, and something should be done",
    130: "interrupted (Ctrl-C)",
}
"""What each means, for every command. A command that shows findings has the status of the worst."""

COMMANDS: dict[str, dict[int, str]] = {
    "status": {
        0: "protected: every handler is wired, and the policy enforces something",
        1: "a handler is not wired and was not accepted, a container started without reassert, or another error",
        3: "not wired",
        4: "the policy enforces nothing, newer settings are available, or a container is from before",
    },
    "verify": {
        0: "every handler is protected, and every part was tried or is accepted",
        1: "a handler is not protected or starts nothing, or a part was not tried",
        3: "nothing to verify: mode Audit, or no rule covers a test container",
        4: "every handler is protected, and a reserved file cannot be read by every process",
    },
    "install": {1: "nothing is changed"},
    "uninstall": {1: "nothing is changed"},
    "audit": {
        0: "every container is in policy or exempt",
        1: "one started without reassert. --preflight: one would be refused. --policy: the draft changes one",
        4: "one differs for another reason (from before the install or the policy), or could not be looked at",
    },
    "policy check": {1: "an error; with --strict also a warning"},
    "policy show": {1: "the policy file is held back, or there is no policy"},
    "policy test": {1: "a case fails"},
    "policy diff": {1: "something changes"},
    "explain": {1: "the container is refused"},
    "trust build": {1: "the store stays as it is"},
    "trust check": {1: "a container would not trust what the store says", 4: "warnings, such as a CA that ends soon"},
}
"""What a status means for a command, where that is more than STATUSES says. Without 3 or 4 a command never has it."""


def told(command: str) -> str:
    """Returns what --help says of a command's exit statuses; "" for one without a row."""
    own = COMMANDS.get(command, {})
    said = [f"{status}: {meaning}" for status, meaning in sorted(own.items())]
    return f"exit status {'; '.join(said)}" if said else ""
