"""Whether an ordinary process of a container can read what is reserved for it. A file that is mounted may be of no use.

The file is opened by a program in a container, so with the user, the AppArmor profile, the SELinux context and the
seccomp filter that the engine gives it: the mode and the label of the node's file decide, and nothing on the node tells
their result.
"""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hook.core.policy.entries import Mount
from hook.inside.rights import OVERFLOW_UID
from hook.node.errors import NodeError
from hook.node.probe.starter import Extra, Running

READER = Extra(user=OVERFLOW_UID)
"""A container without root's right to read everything, and with a program that reads."""

_FILES = 10_000
"""Files of a directory that are looked at for one to open."""

_ALWAYS = "/proc/self/status"
"""What every process may read: if it cannot be read, the program does not run."""


@dataclass(frozen=True)
class Unreadable:
    """A reserved file that a process cannot read. `path`: in the container. `source`: the file on the node.

    `why`: as text. `remedy`: the command against it, or "".
    """

    path: str
    source: str
    why: str
    remedy: str

    def __str__(self) -> str:
        """Returns it as one sentence."""
        return f"{self.path} is mounted, and a process of uid {READER.user} cannot read it: {self.why}"


def to_open(mounts: Iterable[Mount]) -> list[tuple[Mount, str]]:
    """Returns a file of the node for each mount that has one.

    Of a directory the first one that everybody may read by its mode: it may have private keys beside certificates.
    """
    found = []
    for mount in mounts:
        source = mount.source.rstrip("/")
        if source and not mount.volume:
            files = sorted(_files(source), key=lambda file: (bool(_denied(source, file)), file))
            found += [(mount, file) for file in files[:1]]
    return found


def _files(source: str) -> list[str]:
    """The regular files at and below a path; links lead elsewhere in the container."""
    found = [source] if os.path.isfile(source) else []
    for directory, _, names in os.walk(source):
        paths = [f"{directory}/{name}" for name in names]
        found += [path for path in paths if stat.S_ISREG(os.lstat(path).st_mode)]
        if len(found) >= _FILES:
            break
    return found


def _denied(source: str, file: str) -> str:
    """The first path, from the mount's source to the file, whose mode keeps other users out; "" if none does."""
    path = source
    while True:
        mode = os.stat(path).st_mode
        if not mode & (stat.S_IXOTH if stat.S_ISDIR(mode) else stat.S_IROTH):
            return path
        if path == file:
            return ""
        path += "/" + file[len(path) + 1 :].partition("/")[0]


def unreadable(running: Running, files: Iterable[tuple[Mount, str]]) -> list[Unreadable]:
    """Opens each file in a container of READER. Raises NodeError if no program can read there; OSError."""
    found = []
    for mount, file in files:
        path = mount.destination + file[len(mount.source.rstrip("/")) :]
        try:
            running.content(path)
        except NodeError as error:
            running.content(_ALWAYS)  # raises, unless the file is at fault
            found.append(
                Unreadable(path, file, *cause(mount.source.rstrip("/"), file, _label(running.pid), str(error)))
            )
    return found


def _label(pid: int) -> str:
    """The label of a process: a SELinux context, or an AppArmor profile with its mode in parentheses; "" for none."""
    try:
        return Path(f"/proc/{pid}/attr/current").read_text().strip("\n\0")
    except (OSError, UnicodeDecodeError):  # no such security module
        return ""


def cause(source: str, file: str, label: str, error: str) -> tuple[str, str]:
    """Why a process with this label could not read a file, and the command against it, or "".

    `source`: of the mount. `error`: what the program said. Raises OSError.
    """
    denied = _denied(source, file)
    if denied:
        of = os.stat(denied)
        right = "o+rx" if stat.S_ISDIR(of.st_mode) else "o+r"
        why = f"the mode of {denied} is {stat.S_IMODE(of.st_mode):04o}, owner {of.st_uid}:{of.st_gid}"
        return why, f"chmod {right} {shlex.quote(denied)}"
    why = f"{error}; its mode permits it"
    if label.count(":") >= 3:
        context = ""
        with suppress(OSError):
            context = os.getxattr(file, "security.selinux").decode("utf-8", "replace").strip("\0")
        pattern = shlex.quote(f"{source}(/.*)?" if os.path.isdir(source) else source)
        remedy = f"semanage fcontext -a -t container_file_t {pattern} && restorecon -R {shlex.quote(source)}"
        return f"{why}; SELinux: the process is {label}, the file {context or 'without a label'}", remedy
    if label.endswith("(enforce)"):
        return f"{why}; AppArmor: the profile {label.rpartition(' ')[0]} may lack a rule for it", ""
    with suppress(OSError):
        os.getxattr(file, "system.posix_acl_access")
        return f"{why}, and it has an access control list", f"getfacl {shlex.quote(file)}"
    return why, f"ls -l {shlex.quote(file)}"
