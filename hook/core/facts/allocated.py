"""Read what device plugins and resource claims gave, for rules that need it. Part of the start path: builtins only."""

import posix

from hook.core.base.errors import Unacceptable, Undecided, describe
from hook.core.base.mountinfo import status_of
from hook.core.base.system import is_shortage
from hook.core.container.allocation import LIMIT, allocations, checkpoint_path
from hook.core.container.identity import CONTAINERD, DOCKER, SANDBOX, Identity
from hook.core.facts import Facts
from hook.core.policy.entries import ALLOCATED, EXCLUSIVE
from hook.core.policy.model import Policy, Rule
from hook.core.reserve import devices, mounts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from hook.core.facts.cri import Ask

CLAIMS_LIMIT = 64 * 1024 * 1024
"""Maximum size of kubelet's record of resource claims in bytes. A claim is about 400 bytes."""

_S_IFMT = 0o170000
_DEVICE_TYPES = {0o020000: "c", 0o060000: "b"}


def gather_allocated(
    facts: Facts,
    policy: Policy,
    identity: Identity,
    rules: "list[Rule]",
    read: "Callable[[str, int], bytes]",
    check_source: "Callable[[Facts, str], None]",
    asks: "tuple[str, Ask | None]",
    container_id: str,
) -> None:
    """Read the container's device allocations and its claims, and what the rules reserve of them.

    `read`: reads kubelet's device checkpoint, and its record of resource claims. `check_source`: looks at a hostPath.
    `asks`, `container_id`: as in hook.core.decide.Case, with an empty name of the store if no engine is asked.
    """
    _read_allocations(facts, policy, identity, read)
    if identity.uid is not None and not facts.allocation_problem and any(map(_uses_claims, rules)):
        _read_claims(facts, policy, identity, identity.uid, read, asks, container_id)
    trusted = [entry for rule in rules for env in rule.env for entry in env.trusted]
    if trusted and identity.kubernetes and not facts.allocation_problem:
        from hook.core.facts.sharing import held_by  # only a policy that uses it loads it

        try:
            facts.shared = held_by(trusted, identity.namespace, checkpoint_path(policy.kubelet_root), read)
        except (OSError, Undecided) as error:
            facts.allocation_problem = _problem(error)
    patterns = [pattern for rule in rules for pattern in rule.raw_lists.get(EXCLUSIVE, ())]
    if patterns and not facts.allocation_problem:
        from hook.core.facts.exclusive import gather_devices  # only a policy that uses it loads it

        try:
            facts.devices = gather_devices(patterns, facts.allocations + facts.shared, facts.claims)
        except (OSError, Undecided) as error:
            facts.allocation_problem = _problem(error)
    for rule in rules:
        for allocation in facts.given():
            for source, _, _ in allocation.mounts if mounts.PART in rule.allocations else []:
                check_source(facts, source)
            for path, _, _ in allocation.devices if devices.PART in rule.allocations else []:
                _read_device(facts, path)


def _read_allocations(facts: Facts, policy: Policy, identity: Identity, read: "Callable[[str, int], bytes]") -> None:
    """Read the container's device allocations from kubelet's checkpoint.

    Without a checkpoint or an entry, nothing was allocated. If the checkpoint cannot be read, `allocation_problem` says
    why. Raises Unacceptable if annotations that a pod, an image or a user can write make the allocation unknown.
    """
    if identity.kubernetes is False or identity.types == (SANDBOX,):
        return  # device plugins allocate to containers of pods only, not to sandboxes
    if identity.engine == DOCKER and identity.container is None:
        return  # a sandbox, or not of a pod: in a pod's containers, kubelet mounts a termination log with the name
    if identity.kubernetes is None:
        raise Unacceptable(
            "annotations claim a pod and nothing proves which engine wrote them, so the device allocation is unknown"
        )
    if identity.uid is None or identity.container is None:
        unknown = "the pod's UID" if identity.uid is None else "the container's name"
        facts.allocation_problem = f"{unknown} is unknown, so its device allocation is too"
        return
    path = checkpoint_path(policy.kubelet_root)
    try:
        facts.allocations = allocations(read(path, LIMIT), identity.uid, identity.container, path)
        names = [name for allocation in facts.allocations for name in allocation.cdi]
        if names:
            from hook.core.container.cdi import edits_of_devices, env_of

            facts.cdi_env = env_of(edits_of_devices(names))
    except FileNotFoundError:
        pass
    except (OSError, Undecided) as error:
        facts.allocations = []
        facts.allocation_problem = _problem(error, path)


def _uses_claims(rule: Rule) -> bool:
    """Whether the rule needs the pod's resource claims."""
    listed = rule.raw_lists.get(EXCLUSIVE) or rule.allocations
    return bool(listed) or ALLOCATED in [entry.source for entry in rule.env]


def _read_claims(
    facts: Facts,
    policy: Policy,
    identity: Identity,
    uid: str,
    read: "Callable[[str, int], bytes]",
    asks: "tuple[str, Ask | None]",
    container_id: str,
) -> None:
    """Read the container's resource claims (Dynamic Resource Allocation), and what their CDI devices place.

    Where NRI does not tell the CDI devices that kubelet asked for, containerd is asked, which knows them once the
    container is created (not yet at NRI's request); else kubelet is asked which of the pod's claims the container has.
    """
    path = policy.kubelet_root + "/dra_manager_state"
    try:
        data = read(path, CLAIMS_LIMIT)
    except FileNotFoundError:  # no driver of resource claims on this node
        return
    except (OSError, Undecided) as error:
        facts.allocation_problem = _problem(error, path)
        return
    from hook.core.container.cdi import edits_of_claim, env_of  # only a node with claims loads them
    from hook.core.container.claims import claims, of_container

    try:
        facts.claims = claims(data, uid, path, identity.cdi)
        if facts.claims and identity.cdi is None:
            from hook.core.facts.cri import DEVICES, GET, ask_in_time  # only a pod with claims loads it

            store, ask = asks[0], asks[1] or ask_in_time
            asked = ask(store, DEVICES, container_id, identity) if store and identity.engine == CONTAINERD else None
            if asked:
                facts.claims = claims(data, uid, path, [*asked])
            else:
                said = ask(policy.kubelet_root, GET, container_id, identity)
                facts.claims, facts.inexact_claims = of_container(facts.claims, said, identity.container)
        for claim in facts.claims:
            edits = edits_of_claim(claim.cdi, str(claim))
            for name, values in env_of(edits).items():
                facts.claimed_env.setdefault(name, []).extend((value, str(claim)) for value in values)
            for _, each in edits:
                claim.place(each)
    except Undecided as error:
        facts.allocation_problem = _problem(error)


def _problem(error: Exception, path: str = "") -> str:
    """Why the allocations are unknown. `path`: of the file that could not be read. Raises OSError for a shortage."""
    if is_shortage(error):
        raise error
    return f"{path}: {error.strerror}" if path and isinstance(error, OSError) else describe(error)


def _read_device(facts: Facts, path: str) -> None:
    """The device node at an allocated host path. As in containerd, symbolic links are followed, directories allowed."""
    try:
        status = status_of(path)
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
