"""The files that certificates are read from: the node's system roots, and the operator's CAs.

Reading them needs root's rights, parsing them does not: `parsed` is for a process without rights
(hook.ops.trust.build.in_a_child).
"""

from __future__ import annotations

import os
import stat

from hook.core.base.errors import TooLarge, Undecided, describe
from hook.core.base.system import read_file, trusted
from hook.core.policy.trust_layout import SOURCES
from hook.ops.trust.certificate import BEGIN, Certificate, certificates
from hook.ops.trust.errors import TrustError

FILE_LIMIT = 16 << 20
"""Maximum size of one file in bytes."""

COUNT_LIMIT = 2000
"""Maximum number of system roots, and of added CAs."""

ENDINGS = (".pem", ".crt", ".cer", ".der", ".p7b", ".p7c")
"""The files of a directory that are read; others, such as a README or a private key, are not."""

SYSTEM = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Ubuntu, Alpine, Arch, openSUSE
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",  # RHEL, Fedora, Amazon Linux
    "/etc/pki/tls/certs/ca-bundle.crt",  # RHEL 6 and older
    "/var/lib/ca-certificates/ca-bundle.pem",  # SUSE
    "/etc/ssl/ca-bundle.pem",  # SUSE
    "/etc/ssl/cert.pem",  # Alpine
)
"""Where distributions keep the system's roots; the first file that exists is read."""


Files = list[tuple[str, bytes]]
"""Paths and contents."""


def system_roots(path: str | None) -> Files:
    """The files of the system's roots: a file or directory, or this node's own. Raises TrustError, OSError."""
    if path:
        return _read([path])
    for place in SYSTEM:
        if os.path.exists(place) and os.path.getsize(place):
            return _read([place])
    raise TrustError(
        f"no system roots on this node: none of {', '.join(SYSTEM)} exists. Install ca-certificates, name a file with "
        f"--system FILE, or say --no-system"
    )


def added_cas(paths: list[str] | None, directory: str | None) -> Files:
    """The files of the operator's CAs: --add, else a directory, None for SOURCES. Raises TrustError, OSError.

    Only SOURCES may be missing. The directory is read with no operator to see a warning, so a file there that
    others than root can write is refused.
    """
    if paths:
        return _read(paths)
    if directory is None and not os.path.isdir(SOURCES):
        return []
    directory = directory or SOURCES
    if not os.path.isdir(directory):
        raise TrustError(f"{directory} is not a directory; put the store's CAs there, or name them with --add")
    if os.geteuid() == 0:
        for file in (directory, *_files(directory)):
            trusted(file)
    return _read([directory])


def parsed(files: Files, paths: list[str] | None = None, added: bool = False) -> list[Certificate]:
    """The certificates of files. `paths`: of --add, which must have some. Raises TrustError."""
    found: list[Certificate] = []
    for file, data in files:
        found += certificates(data, file, added, COUNT_LIMIT - len(found))
    if paths and not found:
        endings = ", ".join(ENDINGS[:-1]) + f" or {ENDINGS[-1]}"
        raise TrustError(f"no certificate in {', '.join(paths)}; files in a directory must end in {endings}")
    return found


def _files(path: str) -> list[str]:
    """A file, or the files of a directory with known endings, in order."""
    if not stat.S_ISDIR(os.stat(path).st_mode):
        return [path]
    names = sorted(name for name in os.listdir(path) if name.lower().endswith(ENDINGS) and not name.startswith("."))
    return [os.path.join(path, name) for name in names]


def skipped(paths: list[str] | None, directory: str | None) -> list[str]:
    """The files of the directories that are not read by their ending, and that have a certificate in them."""
    found = []
    for path in paths or [directory or SOURCES]:
        names = sorted(os.listdir(path)) if os.path.isdir(path) else []
        for name in names:
            file = os.path.join(path, name)
            if name.startswith(".") or name.lower().endswith(ENDINGS) or not os.path.isfile(file):
                continue
            try:
                data = read_file(file, FILE_LIMIT)
            except (OSError, TooLarge, Undecided):
                continue
            if BEGIN + b"CERTIFICATE" in data or data[:2] == b"\x30\x82":
                found.append(file)
    return found


def _read(paths: list[str]) -> Files:
    found: Files = []
    for path in map(os.path.abspath, paths):
        try:
            found += [(file, read_file(file, FILE_LIMIT)) for file in _files(path)]
        except TooLarge as error:
            raise TrustError(f"{error}; give files that hold CA certificates only") from None
        except (OSError, Undecided) as error:
            raise TrustError(f"{describe(error)}; correct that, or name other files with --add or --system") from None
    return found
