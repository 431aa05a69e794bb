"""Where the emptyDir of a rule is for one pod. Loaded only for such rules; builtins only. Part of the pure decision.

On disk it is in kubelet's directory of the pod, which kubelet removes with the pod. A mount there would prevent that,
so an emptyDir in memory has a directory of reassert's (hook.core.linux.volumes makes both).
"""

from hook.core.policy.entries import Mount

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hook.core.container.identity import Identity
    from hook.core.reserve import Outcome

OWN = "reassert"
"""The directory for emptyDirs in kubelet's directory of a pod."""


def in_memory(pods: str) -> str:
    """Has a directory for each pod with emptyDirs in memory, by the pod's UID. /run is empty after a reboot.

    `pods`: kubelet's directory of pods. Pods of another `kubelet.root` do not count as gone.
    """
    return f"/run/reassert/volumes/{pods.strip('/').replace('/', '-')}"


def located(mount: Mount, identity: "Identity") -> "Mount | None":
    """The mount with its path on the node; None without a pod.

    No pod's author chooses the UID: identities have the engine's record of what kubelet asked for.
    """
    uid = identity.uid or ""
    if not identity.kubernetes or not uid.strip(".") or "/" in uid:
        return None
    pods, name, size = mount.volume
    source = f"{pods}/{uid}/{OWN}/{name}" if size < 0 else f"{in_memory(pods)}/{uid}/{name}"
    return Mount(source, mount.destination, mount.options, mount.allow_below, False, mount.volumes_above, mount.volume)


def of_pod(rule: str, mount: Mount, identity: "Identity", outcome: "Outcome") -> "Mount | None":
    """`located`; without a pod the reason is in the outcome."""
    found = located(mount, identity)
    if found:
        return found
    what = f"the emptyDir at {mount.destination} is a pod's, and"
    if identity.kubernetes is False:
        outcome.deny(rule, "mount", f"{what} this container has no pod; give the rule a match with namespaces")
    else:
        outcome.cannot_tell(rule, "mount", f"{what} it is unknown whose this container is")
    return None
