"""The marks of test containers. Part of the start path: builtins only; loaded while `node verify` runs."""

import posix

from hook.core.base.errors import ReassertError
from hook.core.base.system import trusted
from hook.core.container.identity import CONTAINERD, Identity


def is_marked(directory: str, adapter: str, container_id: str, identity: "Identity | None") -> bool:
    """Whether a file of the directory marks the container as a probe.

    No other user can mark a container as a probe: engines choose ids at random, and only root can write to the
    directory. The pod's UID counts only over NRI and of containerd, for sandboxes. Elsewhere it may be a docker user's
    annotation.
    """
    try:
        marks = posix.listdir(directory)  # a list to compare with: an id is never used as a path
        trusted(directory)
    except (OSError, ReassertError):
        return False
    if container_id in marks or identity is None:
        return container_id in marks
    return identity.uid in marks and (adapter == "nri" or identity.engine == CONTAINERD)
