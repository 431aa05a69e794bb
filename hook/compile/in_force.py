"""Which policy is in force on this node after a change of the policy file, and the store that says so.

It runs once per change of the file, in `reassert policy compile`.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from hook import __version__
from hook.compile import last_good
from hook.compile.compiler import Compiled, compile_bytes
from hook.compile.source import PolicyInvalid
from hook.compile.stored import header_and_rules
from hook.core import events
from hook.core.base.concealed import make_key
from hook.core.base.errors import ReassertError, TooLarge, describe
from hook.core.base.jsontext import encode
from hook.core.base.mountinfo import LOCAL, mount_table
from hook.core.base.system import make_directory, replace_file, timestamp
from hook.core.container.identity import CONTAINER, Identity
from hook.core.container.start import Start
from hook.core.decide import Adapter
from hook.core.facts import Container
from hook.core.facts.gather import gather
from hook.core.plan import plan
from hook.core.policy.model import AUDIT, ENFORCE, Match, Policy, Rule
from hook.core.policy.store import (
    NO_RULES,
    SOURCE_LIMIT,
    STORE,
    STORE_FORMAT,
    Stored,
    file_key,
    first_of,
    path_state,
    store_path,
)

LOADED = "policy.loaded"
"""An event: another policy is in force."""

WRITER_SECONDS = 1.0
"""How long a compile waits for a process that has the policy file open for writing."""

_CUT = (
    "its last line has no end, as after a write that was interrupted: end it with a newline, or write the file beside "
    "it and rename"
)

_TICK, _FINE_TICK = 1.1, 0.02
"""Seconds after which a file gets another time by an edit: one whose times are whole seconds, and any other."""


class BeingWrittenError(ReassertError):
    """A process has the policy file open for writing."""

    def __init__(self, path: str, status: os.stat_result) -> None:
        self.status = status
        """The status of the policy file."""
        super().__init__(f"{path} is being written: a process has it open; write beside it, then rename")


def read_source(path: str, seconds: float | None = None) -> tuple[bytes, os.stat_result]:
    """A policy file's content and its status. Raises ReassertError.

    `seconds`: how long to wait for its writers to close it, before BeingWrittenError. None: it is read at once.

    fstat comes before read: if the file changes in between, the stored key no longer matches and the next start
    recompiles.
    """
    try:
        with Path(path).open("rb") as file:
            deadline = time.monotonic() + (seconds or 0.0)
            while seconds is not None and _is_open_for_writing(file.fileno()):
                if time.monotonic() > deadline:
                    raise BeingWrittenError(path, os.fstat(file.fileno()))
                time.sleep(0.02)
            status = os.fstat(file.fileno())
            content = file.read(SOURCE_LIMIT + 1)
    except OSError as error:
        raise ReassertError(describe(error)) from None
    if len(content) > SOURCE_LIMIT:
        raise ReassertError(f"{path} is larger than the limit of {SOURCE_LIMIT} bytes")
    return content, status


def _is_open_for_writing(fd: int) -> bool:
    """Whether a process has a file open for writing. Otherwise the kernel grants a lease for reading (fcntl(2)).

    Until `fd` is closed, the lease makes a new writer wait. One on a network, or without leases, does not tell; nor
    does a process whose /proc is of another PID namespace, such as that of a plugin in another mount namespace.
    """
    status = os.fstat(fd)
    device = f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}"
    try:
        kinds = [row.filesystem for row in mount_table("thread-self").values() if row.device == device]
        if kinds and kinds[0] not in LOCAL:
            return False
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)  # a writer that waits sends it; it ends no process
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except (OSError, TooLarge) as error:
        return getattr(error, "errno", 0) == errno.EAGAIN
    return False


def _seems_cut(content: bytes, status: os.stat_result, last: dict[str, Any]) -> bool:
    """Whether the file of the store was written over in place, and its last line has no end.

    So is a file whose writer died. JSON is complete if it can be parsed. `last`: the header in the store, of the last
    good policy and of a file that is held back.
    """
    held_key = last.get("heldKey") or [0]
    waits = last.get("heldFor") and held_key == file_key(status)  # for files of the node: it was renamed, or is whole
    in_place = status.st_ino in ((last.get("key") or [0])[0], 0 if waits else held_key[0])
    return in_place and not content.endswith(b"\n") and not content.lstrip().startswith(b"{")


def _seconds_left(status: os.stat_result) -> float:
    """How long after a change a policy file can change again and keep its key.

    The kernel's clock for file times ticks every 1 to 10 ms. Some file systems have them in whole seconds, such as ext4
    with inodes of 128 bytes.
    """
    age = time.time() - status.st_ctime_ns / 1e9
    tick = _FINE_TICK if status.st_ctime_ns % 10**9 else _TICK
    return tick - age if 0 <= age < tick else 0.0


def refresh(path: str, store: str) -> str:
    """Compile the policy file, write the result into the store, and return the store's text.

    A policy file with errors does not replace the last good policy; the store then holds that policy and the errors. So
    does a new policy that would refuse every container for files that the node lacks (`_lacking`), and one that a
    writer may not have finished. A store that cannot be written (a full disk) is no error: the caller has the text.

    The last good policy is also that of another version (`last_good`), which keeps its own compiled form.
    """
    being_written = ""
    try:
        content, status = read_source(path, WRITER_SECONDS)
        while (rest := _seconds_left(status)) > 0:
            time.sleep(rest)
            content, status = read_source(path, WRITER_SECONDS)
    except BeingWrittenError as error:
        content, status, being_written = b"", error.status, str(error)
    key = file_key(status)
    compiled, errors = None, [being_written]
    if not being_written:
        try:
            compiled = compile_bytes(path, content)
        except PolicyInvalid as error:
            errors = [each.at(path) for each in error.problems if each.severity == "error"]
    try:
        # Another process may have stored it while this one compiled.
        before, lines = header_and_rules(path, store, waits=False)
    except BlockingIOError:  # not stored: what the policy file says counts for this start, whatever was in force
        return (
            _held_text(path, last={}, lines=[], key=key, errors=errors)
            if compiled is None
            else _taken_text(path, compiled, key)
        )
    last, why = before, ""
    if compiled is None or compiled.source.sha256 != before.get("sha256"):
        last, lines = last_good.last_good(
            path, store, own=before, lines=lines, compile_text=lambda text: _recompiled(path, text)
        )
    if compiled is None:
        text = _held_text(path, last=last, lines=lines, key=key, errors=errors)
        if being_written:
            return text  # not stored: no key changes when a writer closes the file
    else:
        why, files = _lacking(compiled, last)
        if last.get("sha256") != compiled.source.sha256 and _seems_cut(content, status, last):
            why, files = f"{path}: {_CUT}", []
        since = last["since"] if last.get("sha256") == compiled.source.sha256 else ""
        text = (
            _held_text(path, last=last, lines=lines, key=key, errors=[why], files=files)
            if why
            else _taken_text(path, compiled, key, since)
        )
    is_stored = _store(path, store, text, None if why else compiled)
    if is_stored and store == STORE:  # another store has a log of its own, which is unknown here
        _tell(last, Stored(text).policy(path, [], ""), json.loads(text.partition("\n")[0]))
    return text


def _store(path: str, store: str, text: str, taken: Compiled | None) -> bool:
    """Write the store's text, and before it what other versions read of the policy that takes force, if one does."""
    try:
        make_directory(store, 0o700)
        if taken is not None:
            last_good.keep(
                path, store, text=taken.source.text, header=json.loads(text.partition("\n")[0]), lines=taken.lines
            )
        replace_file(store_path(path, store), text.encode("ascii"))
        make_key(store)  # a start makes it too, but is to find it
    except OSError:
        return False
    return True


def _recompiled(path: str, content: bytes) -> tuple[dict[str, Any], list[str]]:
    """The header and the rule lines of a policy text that was in force before. Raises PolicyInvalid."""
    compiled = compile_bytes(path, content)
    now = timestamp(time.time_ns())
    return _header(path, compiled.header, key=None, compiled_at=now, since=now), compiled.lines


def _tell(before: dict[str, Any], policy: Policy, header: dict[str, Any]) -> None:
    """Log that another policy is in force, or why a new policy file is not. `before`: the header in the store.

    The compiler does this for all adapters: whichever start sees a change first runs it, and only once.
    """
    held_errors, was_held = header["heldErrors"], before.get("heldErrors") or []
    if held_errors == was_held and header["sha256"] == before.get("sha256", ""):
        return
    audited = sum(rule.is_audited or policy.mode == AUDIT for rule in policy.candidates(None))
    not_in_force = f"{header['source']} is not in force: {first_of(held_errors)}"
    event = events.of_adapter(
        "compiler",
        events.HELD if held_errors else LOADED,
        "info" if not held_errors else "warning" if header["sha256"] else "error",
        not_in_force if held_errors else "the policy is in force",
        policy={"path": header["source"], "sha256": header["sha256"]},
        version=__version__,
        before=before.get("sha256") or None,
        mode=header["mode"],
        rules={"enforced": header["rules"] - audited, "tried": audited},
    )
    events.write(events.EVENTS, event, header["eventLog"])


def _lacking(compiled: Compiled, last: dict[str, Any]) -> tuple[str, list[list[Any]]]:
    """Why a new policy would refuse every container on this node, and the state of the files that it lacks.

    "" if it would not, if `onMissingFiles` is Enforce, or if there is no other good policy. `last`: the header in
    the store. `plan` decides this, for a container that overrides nothing.
    """
    header = compiled.header
    if header["onMissingFiles"] == ENFORCE or not last.get("sha256") or last["sha256"] == header["sha256"]:
        return "", []
    files: dict[str, Any] = {}
    why = ""
    for _ in range(2):  # a file that comes between the look and its state must not be waited for
        try:
            why, lacks = _refusal(compiled.policy())
        except (ReassertError, OSError):
            return "", []
        if not why:
            return "", []
        files = {path: files[path] if path in files else path_state(path) for path in lacks}
    path = compiled.source.path
    return f"{path}: it would refuse every container on this node: {why}", [[*item] for item in files.items()]


def _refusal(policy: Policy) -> tuple[str, list[str]]:
    """Why a container without mounts and env is refused by the rules for every container, and what the node lacks."""
    rules = [rule for rule in policy.candidates(None) if not rule.is_audited and _is_for_every_pod(rule)]
    identity = Identity("", True, pod="pod", uid="0", container="c", types=(CONTAINER,))
    matches = [Match(rule, identity) for rule in rules]
    facts = gather(Adapter(), policy, identity, matches)
    of_one_pod = [mount.of_pod(identity.uid or "").source for rule in rules for mount in rule.mounts if mount.is_of_pod]
    facts.absent_sources -= {*of_one_pod}  # a pod that comes has its own
    lacks = sorted({*facts.absent_sources, *facts.unreadable})
    if not lacks or "*" in policy.excluded_namespaces:
        return "", lacks
    start = Start([], [], shared_processes="")
    refusal = plan(policy, Container(identity, start, facts), matches).refusal()
    facts.files.update(dict.fromkeys(facts.unreadable, ""))
    facts.absent_sources, facts.unreadable = set(), {}
    otherwise = plan(policy, Container(identity, start, facts), matches).refusal()
    return "" if otherwise else refusal, lacks  # otherwise the files are not the reason


def _is_for_every_pod(rule: Rule) -> bool:
    """Whether the rule matches a container of each pod."""
    return all(
        CONTAINER in wanted if field == "containerTypes" else not wanted or "*" in wanted
        for field, wanted in rule.conditions.items()
    )


def _header(
    path: str, content: dict[str, Any], *, key: list[int] | None = None, compiled_at: str = "", since: str = ""
) -> dict[str, Any]:
    """The store's header of a policy. `content`: NO_RULES, or what `Compiled` has."""
    about = {"format": STORE_FORMAT, "version": __version__, "source": path, "key": key, "compiledAt": compiled_at}
    return {**about, "since": since, "heldKey": None, "heldSince": "", "heldErrors": [], "heldFor": [], **content}


def _held_text(
    path: str,
    *,
    last: dict[str, Any],
    lines: list[str],
    key: list[int],
    errors: list[str],
    files: list[Any] | None = None,
) -> str:
    """The store's text for a policy file with errors: the last good policy, or NO_RULES, and the errors.

    `last`, `lines`: what the store has, {} if it has nothing. `files`: those for which it is held back, with states.
    """
    about = {"heldKey": key, "heldSince": timestamp(time.time_ns()), "heldErrors": errors, "heldFor": files or []}
    return _text({**(last or _header(path, NO_RULES)), **about}, lines if last else [])


def _taken_text(path: str, compiled: Compiled, key: list[int], since: str = "") -> str:
    """The store's text for a policy file that is in force from now on, or `since` then."""
    now = timestamp(time.time_ns())
    return _text(_header(path, compiled.header, key=key, compiled_at=now, since=since or now), compiled.lines)


def _text(header: dict[str, Any], lines: list[str]) -> str:
    return "\n".join([encode(header), *lines, ""])
