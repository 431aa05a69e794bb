"""Where the emptyDir of a rule, or a hostPath with the pod's UID in it, is for one pod. Part of the pure decision.

On disk it is in kubelet's directory of the pod, which kubelet removes with the pod. A mount there would prevent that,
so an emptyDir in memory has a directory of reassert's (hook.core.linux.volumes makes both).
"""

from __future__ import annotations

from hook.core.container.identity import Identity
from hook.core.policy.entries import Mount
from hook.core.reserve.plan import Plan

VOLUMES_DIRECTORY = "reassert"
"""The directory for emptyDirs in kubelet's directory of a pod."""


def in_memory(pods: str) -> str:
    """Has a directory for each pod with emptyDirs in memory, by the pod's UID. /run is empty after a reboot.

    `pods`: kubelet's directory of pods. Pods of another `kubelet.root` do not count as gone.
    """
    return f"/run/reassert/volumes/{pods.strip('/').replace('/', '-')}"


def located(mount: Mount, identity: Identity) -> Mount | None:
    """The mount with its path on the node; None without a pod.

    No pod's author chooses the UID: identities have the engine's record of what kubelet asked for.
    """
    uid = identity.proven_uid
    if not uid:
        return None
    if mount.is_of_pod:
        return mount.of_pod(uid)
    pods, name, size = mount.volume
    source = f"{pods}/{uid}/{VOLUMES_DIRECTORY}/{name}" if size < 0 else f"{in_memory(pods)}/{uid}/{name}"
    return Mount(source, mount.destination, mount.options, mount.allow_below, False, mount.volumes_above, mount.volume)


def of_pod(rule: str, mount: Mount, identity: Identity, plan: Plan) -> Mount | None:
    """`located`; without a pod the reason is in the plan."""
    volume = located(mount, identity)
    if volume:
        return volume
    what = f"hostPath {mount.volume[0]} for mount" if mount.is_of_pod else "emptyDir at"
    text = f"the {what} {mount.destination} is a pod's, and"
    if mount.is_of_pod and identity.kubernetes is not False:
        plan.deny(rule, "mount", f"{text} nothing proves whose this container is")
    elif identity.kubernetes is False:
        plan.deny(rule, "mount", f"{text} this container has no pod; give the rule a match with namespaces")
    else:
        plan.cannot_tell(rule, "mount", f"{text} it is unknown whose this container is")
    return None
