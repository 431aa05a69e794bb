"""Read what device plugins and resource claims gave, for rules that need it."""

from __future__ import annotations

import posix

from hook.core.base.errors import Unacceptable, Undecided, describe
from hook.core.base.mountinfo import status_of
from hook.core.base.system import is_shortage
from hook.core.container import cdi, claims
from hook.core.container.allocation import CHECKPOINT_LIMIT, allocations, checkpoint_path, plugins_beside
from hook.core.container.identity import CONTAINERD, DOCKER, SANDBOX, Identity
from hook.core.facts import Facts, NodeAccess, cri, exclusive, files, sharing
from hook.core.policy.entries import ALLOCATED_DEVICES, ALLOCATED_MOUNTS, EXCLUSIVE
from hook.core.policy.model import Policy, Rule

CLAIMS_LIMIT = 64 * 1024 * 1024
"""Maximum size of kubelet's record of resource claims in bytes. A claim is about 400 bytes."""

_S_IFMT = 0o170000
_DEVICE_TYPES = {0o020000: "c", 0o060000: "b"}


def gather_allocated(
    facts: Facts, node: NodeAccess, policy: Policy, *, identity: Identity, rules: list[Rule], container_id: str
) -> None:
    """Read the container's device allocations and its claims, and what the rules reserve of them.

    `container_id`: in the engine.
    """
    _read_allocations(facts, node, policy, identity)
    if identity.uid is not None and not facts.allocation_problem and True in [rule.uses_claims for rule in rules]:
        _read_claims(facts, node, policy, identity=identity, uid=identity.uid, container_id=container_id)
    trusting = [env for rule in rules for env in rule.env if env.trusted]
    trusted = [entry for env in trusting for entry in env.trusted]
    if trusted and identity.kubernetes and not facts.allocation_problem:
        try:
            facts.shared = sharing.held_by(trusted, identity.namespace, checkpoint_path(policy.kubelet_root), node.read)
            facts.shared_devices = {env.name: sharing.devices(facts.shared, env.name) for env in trusting}
        except (OSError, Undecided) as error:
            facts.allocation_problem = _problem(error)
    patterns = [pattern for rule in rules for pattern in rule.raw.get(EXCLUSIVE, ())]
    if patterns and not facts.allocation_problem:
        try:
            facts.devices = exclusive.gather_devices(patterns, facts.allocations + facts.shared, facts.claims)
        except (OSError, Undecided) as error:
            facts.allocation_problem = _problem(error)
    for rule in rules:
        for allocation in facts.given():
            for source, _, _ in allocation.mounts if ALLOCATED_MOUNTS in rule.allocations else []:
                files.check_source(facts, source)
            for path, _, _ in allocation.devices if ALLOCATED_DEVICES in rule.allocations else []:
                _read_device(facts, path)


def _read_allocations(facts: Facts, node: NodeAccess, policy: Policy, identity: Identity) -> None:
    """Read the container's device allocations from kubelet's checkpoint.

    Without an entry, nothing was allocated, nor without a checkpoint on a node without device plugins. If the
    checkpoint cannot be read, `allocation_problem` says why. Raises Unacceptable if annotations that a pod, an image or
    a user can write make the allocation unknown.
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
        facts.allocations = allocations(node.read(path, CHECKPOINT_LIMIT), identity.uid, identity.container, path)
        names = [name for allocation in facts.allocations for name in allocation.cdi_devices()]
        if names:
            facts.cdi_env = cdi.env_of(cdi.edits_of_devices(names))
    except FileNotFoundError:
        plugins = plugins_beside(path)
        if plugins:
            problem = f"kubelet's device checkpoint {path} is missing, and the device plugin of {plugins[0]} runs"
            facts.allocation_problem = f"{problem}; restart kubelet if this stays so"
    except (OSError, Undecided) as error:
        facts.allocations = []
        facts.allocation_problem = _problem(error, path)


def _read_claims(
    facts: Facts, node: NodeAccess, policy: Policy, *, identity: Identity, uid: str, container_id: str
) -> None:
    """Read the container's resource claims (Dynamic Resource Allocation), and what their CDI devices place.

    Where NRI does not tell the CDI devices that kubelet asked for, containerd is asked, which knows them once the
    container is created (not yet at NRI's request); else kubelet is asked which of the pod's claims the container has.
    """
    path = policy.kubelet_root + "/dra_manager_state"
    try:
        data = node.read(path, CLAIMS_LIMIT)
    except FileNotFoundError:  # no driver of resource claims on this node
        return
    except (OSError, Undecided) as error:
        facts.allocation_problem = _problem(error, path)
        return

    try:
        facts.claims = claims.claims(data, uid, path, identity.cdi)
        if facts.claims and identity.cdi is None:
            engine_knows = node.sockets and identity.engine == CONTAINERD
            asked = node.ask(node.sockets, cri.DEVICES, container_id, identity) if engine_knows else None
            if asked:
                facts.claims = claims.claims(data, uid, path, [*asked])
            else:
                answer = cri.of_kubelet(policy.kubelet_root, container_id, identity, node)
                facts.claims, facts.inexact_claims = claims.of_container(facts.claims, answer, identity.container)
        for claim in facts.claims:
            edits = cdi.edits_of_claim(claim.cdi, str(claim))
            for name, values in cdi.env_of(edits).items():
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
