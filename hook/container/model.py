"""The container that a decision is about. Part of the start path: builtins only."""

from hook.container.identity import Identity


class Facts:
    """What the matching rules need to know of the node, gathered before the decision (`hook.facts.gather`).

    `files`: first line of each `valueFrom.file`, by path; an unreadable one is missing here and has its reason in
    `unreadable`. `absent_sources`: hostPaths that do not exist.
    """

    __slots__ = ("absent_sources", "files", "unreadable")

    def __init__(self) -> None:
        self.files: dict[str, str] = {}
        self.unreadable: dict[str, str] = {}
        self.absent_sources: set[str] = set()


class Container:
    """Identity, the env and mounts that it would start with, and the facts of the node.

    `env`: entries as in OCI process.env. `mounts`: objects as in OCI mounts.
    """

    __slots__ = ("env", "facts", "identity", "mounts")

    def __init__(
        self,
        identity: Identity,
        env: "list[str]",
        mounts: "list[dict[str, object]]",
        facts: "Facts | None" = None,
    ) -> None:
        self.identity = identity
        self.env = env
        self.mounts = mounts
        self.facts = facts or Facts()
