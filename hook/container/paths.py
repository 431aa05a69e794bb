"""Paths inside a container, compared as text. Part of the start path: builtins only."""


def clean(path: str) -> str:
    """The shortest absolute path that means the same by text alone: no `//`, `.`, `..` or trailing `/`.

    A relative destination counts from `/`, as runc and crun take it (runtime-spec, Mounts). Symbolic links are
    not known here; the runtime resolves them inside the root filesystem when it mounts.
    """
    if path.startswith("/") and "//" not in path and "/." not in path and not path.endswith("/"):
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
