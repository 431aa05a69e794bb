"""A terminal as standard output and standard error of a command in this process."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import struct
import termios
import threading
import tty
from collections.abc import Iterator

from hook.cli import main


@contextlib.contextmanager
def terminal(columns: int = 80) -> Iterator[list[str]]:
    """Gives the lines that the terminal has shown, once it is closed."""
    screen, device = pty.openpty()
    tty.setraw(device)
    fcntl.ioctl(device, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    shown: list[bytes] = []
    lines: list[str] = []

    def read() -> None:
        with contextlib.suppress(OSError):  # EIO: the device is closed
            while True:
                shown.append(os.read(screen, 1 << 16))

    reading = threading.Thread(target=read)
    reading.start()
    try:
        with (
            open(device, "w", encoding="utf-8") as stream,
            contextlib.redirect_stdout(stream),
            contextlib.redirect_stderr(stream),
        ):
            yield lines
    finally:
        reading.join()
        os.close(screen)
        lines += b"".join(shown).decode().splitlines()


def on_terminal(*arguments: str, columns: int = 80) -> list[str]:
    """The lines that a command shows on a terminal."""
    with terminal(columns) as lines:
        try:
            main([*arguments])
        except SystemExit:  # of argparse
            pass
    return lines
