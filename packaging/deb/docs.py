"""Copy the documentation into a directory of a package, with links that work there. Standard library only.

python3 packaging/deb/docs.py DIRECTORY
python3 packaging/deb/docs.py --in-place DIRECTORY     pages that lie there as in the repository, of a release's archive

A link to a file that the package does not have becomes plain text.
"""

from __future__ import annotations

import os
import posixpath
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ("config/examples", "packaging/monitoring")
"""Directories whose files the package has in `examples`."""

_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^()\s]+)\)")


def copies() -> dict[str, str]:
    """Every copied file: its path in the repository, and its path in the package's directory."""
    docs = ROOT / "docs"
    shown = (path for kind in ("md", "svg") for path in docs.rglob(f"*.{kind}"))
    pages = {str(path.relative_to(ROOT)): str(path.relative_to(docs)) for path in shown}
    pages["SECURITY.md"] = "SECURITY.md"
    for directory in EXAMPLES:
        for path in (ROOT / directory).iterdir():
            pages[str(path.relative_to(ROOT))] = f"examples/{path.name}"
    return pages


def is_elsewhere(target: str) -> bool:
    """Whether a link leads out of the documentation, to another site."""
    return "://" in target or target.startswith("mailto:")


def relinked(text: str, page: str, there: dict[str, str]) -> str:
    """A page with its links as they have to be in the package. `page`: its path in the repository."""

    def found(source: str) -> str | None:
        place = "examples" if source in EXAMPLES else there.get(source)
        return place and posixpath.relpath(place, posixpath.dirname(there[page]) or ".")

    return _linked(text, page, found)


def without_dead_links(directory: Path) -> None:
    """Replaces each link to what a directory does not have by its text, in all pages below it."""
    for path in directory.rglob("*.md"):
        at = path.parent

        def found(source: str, at: Path = at) -> str | None:
            place = directory / source
            return os.path.relpath(place, at) if place.exists() else None

        path.write_text(_linked(path.read_text(), str(path.relative_to(directory)), found))


def _linked(text: str, page: str, find: Callable[[str], str | None]) -> str:
    """`find`: the new link to a path of the repository, None if there is none."""

    def link(match: re.Match[str]) -> str:
        words, target = match.groups()
        path, anchor, section = target.partition("#")
        if is_elsewhere(target) or not path:
            return match[0]
        new = find(posixpath.normpath(posixpath.join(posixpath.dirname(page), path)))
        return words if new is None else f"[{words}]({new}{'' if new.endswith('examples') else anchor + section})"

    return "".join(_LINK.sub(link, part) if prose else part for prose, part in _parts(text))


def _parts(text: str) -> Iterator[tuple[bool, str]]:
    """The text in pieces, code blocks apart."""
    inside = False
    for line in text.splitlines(keepends=True):
        fence = line.startswith("```")
        yield not (inside or fence), line
        inside ^= fence


def main(directory: Path) -> None:
    """Write the copies."""
    there = copies()
    for source, target in there.items():
        path = directory / target
        path.parent.mkdir(parents=True, exist_ok=True)
        content = (ROOT / source).read_bytes()
        path.write_bytes(relinked(content.decode(), source, there).encode() if source.endswith(".md") else content)


if __name__ == "__main__":
    if sys.argv[1] == "--in-place":
        without_dead_links(Path(sys.argv[2]))
    else:
        main(Path(sys.argv[1]))
