"""`reassert trust build`: from the sources to a new generation.

The certificates are parsed, and the files made of them, in a child without any right (hook.inside.workers): a
certificate that exploits the parser gets none. What the child answers is checked like input.
"""

from __future__ import annotations

import base64
import errno
import json
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from hook.core.base.errors import ReassertError, describe
from hook.core.base.system import Untrusted, timestamp, trusted
from hook.core.base.text import printable
from hook.core.policy import trust_layout as layout
from hook.inside.workers import without_any_right
from hook.ops.trust import formats
from hook.ops.trust.certificate import Certificate
from hook.ops.trust.errors import TrustError
from hook.ops.trust.generation import Store, digests, read_tree
from hook.ops.trust.judge import LEFT_OUT, Judged, judge
from hook.ops.trust.source import ENDINGS, Files, added_cas, parsed, skipped, system_roots


@dataclass(frozen=True)
class Sources:
    """What a store is built of. `add`: files and directories, None for `directory`. `system`: None for this node."""

    add: list[str] | None = None
    system: str | None = None
    no_system: bool = False
    allow_removal: bool = False
    directory: str | None = None
    """The directory of the added CAs; None for layout.SOURCES."""


@dataclass(frozen=True)
class Built:
    """The outcome of a build. `is_new`: there is a new generation. `repaired`: live files differed from the old one."""

    number: int
    is_new: bool
    repaired: bool
    certificates: list[dict[str, Any]]
    """In the form of the manifest."""

    warnings: list[str]

    @property
    def added(self) -> list[dict[str, Any]]:
        """The operator's."""
        return [one for one in self.certificates if one["added"]]


def build(directory: str, sources: Sources) -> Built:
    """Build a trust store. Raises TrustError, Untrusted, OSError; the error's `outcome` says what is in force."""
    store = Store(directory)
    mask = os.umask(0o022)  # any user of a container may read the files
    try:
        store.prepare()
        with store.locked():
            return _build(store, sources)
    except (ReassertError, OSError) as error:
        details = error.details if isinstance(error, TrustError) else []
        full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        remedy = "; free some space, then run reassert trust build again" if full else ""
        raise TrustError(describe(error) + remedy, [*details, _in_force(store)]) from error
    finally:
        os.umask(mask)


def _in_force(store: Store) -> str:
    try:
        numbers = store.numbers()
    except OSError:
        numbers = []
    return f"generation {numbers[-1]} stays in force" if numbers else "no trust store was made"


FORMAT = 3
"""Changes when the same certificates would make other files; a store of another format is built again."""

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*")


def _build(store: Store, sources: Sources) -> Built:
    added = added_cas(sources.add, sources.directory)
    system = [] if sources.no_system else system_roots(sources.system)
    certificates, warnings, files = _understood(in_a_child(lambda: _made(added, system, sources)))
    old = store.manifest()
    if old and not sources.allow_removal:
        _refuse_removal(old, certificates)
    number = int(store.numbers()[-1]) if old else 0
    is_new, repaired = not _is_same(store, number, old, certificates, files), False
    if is_new:
        number += 1
        content = {
            "format": FORMAT,
            "generation": number,
            "built": timestamp(time.time_ns()),
            "certificates": certificates,
            "files": digests(files),
        }
        files[layout.MANIFEST] = json.dumps(content, indent=1).encode() + b"\n"
        store.publish(number, files)
    else:
        repaired = store.complete(number)
    store.prune()
    return Built(number, is_new, repaired, certificates, [*warnings, *_warnings(store, certificates, sources)])


_ANSWER_LIMIT = 256 << 20
"""Bytes of the child's answer."""


def in_a_child(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What a function returns in a child without rights. Raises TrustError, also for what it raises there; OSError."""

    def told() -> dict[str, Any]:
        try:
            return work()
        except (ReassertError, OSError) as error:
            return {"error": describe(error), "details": getattr(error, "details", [])}

    answer = without_any_right(told, _ANSWER_LIMIT)
    try:
        if "error" in answer:
            raise TrustError(str(answer["error"]), [str(line) for line in answer["details"]])
        return dict(answer)
    except (ValueError, TypeError, KeyError):
        text = "the child process that reads the certificates failed"
        raise TrustError(f"{text}; one of the sources may be made to crash it") from None


def _made(added: Files, system: Files, sources: Sources) -> dict[str, Any]:
    """The store's files and certificates as JSON. In the child. Raises TrustError."""
    now = datetime.now(UTC)
    operators = parsed(added, sources.add, added=True)
    judged = judge(operators, parsed(system), now)
    _refuse_nothing(judged, operators, now, sources)
    files = formats.files(judged)
    contents = {content: number for number, content in enumerate(dict.fromkeys(files.values()))}
    return {
        "certificates": formats.entries(judged),
        "warnings": [str(finding) for finding in judged.findings],
        "contents": [base64.b64encode(content).decode() for content in contents],
        "files": {path: contents[content] for path, content in files.items()},
    }


def _understood(answer: Mapping[str, Any]) -> tuple[list[dict[str, Any]], list[str], dict[str, bytes]]:
    """The certificates, warnings and files that the child names. Raises TrustError for what `_made` does not return."""
    try:
        certificates = [
            {
                "sha256": str(one["sha256"]),
                "subject": printable(str(one["subject"])),
                "notAfter": f"{datetime.fromisoformat(one['notAfter']):%Y-%m-%dT%H:%M:%SZ}",
                "added": bool(one["added"]),
                "file": str(one["file"]),
                "entry": int(one["entry"]),
            }
            for one in answer["certificates"]
        ]
        contents = [base64.b64decode(text, validate=True) for text in answer["contents"]]
        files = {str(path): contents[number] for path, number in answer["files"].items()}
        if layout.MANIFEST in files or not all(map(_NAME.fullmatch, files)):
            raise ValueError
        return certificates, [printable(str(line)) for line in answer["warnings"]], files
    except (KeyError, TypeError, ValueError, IndexError, AttributeError):
        raise TrustError("the child process that reads the certificates gave a wrong answer") from None


def _refuse_nothing(judged: Judged, added: list[Certificate], now: datetime, sources: Sources) -> None:
    reasons = "; ".join(str(finding) for finding in judged.findings if finding.severity == LEFT_OUT)
    if judged.outdated * 2 > judged.total and judged.total > 2:
        raise TrustError(
            f"{judged.outdated} of {judged.total} certificates are expired or not yet valid; is this node's clock "
            f"right? It says {now:%Y-%m-%d %H:%M} UTC"
        )
    if added and not judged.added:
        raise TrustError(f"no added certificate can be used: {reasons}")
    if not judged.kept:
        directory = sources.directory or layout.SOURCES
        raise TrustError(
            f"no certificate: {directory} has none, and --no-system leaves out the system's roots. "
            f"Name the CA's certificate with --add FILE"
        )


def _refuse_removal(old: Mapping[str, Any], certificates: list[dict[str, Any]]) -> None:
    """A certificate that expired may go. One that a source no longer has may be a mistake, and breaks its users."""
    now, kept = datetime.now(UTC), {one["sha256"] for one in certificates}
    lost = [
        f"would be lost: {one['subject']} ({'added' if one['added'] else 'system root'}, sha256 {one['sha256'][:16]})"
        for one in old["certificates"]
        if one["sha256"] not in kept and datetime.fromisoformat(one["notAfter"]) >= now
    ]
    if lost:
        raise TrustError(
            f"the new trust store would lose {len(lost)} of {len(old['certificates'])} certificates; if that is meant, "
            f"say --allow-removal",
            lost,
        )


def _is_same(
    store: Store,
    number: int,
    old: Mapping[str, Any] | None,
    certificates: list[dict[str, Any]],
    files: Mapping[str, bytes],
) -> bool:
    """Whether the newest generation is what would be built, and its files are undamaged."""
    if not old or old.get("format") != FORMAT:
        return False
    if [(one["sha256"], one["added"]) for one in old["certificates"]] != [
        (one["sha256"], one["added"]) for one in certificates
    ]:
        return False
    present = read_tree(store.path(number))
    present.pop(layout.MANIFEST)
    return files.keys() == present.keys() and digests(present) == old["files"]


def _warnings(store: Store, certificates: list[dict[str, Any]], sources: Sources) -> list[str]:
    found = []
    if not any(one["added"] for one in certificates):
        directory = sources.directory or layout.SOURCES
        found.append(f"warning: no CA was added: {directory} has none. Put its certificate there, or name it: --add")
    endings = ", ".join(ENDINGS)
    found += [
        printable(f"warning: {file}: not read, and it seems to hold a certificate; a file's name must end in {endings}")
        for file in skipped(sources.add, sources.directory)
    ]
    if os.geteuid() != 0:
        return found
    paths = dict.fromkeys([str(store.directory.resolve()), *(one["file"] for one in certificates)])
    for path in paths:
        try:
            trusted(os.path.abspath(path))
        except Untrusted as error:
            found.append(printable(f"warning: {error}: a user who can write there decides which CAs containers trust"))
        except OSError:  # the source was read, and has been removed since
            pass
    return found
