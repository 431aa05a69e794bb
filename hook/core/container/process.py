"""Read and edit the process file of an `exec`. Part of the start path: builtins only."""

import posix

from hook.core.base.errors import Unacceptable
from hook.core.base.jsontext import Malformed, bounded, decode, members
from hook.core.base.system import is_file, read_fd
from hook.core.container.spec import (
    ENTRIES,
    LIMIT,
    PROCESS,
    apply,
    check_names,
    encoded,
    splice,
    strings,
    without_nul,
)


def read(path: str) -> "tuple[bytes, bool]":
    """The content of a process file, and whether it can be replaced (a regular file). Raises TooLarge, OSError."""
    # Blocking: the writer of a pipe may be slow, and the real runtime would wait for it too.
    fd = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC)
    try:
        plain = is_file(posix.fstat(fd)) and is_file(posix.lstat(path))
        return read_fd(fd, LIMIT, path), plain
    finally:
        posix.close(fd)


class ProcessFile:
    """The file of `exec --process FILE`: a process object of the runtime-spec. Only `env` can be replaced."""

    def __init__(self, data: bytes, where: str) -> None:
        self.where = where
        try:
            self._text = without_nul(decode(bounded(data, ENTRIES, where)))
            self._members, _ = members(self._text, strings="env")
            check_names(self._members, PROCESS)
            self.env = self._original = strings(self._members, "env", "env")
        except Malformed as error:
            raise Unacceptable(f"{where}: {error}") from None

    def changed(self) -> bool:
        """Whether `env` was replaced."""
        return self.env != self._original

    def render(self) -> bytes:
        """The text with the replaced env in it."""
        return apply(self._text, [splice(self._members, self._text.index("{"), "env", encoded(self.env))])
