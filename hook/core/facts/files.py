"""Read the file of a `valueFrom.file`. For such rules; builtins only."""

from hook.core.base.errors import Undecided, describe
from hook.core.base.jsontext import Malformed, decode
from hook.core.base.system import Untrusted, is_shortage, read_file, trusted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.core.facts import Facts

VALUE_LIMIT = 128 * 1024
"""Maximum size of a `valueFrom.file` in bytes: Linux's MAX_ARG_STRLEN, the limit of an env entry."""


def read_value(facts: "Facts", path: str) -> None:
    """Note the first line of a file, or why it cannot be read. Raises OSError for a shortage."""
    try:
        facts.files[path] = first_line(path)
    except (Untrusted, Undecided, OSError) as error:
        if is_shortage(error):
            raise
        facts.unreadable[path] = describe(error)


def first_line(path: str) -> str:
    """The first line of a file that only root can write to. Raises Untrusted, Undecided, OSError."""
    trusted(path)
    line = read_file(path, VALUE_LIMIT).split(b"\n", 1)[0].rstrip(b"\r")
    if b"\0" in line:
        raise Undecided(f"{path}: the first line contains a NUL byte")
    try:
        return decode(line)
    except Malformed as error:
        raise Undecided(f"{path}: {error}") from None
