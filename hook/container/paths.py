"""Paths inside a container, compared as text. Part of the start path: builtins only."""


def clean(path: str) -> str:
    """The shortest absolute path that means the same by text alone: no `//`, `.`, `..` or trailing `/`.

    A relative destination counts from `/`, as runc and crun take it (runtime-spec, Mounts). Symbolic links are
    not known here; the runtime resolves them inside the root filesystem when it mounts.
    """
    if path[:1] == "/" and "//" not in path and "/." not in path and path[-1] != "/":
        return path
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            if parts:
                parts.pop()
        elif part not in ("", "."):
            parts.append(part)
    return "/" + "/".join(parts)


def is_below(path: str, parent: str) -> bool:
    """Whether a cleaned path lies strictly below another."""
    return path != parent and (parent == "/" or path.startswith(parent + "/"))


def parents(path: str) -> "list[str]":
    """The cleaned paths strictly above a cleaned path, the nearest first."""
    above = []
    while path != "/":
        path = path.rpartition("/")[0] or "/"
        above.append(path)
    return above
