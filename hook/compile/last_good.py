"""The last good policy: its source text, and the compiled forms of other versions. The compiler alone needs it.

A node's program is replaced before its policy is compiled again: by an upgrade, a downgrade, a package. If the policy
file has errors for the version that runs then, the last good policy stays in force. So it must be readable by the
version before and by the version after. Three files of the store, beside each other:

    NAME.10.json  the compiled policy of this version (store.FORMAT); each format has a name, so none is overwritten
    NAME.text     the source text of the policy that was last in force; any version can compile it
    NAME.json     the compiled form of 0.3 and earlier, which reads no text: written here too, for a downgrade
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from hashlib import sha256
from typing import Any

from hook.compile.source import PolicyInvalid
from hook.core.base.errors import ReassertError
from hook.core.base.isotime import seconds_of
from hook.core.base.jsontext import encode
from hook.core.base.system import read_file, replace_file, trusted
from hook.core.policy.model import ENFORCE, MIXED
from hook.core.policy.sources import KEEP
from hook.core.policy.store import NO_RULES, SOURCE_LIMIT, STORE_FORMAT, STORE_LIMIT, store_path

FORMAT_OF_0_3 = 7
EARLIER_FORMATS = (5, FORMAT_OF_0_3)
"""Of 0.1 and 0.2, and of 0.3. A rule has the same members in the same order; the last ones may be missing."""

_MOUNT_OF_0_3 = 6
"""Members of a mount that 0.3 knows."""

_SOURCES_OF_0_3 = {"value": "value", "file": "file", "allocated": "deviceAllocation", "absent": "absent"}
"""The sources of values that 0.3 knows, by its names."""

_RULE = 9
"""Members of a rule since 0.3; the last one is whether it is on trial."""

_NOT_IN_0_3 = "sharedProcesses"


def text_path(source: str, store: str) -> str:
    """The store's file with the source text of the last good policy."""
    return _stem(source, store) + ".text"


def earlier_path(source: str, store: str) -> str:
    """The store's file with the compiled form of 0.3 and earlier."""
    return _stem(source, store) + ".json"


def _stem(source: str, store: str) -> str:
    return store_path(source, store).removesuffix(f".{STORE_FORMAT}.json")


def keep(source: str, store: str, *, text: str, header: dict[str, Any], lines: list[str]) -> None:
    """Keep the text of a policy that takes force, and its compiled form for 0.3. Raises OSError.

    Called before this version's compiled form is written: a text that is older than that would be taken for newer.
    """
    path = text_path(source, store)
    try:
        replace_file(path, text.encode("utf-8"))
    except OSError:
        with suppress(FileNotFoundError):
            os.unlink(path)
        raise
    earlier = _as_of_0_3([json.loads(line) for line in lines])
    if earlier is None:
        return  # the last one that 0.3 can read stays
    mode = ENFORCE if header["mode"] == MIXED else header["mode"]
    # Without a key, 0.3 compiles the file itself, and keeps this if it refuses the file.
    members = {name: value for name, value in header.items() if name in _HEADER_OF_0_3}
    form = "\n".join([encode({**members, "format": FORMAT_OF_0_3, "key": None, "mode": mode}), *earlier, ""])
    replace_file(earlier_path(source, store), form.encode("ascii"))


_HEADER_OF_0_3 = (
    *("version", "source", "compiledAt", "heldKey", "heldSince", "heldErrors", "sha256", "failurePolicy"),
    *("excludedNamespaces", "excludedTypes", "kubeletRoot", "eventLog", "rules", "trust", "index", "patterns"),
)


def _as_of_0_3(rules: list[list[Any]]) -> list[str] | None:
    """The lines of rules in the form of 0.3; None if a rule has what 0.3 cannot do."""
    lines: list[str] = []
    for name, conditions, skip, env, mounts, deny, plain, *rest in rules:
        if _NOT_IN_0_3 in plain or any(any(mount[_MOUNT_OF_0_3:]) for mount in mounts):
            return None
        if any(source not in _SOURCES_OF_0_3.values() for _, source, _ in env):
            return None
        env_entries = [_env_as_of_0_3(*entry) for entry in env]
        mount_entries = [entry[:_MOUNT_OF_0_3] for entry in mounts]
        lines.append(encode([name, conditions, skip, env_entries, mount_entries, deny, plain, *rest]))
    return lines


def _env_as_of_0_3(name: str, source: str, given: Any) -> list[Any]:
    """An env entry of 0.3: the name, its source, the value or path or default, whether it is kept, `trusted`."""
    if source == "deviceAllocation":
        default = given.get("default")
        return [name, "allocated", None if default == KEEP else default, default == KEEP, given.get("trusted", [])]
    return [name, source, None if source == "absent" else given, False, []]


def _env_of_0_3(name: str, source: str, text: str | None, keep: bool = False, trusted: Any = ()) -> list[Any]:
    """An env entry of 0.3 or an earlier version in this version's form. Raises KeyError for an unknown source."""
    given: Any = True if source == "absent" else text
    if source == "allocated":
        default = KEEP if keep else text
        given = {"default": default, "trusted": trusted}
        given = {field: value for field, value in given.items() if value not in (None, [], ())}
    return [name, _SOURCES_OF_0_3[source], given]


def last_good(
    source: str,
    store: str,
    *,
    own: dict[str, Any],
    lines: list[str],
    compile_text: Callable[[bytes], tuple[dict[str, Any], list[str]]],
) -> tuple[dict[str, Any], list[str]]:
    """The header and the rule lines of the last good policy, in this version's form; {} and [] if there is none.

    The newest that can be used counts. `own`, `lines`: those of this version's file in the store, {} and [] if it has
    none. `compile_text`: compiles a text; raises PolicyInvalid.
    """
    candidates = [(_time(header), header, others) for header, others in _earlier(source, store)]
    candidates = [each for each in candidates if each[1]["sha256"] != own.get("sha256")]
    if own.get("sha256"):
        candidates.append((_time(own), own, lines))
    when, header, others = max(candidates, key=lambda each: each[0], default=(0.0, {}, []))
    with suppress(OSError, ReassertError, PolicyInvalid):
        status = trusted(path := text_path(source, store))
        content = read_file(path, SOURCE_LIMIT)
        is_its_text = sha256(content).hexdigest() == header.get("sha256")
        if is_its_text and header is own:  # its text is written after it was compiled, so it may seem newer
            return own, lines
        if is_its_text or status.st_mtime > when:
            return compile_text(content)
    return header, others


def _time(header: dict[str, Any]) -> float:
    """When a policy was compiled, in seconds since the epoch; 0 if its header does not say."""
    return seconds_of(header.get("compiledAt"))


def _earlier(source: str, store: str) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """What 0.3 or an earlier version compiled, in this version's form."""
    try:
        trusted(path := earlier_path(source, store))
        first, *lines = read_file(path, STORE_LIMIT).decode("ascii").splitlines()
        header = json.loads(first)
        if header["format"] not in EARLIER_FORMATS or not header["sha256"] or header["rules"] != len(lines):
            return
        rules = [json.loads(line) for line in lines]
        if any(len(rule) not in (_RULE - 1, _RULE) for rule in rules):
            return
        whole = [[*rule, False] if len(rule) < _RULE else rule for rule in rules]
        own = [encode([*rule[:3], [_env_of_0_3(*entry) for entry in rule[3]], *rule[4:]]) for rule in whole]
    except (OSError, ValueError, KeyError, TypeError, ReassertError):
        return
    yield {**NO_RULES, "since": "", "heldFor": [], **header, "format": STORE_FORMAT, "key": None}, own
