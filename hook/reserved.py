"""The env that a container's every process gets: what is decided at create time and travels on to `exec`.

Part of the start path: builtins only.
"""

from hook.edits import SetEnv, UnsetEnv, name_of, values_of
from hook.policy.glob import glob_match


class Reserved:
    """Reserved env, apart from any one process: `values` by name, None where it must be absent; `absent` patterns."""

    __slots__ = ("absent", "values")

    def __init__(self, values: "dict[str, str | None]", absent: "list[str]") -> None:
        self.values = values
        self.absent = absent

    def __bool__(self) -> bool:
        return bool(self.values or self.absent)

    def edits(self, env: "list[str]") -> "list[SetEnv | UnsetEnv]":
        """What has to change in a process's env."""
        found: list[SetEnv | UnsetEnv] = []
        everything = "\n".join(env)  # searched at once for each name, and few stand there
        for name, value in self.values.items():
            before = values_of(env, name) if name in everything else []
            if value is not None and before != [value]:
                found.append(SetEnv("", name, value, before))
            elif value is None and before:
                found.append(UnsetEnv("", name, before))
        if self.absent:
            names = [name for name in dict.fromkeys(map(name_of, env)) if name not in self.values]
            found += [UnsetEnv("", name, values_of(env, name)) for name in names if self.owner(name)]
        return found

    def owner(self, name: str) -> str:
        """The reserved name or pattern that an env name falls under, or ""."""
        if name in self.values:
            return name
        for pattern in self.absent:
            if glob_match(pattern, name):
                return pattern
        return ""
