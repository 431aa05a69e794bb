"""What the matching rules need to know of the node, read before the decision. Start path: builtins only."""

import posix

from hook.base.errors import Unacceptable, Undecided, describe
from hook.base.jsontext import Malformed, decode
from hook.base.system import Untrusted, is_file, read_fd, read_file, trusted
from hook.container.identity import DOCKER, SANDBOX, Identity
from hook.container.model import Facts
from hook.policy.match import Match
from hook.policy.model import Policy
from hook.reserve import devices, mounts
from hook.reserve.env import FILE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

VALUE_LIMIT = 128 * 1024
"""Bytes of a `valueFrom.file`: Linux's MAX_ARG_STRLEN, beyond which no env entry can be."""


_S_IFMT, _KINDS = 0o170000, {0o020000: "c", 0o060000: "b"}


def gather(
    policy: Policy, who: Identity, matches: "list[Match]", read: "Callable[[str, int], bytes]" = read_file
) -> Facts:
    """Read what the rules that apply ask for: files, hostPaths, and, with `read`, kubelet's device checkpoint."""
    facts = Facts()
    if any(match.applies and match.rule.uses_allocations() for match in matches):
        _gather_allocations(facts, policy, who, read)
    for match in matches:
        if not match.applies:
            continue
        for env in match.rule.env:
            if env.source == FILE and env.text is not None and env.text not in facts.files:
                _read_value(facts, env.text)
        for mount in match.rule.mounts:
            if mount.source:
                _look_for(facts, mount.source)
        for allocation in facts.allocations if mounts.PART in match.rule.allocations else []:
            for source, _, _ in allocation.mounts:
                _look_for(facts, source)
        for allocation in facts.allocations if devices.PART in match.rule.allocations else []:
            for path, _, _ in allocation.devices:
                _look_at_device(facts, path)
    return facts


def _read_value(facts: Facts, path: str) -> None:
    try:
        facts.files[path] = first_line(path)
    except (Untrusted, Undecided, OSError) as error:
        facts.unreadable[path] = describe(error)


def _look_for(facts: Facts, source: str) -> None:
    try:
        posix.stat(source)
    except OSError:
        facts.absent_sources.add(source)


def _look_at_device(facts: Facts, path: str) -> None:
    """The node behind an allocated host path, as containerd finds it: links followed, directories left to it."""
    try:
        status = posix.stat(path)
    except OSError:
        facts.absent_sources.add(path)
        return
    kind = _KINDS.get(status.st_mode & _S_IFMT)
    if kind is None:
        facts.device_nodes[path] = None
        return
    facts.device_nodes[path] = {
        "type": kind,
        "major": posix.major(status.st_rdev),
        "minor": posix.minor(status.st_rdev),
        "fileMode": status.st_mode & 0o777,
        "uid": status.st_uid,
        "gid": status.st_gid,
    }


def _gather_allocations(facts: Facts, policy: Policy, who: Identity, read: "Callable[[str, int], bytes]") -> None:
    """No checkpoint and no entry mean that nothing was allocated; one that cannot be read means that nobody knows.

    Raises Unacceptable where annotations that a pod, an image or a user wrote are why nobody knows.
    """
    if who.kubernetes is False or who.types == (SANDBOX,):
        return  # device plugins allocate to the containers of pods only
    if who.engine == DOCKER and who.container is None:
        return  # kubelet gives every container a termination log, which has its name: this is pause, or of no pod
    if who.kubernetes is None:
        raise Unacceptable(
            "annotations claim a pod and nothing shows which engine wrote them, so the device allocation is unknown"
        )
    if who.uid is None or who.container is None:
        unknown = "the pod's UID" if who.uid is None else "the container's name"
        facts.allocation_problem = f"{unknown} is unknown, so its device allocation is too"
        return
    # Only a policy that uses allocations pays for these.
    from hook.container.allocation import LIMIT, allocations, checkpoint_path

    path = checkpoint_path(policy.kubelet_root)
    try:
        facts.allocations = allocations(read(path, LIMIT), who.uid, who.container)
        names = [name for allocation in facts.allocations for name in allocation.cdi]
        if names:
            from hook.container.cdi import env_of_devices

            facts.cdi_env = env_of_devices(names)
    except FileNotFoundError:
        pass
    except (OSError, Undecided) as error:
        facts.allocations = []
        facts.allocation_problem = describe(error) if isinstance(error, Undecided) else f"{path}: {error.strerror}"


def first_line(path: str) -> str:
    """The first line of a file that only root can write. Raises Untrusted, Undecided, OSError."""
    if not is_file(trusted(path)):
        raise Undecided(f"{path} is not a regular file")
    fd = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC | posix.O_NONBLOCK)
    try:
        line = read_fd(fd, VALUE_LIMIT, path).split(b"\n", 1)[0].rstrip(b"\r")
    finally:
        posix.close(fd)
    if b"\0" in line:
        raise Undecided(f"{path}: its first line holds a NUL byte")
    try:
        return decode(line)
    except Malformed as error:
        raise Undecided(f"{path}: {error}") from None
