"""Options that engines hardly write: letters, clusters, prefixes, and those of `restore`. Start path: builtins only.

hook.adapters.cmdline has the syntax and its sources.
"""

from hook.adapters.cmdline import CREATE_FLAGS, CREATE_VALUES

_RESTORE_VALUES = (
    "image-path work-path parent-path manage-cgroups-mode empty-ns status-fd lsm-profile lsm-mount-context network-lock"
)
_RESTORE_FLAGS = "tcp-established ext-unix-sk shell-job file-locks auto-dedup lazy-pages tcp-close"
VALUES = (*CREATE_VALUES, *_RESTORE_VALUES.split())
FLAGS = (*CREATE_FLAGS, *_RESTORE_FLAGS.split())
"""Names of the options of `restore`, with a value and without."""

_SHORT_FLAGS = {"t": "tty", "d": "detach", "h": "help", "v": "version", "V": "version"}
_SHORT_VALUES = {"b": "bundle", "f": "config", "e": "env", "u": "user", "g": "additional-gids", "p": "process"}
_SHORT_VALUES["c"] = "cap"


def spelled_out(argument: str, values: "tuple[str, ...]", flags: "tuple[str, ...]") -> "tuple[str, str, str]":
    """(long name, "=" if the value is attached, that value); with the name as it is given if it is unknown."""
    name, equals, value = argument.lstrip("-").partition("=")
    long = _long_name(name, values, flags, argument.startswith("--"))
    if not long and not argument.startswith("--"):
        long, equals, value = _cluster(argument[1:], values)
    return long or name, equals, value


def _long_name(name: str, values: "tuple[str, ...]", flags: "tuple[str, ...]", two_dashes: bool) -> str:
    """The long name of an option that is given by its letter or an unambiguous prefix (getopt), or ""."""
    if len(name) == 1:
        long = _SHORT_VALUES.get(name) or _SHORT_FLAGS.get(name) or ""
        return long if long in values or long in flags else ""
    candidates = [known for known in values + flags if known.startswith(name)] if two_dashes else []
    return candidates[0] if len(candidates) == 1 else ""


def _cluster(letters: str, values: "tuple[str, ...]") -> "tuple[str, str, str]":
    """Getopt's `-tb DIR` and `-bDIR`: (name, "=" if the value is attached, that value)."""
    for position, letter in enumerate(letters):
        long = _SHORT_VALUES.get(letter, "")
        if long in values:
            rest = letters[position + 1 :]
            return long, "=" if rest else "", rest
        if letter not in _SHORT_FLAGS:
            break
    return "", "", ""
