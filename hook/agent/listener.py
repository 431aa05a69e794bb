"""The agent's listening socket: systemd's, or one of its own in a directory of root's alone."""

from __future__ import annotations

import os
import socket
import stat

from hook.core.base.errors import ReassertError, Usage, describe
from hook.core.base.system import make_directory, trusted

_BACKLOG = 4096
_SUN_PATH = 107
"""Bytes that the path of a socket may have (unix(7))."""


def listener_at(path: str) -> tuple[socket.socket, bool]:
    """The socket to listen on, and whether it is ours to remove: not systemd's (sd_listen_fds(3))."""
    if os.environ.pop("LISTEN_PID", "") == str(os.getpid()) and os.environ.pop("LISTEN_FDS", "") == "1":
        listener = socket.socket(fileno=3)
        listener.set_inheritable(False)
        if listener.family != socket.AF_UNIX or listener.type != socket.SOCK_SEQPACKET:
            raise Usage("the socket unit has to have ListenSequentialPacket=")
        return listener, False
    if len(os.fsencode(path)) > _SUN_PATH:
        raise Usage(f"--socket takes a path of at most {_SUN_PATH} bytes, not {path!r}")
    _check_directory(os.path.dirname(path))
    _check_free(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    mask = os.umask(0o177)
    temporary = f"{os.path.dirname(path)}/.{os.getpid()}"
    try:
        listener.bind(temporary)
        listener.listen(_BACKLOG)
        os.rename(temporary, path)  # after listen(), so no connection to `path` is refused
    finally:
        os.umask(mask)
    return listener, True


def _check_directory(directory: str) -> None:
    """Makes the directory, unless it exists. Raises ReassertError if another user than root may use it; OSError."""
    make_directory(directory, 0o700)
    status = trusted(directory)
    if not stat.S_ISDIR(status.st_mode) or status.st_mode & 0o077:
        raise ReassertError(f"{directory} must be a directory that only root may use (chmod 700 {directory})")


def _check_free(path: str) -> None:
    """Raises ReassertError unless `path` is missing, or is a socket on which no process listens any more."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(status.st_mode):
        kind = "directory" if stat.S_ISDIR(status.st_mode) else "file"
        raise ReassertError(f"{path} is a {kind}, not the agent's socket; remove it")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK) as probe:  # it may be full
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return
        except OSError as error:
            raise ReassertError(f"{path}: another program uses this socket: {describe(error)}") from None
    raise ReassertError(f"{path}: another agent listens on this socket")
