"""Compare paths inside a container, and names with patterns, as text."""

from __future__ import annotations


def clean(path: str) -> str:
    """The normalised absolute path: without `//`, `.`, `..` and a trailing `/`.

    A relative destination is taken from `/`, as runc and crun do (runtime-spec, Mounts). No symbolic link is resolved.
    """
    if path[:1] == "/" and "//" not in path and "/." not in path and path[-1] != "/":
        return path
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            del parts[-1:]
        elif part not in ("", "."):
            parts.append(part)
    return "/" + "/".join(parts)


def cleaned(paths: list[str]) -> list[str]:
    """Each path as `clean` makes it. Almost all are clean already: one search in the text of all of them shows it."""
    text = "\0".join(["", *paths, ""])
    odd = "//" in text or "/." in text or "/\0" in text or not text.count("\0/") == len(paths) == text.count("\0") - 1
    return [clean(path) for path in paths] if odd else paths


def is_below(path: str, parent: str) -> bool:
    """Whether a normalised path is below another one. No path is below itself."""
    return path != parent and (parent == "/" or path.startswith(parent + "/"))


def is_within(path: str, roots: set[str]) -> bool:
    """Whether a normalised path is one of some others, or below one."""
    while path not in roots and path != "/":
        path = path.rpartition("/")[0] or "/"
    return path in roots


def parents(path: str) -> list[str]:
    """The parent directories of a normalised path, from its own directory to `/`."""
    parts = path.split("/") if path != "/" else []
    return ["/".join(parts[:end]) or "/" for end in range(len(parts) - 1, 0, -1)]


def directories(paths: list[str]) -> set[str]:
    """Where a runtime makes devices: runc takes `..` out of the text of a path, crun follows links before it."""
    return {spelling.rpartition("/")[0] or "/" for path in paths for spelling in (path, clean(path))}


def is_pattern(text: str) -> bool:
    """Whether a text has a wildcard in it."""
    return "*" in text or "?" in text


def literal_start(pattern: str) -> str:
    """The pattern up to its first wildcard; every text that matches begins with it."""
    return pattern.partition("*")[0].partition("?")[0]


def glob_match(pattern: str, text: str) -> bool:
    """Whether the whole text matches. `*` stands for any characters, also `/`; `?` for exactly one. Case counts."""
    start = literal_start(pattern)
    if start == pattern:
        return pattern == text
    if not text.startswith(start) or pattern == start + "*":
        return text.startswith(start)
    first, *rest = pattern.split("*")
    if not rest:
        return len(pattern) == len(text) and _fits(pattern, text, 0)
    last = rest.pop()
    end = len(text) - len(last)
    if end < len(first) or not _fits(first, text, 0) or not _fits(last, text, end):
        return False
    index = len(first)
    for part in rest:
        index = _find(part, text, index, end)
        if index < 0:
            return False
        index += len(part)
    return True


def _fits(part: str, text: str, start: int) -> bool:
    if "?" not in part:
        return text.startswith(part, start)
    return all(want in ("?", text[start + offset]) for offset, want in enumerate(part))


_ZEROS = b"0" * 256


def _find(part: str, text: str, start: int, end: int) -> int:
    """The first index, from `start` on, at which a part without `*` matches and ends by `end`; -1 if there is none.

    Each character of the part is searched for in the whole text at once: one bit of a number for each place. A loop
    over the places would take a second for a text of a megabyte, which its author chooses.
    """
    if "?" not in part:
        return text.find(part, start, end)
    if text.find(max(part.split("?"), key=len), start, end) < 0:  # the usual case
        return -1
    size = end - start
    found = (1 << max(size - len(part) + 1, 0)) - 1 << len(part) - 1
    for letter in {*part} - {"?"}:
        places = _places(letter, text[start:end])
        for offset, each in enumerate(part):
            if each == letter:
                found &= places << offset
    return end - found.bit_length() if found else -1


def _places(letter: str, text: str) -> int:
    """A number with a bit for each character, the first one's highest: 1 where it is the letter, which is no `?`."""
    if not letter.isascii():
        text, letter = text.replace("\1", "\2").replace(letter, "\1"), "\1"
    number = ord(letter)
    bits = text.encode("ascii", "replace").translate(_ZEROS[:number] + b"1" + _ZEROS[number + 1 :])
    return int(bits or b"0", 2)
