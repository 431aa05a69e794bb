"""dockerd: a client of the Docker Engine API on its socket, and daemon.json.

The docker command need not be installed. Errors of daemon.json have line and column, and an edit keeps its style.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from hook.node.errors import NodeError

if TYPE_CHECKING:
    from http.client import HTTPConnection

SECONDS = 20.0
"""The longest wait for an answer, in seconds."""

RELOAD_SECONDS = 10.0
"""The longest wait for a reload, in seconds. dockerd reports no failed reload, so this is the wait for one."""

_CHECKED: dict[str, type] = {"runtimes": dict, "default-runtime": str}

_SPELLED: dict[type, str] = {dict: "an object", str: "a string"}


class NotThere(NodeError):
    """dockerd answered 404: the object does not exist, or no longer."""


def get(path: str, address: str, seconds: float = SECONDS) -> Any:
    """Returns the JSON answer to a GET. `path`: without version. `address`: the socket. Raises NotThere, NodeError."""
    status, answer = fetch(path, address, "dockerd", seconds)
    try:
        data = json.loads(answer)
    except ValueError as error:
        raise NodeError(f"dockerd does not answer at {address}: {error}") from None
    if status != HTTPStatus.OK:
        kind = NotThere if status == HTTPStatus.NOT_FOUND else NodeError
        raise kind(f"dockerd at {address} answers {path} with: {data.get('message', status)}")
    return data


def fetch(path: str, address: str, who: str, seconds: float) -> tuple[int, bytes]:
    """Returns status and content of the answer to a GET on a daemon's unix socket. Raises NodeError. `who`: for it."""
    with _connected(address, who, seconds) as connection:
        connection.request("GET", path)
        answer = connection.getresponse()
        content = answer.read()
    return answer.status, content


def wait_for_reload(ask: Callable[[], None], address: str) -> None:
    """Calls `ask`, which requests a reload, and waits for dockerd's event of a reload. A failed reload has no event.

    Raises NodeError if dockerd does not answer.
    """
    events = quote(json.dumps({"type": ["daemon"], "event": ["reload"]}))
    with _connected(address, "dockerd", SECONDS) as connection, suppress(TimeoutError):
        connection.request("GET", f"/events?filters={events}")
        answer = connection.getresponse()
        ask()
        connection.sock.settimeout(RELOAD_SECONDS)
        answer.readline()


@contextmanager
def _connected(address: str, who: str, seconds: float) -> Iterator[HTTPConnection]:
    """A connection to a daemon's unix socket, made at the first request. Raises NodeError. `who`: for it."""
    import socket
    from http.client import HTTPConnection, HTTPException  # with email: only an engine that is asked needs it

    class Connection(HTTPConnection):
        def connect(self) -> None:
            self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.sock.settimeout(seconds)
            self.sock.connect(address)

    connection = Connection("localhost")
    try:
        yield connection
    except (OSError, HTTPException) as error:
        raise NodeError(f"{who} does not answer at {address}: {error}") from None
    finally:
        connection.close()


def parse(content: bytes, path: str) -> dict[str, Any]:
    """Returns the settings; {} for an empty file. Raises NodeError for a file that dockerd would not read either.

    A member that stands twice is read as Go's encoding/json does, of which `null` is an absent value too.
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise NodeError(f"{path} is not UTF-8: {error}; nothing was changed") from None
    if not text.strip():
        return {}
    try:
        values = _merged(json.loads(text, object_pairs_hook=_Pairs))
    except json.JSONDecodeError as error:
        raise NodeError(f"{path}:{error.lineno}:{error.colno}: {error.msg}; nothing was changed") from None
    if not isinstance(values, dict):
        raise NodeError(f"{path}:1:1: the file must hold a JSON object; nothing was changed")
    _check_members(values, _CHECKED, text, path)
    runtimes = values.get("runtimes", {})
    for name in [name for name, entry in runtimes.items() if entry is None]:
        runtimes[name] = {}
    for name, entry in runtimes.items():
        _check(entry, dict, name, text, path)
        _check_members(entry, {"path": str, "runtimeType": str, "options": dict}, text, path)
    return values


class _Pairs(list[tuple[str, Any]]):
    """The members of an object, in the order of the text."""


def _merged(value: Any) -> Any:
    """The document: a member of it that stands twice and is an object both times has the members of both."""
    if not isinstance(value, _Pairs):
        return _last(value)
    found: dict[str, Any] = {}
    for name, member in value:
        said = _last(member)
        before = found.get(name)
        if said is None and before is not None:  # Go leaves the value as it is
            continue
        found[name] = {**before, **said} if isinstance(before, dict) and isinstance(said, dict) else said
    return found


def _last(value: Any) -> Any:
    """A value below the document's members: of a member that stands twice the last one counts."""
    if isinstance(value, _Pairs):
        return {name: _last(member) for name, member in value}
    return [_last(each) for each in value] if isinstance(value, list) else value


def _check_members(values: dict[str, Any], kinds: dict[str, type], text: str, path: str) -> None:
    """Removes each of these members that is null. Raises NodeError for one of another type."""
    for key, kind in kinds.items():
        if values.get(key, kind()) is None:
            del values[key]
        _check(values.get(key, kind()), kind, key, text, path)


def render(values: dict[str, Any], like: bytes) -> bytes:
    """Returns the settings as JSON, in the style of the earlier content: tabs, spaces, or one line."""
    before = like.decode("utf-8-sig", "replace")
    found = re.search(r"^([ \t]+)\S", before, re.MULTILINE)
    one_line = bool(before.strip()) and "\n" not in before.strip()
    indent = None if one_line else found[1] if found else "  "
    end = "\n" if not before.strip() or before.endswith("\n") else ""
    return (json.dumps(values, indent=indent, ensure_ascii=False) + end).encode()


def _check(value: object, kind: type, key: str, text: str, path: str) -> None:
    if isinstance(value, kind):
        return
    found = re.search(re.escape(json.dumps(key)) + r"\s*:", text)
    before = text[: found.start()] if found else ""
    line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
    raise NodeError(f"{path}:{line}:{column}: {key} must be {_SPELLED[kind]}; nothing was changed")
