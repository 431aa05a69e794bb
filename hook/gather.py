"""Read the node's data that the matching rules need, before the decision. Part of the start path: builtins only."""

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
"""Maximum size of a `valueFrom.file` in bytes: Linux's MAX_ARG_STRLEN, the limit of an env entry."""

CLAIMS_LIMIT = 64 * 1024 * 1024
"""Maximum size of kubelet's record of resource claims in bytes. A claim is about 400 bytes."""

_S_IFMT, _S_IFDIR = 0o170000, 0o040000
_DEVICE_TYPES = {0o020000: "c", 0o060000: "b"}


def gather(
    policy: Policy, identity: Identity, matches: "list[Match]", read: "Callable[[str, int], bytes]" = read_file
) -> Facts:
    """Read the files, hostPaths, device nodes and device allocations that the rules that apply need.

    `read`: reads kubelet's device checkpoint and its record of resource claims.
    """
    facts = Facts()
    rules = [match.rule for match in matches if match.applies]
    if any(rule.uses_allocations() for rule in rules):
        _gather_allocations(facts, policy, identity, read)
        if any(rule.uses_claims() for rule in rules) and not facts.allocation_problem and identity.uid is not None:
            _gather_claims(facts, policy, identity.uid, read)
    for rule in rules:
        for env in rule.env:
            if env.source == FILE and env.text is not None and env.text not in facts.files:
                _read_value(facts, env.text)
        for mount in rule.mounts:
            if mount.source:
                _check_source(facts, mount.source)
        for allocation in facts.allocations if mounts.PART in rule.allocations else []:
            for source, _, _ in allocation.mounts:
                _check_source(facts, source)
        for allocation in facts.allocations if devices.PART in rule.allocations else []:
            for path, _, _ in allocation.devices:
                _read_device(facts, path)
    patterns = [pattern for rule in rules for pattern in rule.plain.get(devices.EXCLUSIVE, ())]
    if patterns and not facts.allocation_problem:
        _gather_devices(facts, patterns)
    return facts


def _read_value(facts: Facts, path: str) -> None:
    try:
        facts.files[path] = first_line(path)
    except (Untrusted, Undecided, OSError) as error:
        facts.unreadable[path] = describe(error)


def _check_source(facts: Facts, source: str) -> None:
    try:
        if posix.stat(source).st_mode & _S_IFMT == _S_IFDIR:
            facts.directories.add(source)
    except OSError:
        facts.absent_sources.add(source)


def _read_device(facts: Facts, path: str) -> None:
    """The device node at an allocated host path. As in containerd, symbolic links are followed, directories allowed."""
    try:
        status = posix.stat(path)
    except OSError:
        facts.absent_sources.add(path)
        return
    device_type = _DEVICE_TYPES.get(status.st_mode & _S_IFMT)
    if device_type is None:
        facts.device_nodes[path] = None
        return
    facts.device_nodes[path] = {
        "type": device_type,
        "major": posix.major(status.st_rdev),
        "minor": posix.minor(status.st_rdev),
        "fileMode": status.st_mode & 0o777,
        "uid": status.st_uid,
        "gid": status.st_gid,
    }


def _gather_allocations(facts: Facts, policy: Policy, identity: Identity, read: "Callable[[str, int], bytes]") -> None:
    """Read the container's device allocations from kubelet's checkpoint.

    Without a checkpoint or an entry, nothing was allocated. If the checkpoint cannot be read, `allocation_problem` says
    why. Raises Unacceptable if annotations that a pod, an image or a user can write make the allocation unknown.
    """
    if identity.kubernetes is False or identity.types == (SANDBOX,):
        return  # device plugins allocate to containers of pods only, not to sandboxes
    if identity.engine == DOCKER and identity.container is None:
        return  # pause, or not a pod's: kubelet mounts a termination log, with the name, into a pod's containers
    if identity.kubernetes is None:
        raise Unacceptable(
            "annotations claim a pod and nothing proves which engine wrote them, so the device allocation is unknown"
        )
    if identity.uid is None or identity.container is None:
        unknown = "the pod's UID" if identity.uid is None else "the container's name"
        facts.allocation_problem = f"{unknown} is unknown, so its device allocation is too"
        return
    # Imported here, so that only a policy that uses allocations loads them.
    from hook.container.allocation import LIMIT, allocations, checkpoint_path

    path = checkpoint_path(policy.kubelet_root)
    try:
        facts.allocations = allocations(read(path, LIMIT), identity.uid, identity.container)
        names = [name for allocation in facts.allocations for name in allocation.cdi]
        if names:
            from hook.container.cdi import env_of_devices

            facts.cdi_env = env_of_devices(names)
    except FileNotFoundError:
        pass
    except (OSError, Undecided) as error:
        facts.allocations = []
        facts.allocation_problem = describe(error) if isinstance(error, Undecided) else f"{path}: {error.strerror}"


def _gather_claims(facts: Facts, policy: Policy, uid: str, read: "Callable[[str, int], bytes]") -> None:
    """Read the pod's resource claims (Dynamic Resource Allocation), and the env that their CDI devices set."""
    path = policy.kubelet_root + "/dra_manager_state"
    try:
        data = read(path, CLAIMS_LIMIT)
    except FileNotFoundError:  # no driver of resource claims on this node
        return
    except (OSError, Undecided) as error:
        facts.allocation_problem = describe(error) if isinstance(error, Undecided) else f"{path}: {error.strerror}"
        return
    from hook.container.cdi import env_of_devices  # only a node with claims loads them
    from hook.container.claims import claims

    try:
        facts.claims = claims(data, uid, path)
        for claim in facts.claims:
            for name, values in env_of_devices(claim.cdi, claim=str(claim)).items():
                facts.claimed_env.setdefault(name, []).extend((value, str(claim)) for value in values)
    except Undecided as error:
        facts.allocation_problem = describe(error)


def _gather_devices(facts: Facts, patterns: "list[str]") -> None:
    from hook.exclusivefacts import gather_devices  # only a policy that uses it loads it

    try:
        facts.devices = gather_devices(patterns, facts.allocations, facts.claims)
    except (OSError, Undecided) as error:
        facts.allocation_problem = describe(error)


def first_line(path: str) -> str:
    """The first line of a file that only root can write to. Raises Untrusted, Undecided, OSError."""
    if not is_file(trusted(path)):
        raise Undecided(f"{path} is not a regular file")
    fd = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC | posix.O_NONBLOCK)
    try:
        line = read_fd(fd, VALUE_LIMIT, path).split(b"\n", 1)[0].rstrip(b"\r")
    finally:
        posix.close(fd)
    if b"\0" in line:
        raise Undecided(f"{path}: the first line contains a NUL byte")
    try:
        return decode(line)
    except Malformed as error:
        raise Undecided(f"{path}: {error}") from None
