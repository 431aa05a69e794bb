"""Patterns of names. Part of the start path: builtins only."""


def glob_match(pattern: str, text: str) -> bool:
    """Whole-text match; `*` stands for any characters, `/` too, `?` for exactly one. Case counts."""
    if pattern == "*":
        return True  # that of every rule for all namespaces
    if "*" not in pattern and "?" not in pattern:
        return pattern == text
    first, *rest = pattern.split("*")
    if not rest:
        return len(pattern) == len(text) and _fits(pattern, text, 0)
    last = rest.pop()
    end = len(text) - len(last)
    if end < len(first) or not _fits(first, text, 0) or not _fits(last, text, end):
        return False
    at = len(first)
    for part in rest:
        while not (at + len(part) <= end and _fits(part, text, at)):
            at += 1
            if at + len(part) > end:
                return False
        at += len(part)
    return True


def _fits(part: str, text: str, at: int) -> bool:
    if "?" not in part:
        return text.startswith(part, at)
    return all(want in ("?", text[at + offset]) for offset, want in enumerate(part))
