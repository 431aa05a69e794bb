"""What kubelet makes of a rendered container: the CRI configuration, for the fields that the chart uses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from e2e.cri.client import messages, namespaces

_KNOWN = {"name", "image", "imagePullPolicy", "command", "securityContext", "volumeMounts", "resources"}
_PROBES = {"readinessProbe", "livenessProbe"}


def container_config(
    spec: dict[str, Any], container: dict[str, Any], image: str, env: dict[str, str], node: Callable[[str], Path]
) -> Any:
    """The ContainerConfig of a container of a pod's spec. `node`: where a path of the node is from here.

    Refuses fields that it does not know, or a test could pass without them.
    """
    assert not set(container) - _KNOWN - _PROBES, container
    context = container["securityContext"]
    assert set(context) == {
        "runAsUser",
        "allowPrivilegeEscalation",
        "readOnlyRootFilesystem",
        "capabilities",
        "seccompProfile",
    }
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    security = messages.LinuxContainerSecurityContext(
        namespace_options=namespaces(),
        capabilities=messages.Capability(
            add_capabilities=context["capabilities"].get("add", []), drop_capabilities=context["capabilities"]["drop"]
        ),
        run_as_user=messages.Int64Value(value=context["runAsUser"]),
        readonly_rootfs=context["readOnlyRootFilesystem"],
        no_new_privs=not context["allowPrivilegeEscalation"],
        seccomp=messages.SecurityProfile(profile_type=messages.RuntimeDefault),
    )
    volumes = {volume["name"]: volume["hostPath"] for volume in spec["volumes"]}
    return messages.ContainerConfig(
        metadata=messages.ContainerMetadata(name=container["name"]),
        image=messages.ImageSpec(image=image),
        command=container["command"],
        envs=[messages.KeyValue(key=key, value=value) for key, value in env.items()],
        mounts=[_mount(mount, volumes[mount["name"]], node) for mount in container["volumeMounts"]],
        log_path=f"{container['name']}.log",
        linux=messages.LinuxContainerConfig(security_context=security),
    )


def _mount(mount: dict[str, Any], volume: dict[str, str], node: Callable[[str], Path]) -> Any:
    if volume.get("type") == "DirectoryOrCreate":
        node(volume["path"]).mkdir(mode=0o755, parents=True, exist_ok=True)
    propagation = {"HostToContainer": messages.PROPAGATION_HOST_TO_CONTAINER, "None": messages.PROPAGATION_PRIVATE}
    return messages.Mount(
        container_path=mount["mountPath"],
        host_path=volume["path"],
        readonly=mount.get("readOnly", False),
        propagation=propagation[mount.get("mountPropagation", "None")],
    )
