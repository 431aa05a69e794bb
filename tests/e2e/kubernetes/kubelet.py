"""What kubelet makes of a rendered pod: CRI configuration and volumes, for the fields that the chart uses."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from e2e.cri.client import Container, CriError, call, key_values, messages, namespaces

_OF_THE_KERNEL = {"name", "command", "args", "env", "securityContext", "volumeMounts"}
_OTHERS = {"image", "imagePullPolicy", "resources", "readinessProbe", "livenessProbe"}

Described = dict[str, Any]


def container_config(described: Described, image: str, volumes: dict[str, str], env: dict[str, str]) -> Any:
    """The ContainerConfig of a container. `volumes`: paths on the node. `env`: goes before the container's own.

    Refuses fields that it does not know, or a test could pass without them.
    """
    assert not set(described) - _OF_THE_KERNEL - _OTHERS, described
    own = {entry["name"]: entry["value"] for entry in described.get("env", [])}
    return messages.ContainerConfig(
        metadata=messages.ContainerMetadata(name=described["name"]),
        image=messages.ImageSpec(image=image),
        command=described["command"],
        args=described.get("args", []),
        envs=key_values({**own, **env}.items()),
        mounts=[_mount(mount, volumes[mount["name"]]) for mount in described["volumeMounts"]],
        log_path=f"{described['name']}.log",
        linux=messages.LinuxContainerConfig(security_context=_security(described["securityContext"])),
    )


def _security(context: Described) -> Any:
    if context.get("privileged"):
        assert set(context) == {"privileged", "readOnlyRootFilesystem"}
        return messages.LinuxContainerSecurityContext(
            namespace_options=namespaces(host_pid=True),
            privileged=True,
            readonly_rootfs=context["readOnlyRootFilesystem"],
        )
    needed = {"runAsUser", "allowPrivilegeEscalation", "readOnlyRootFilesystem", "capabilities", "seccompProfile"}
    assert set(context) == needed
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    capabilities = context["capabilities"]
    return messages.LinuxContainerSecurityContext(
        namespace_options=namespaces(),
        capabilities=messages.Capability(
            add_capabilities=capabilities.get("add", []), drop_capabilities=capabilities["drop"]
        ),
        run_as_user=messages.Int64Value(value=context["runAsUser"]),
        readonly_rootfs=context["readOnlyRootFilesystem"],
        no_new_privs=not context["allowPrivilegeEscalation"],
        seccomp=messages.SecurityProfile(profile_type=messages.RuntimeDefault),
    )


def _mount(mount: Described, source: str) -> Any:
    propagation = {"HostToContainer": messages.PROPAGATION_HOST_TO_CONTAINER, "None": messages.PROPAGATION_PRIVATE}
    return messages.Mount(
        container_path=mount["mountPath"],
        host_path=source,
        readonly=mount.get("readOnly", False),
        propagation=propagation[mount.get("mountPropagation", "None")],
    )


def host_path(volume: Described, node: Callable[[str], Path]) -> str:
    """The path of a hostPath volume. `node`: where a path of the node is from here."""
    path: str = volume["hostPath"]["path"]
    if volume["hostPath"].get("type") == "DirectoryOrCreate":
        node(path).mkdir(mode=0o755, parents=True, exist_ok=True)
    return path


class ConfigMapVolume:
    """A ConfigMap's volume as kubelet's AtomicWriter lays it out: a directory that all may write, two links deep."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True)
        directory.chmod(0o777)

    def write(self, data: dict[str, str]) -> None:
        """What the ConfigMap holds now."""
        link = self.directory / "..data"
        old = self.directory / link.readlink() if link.is_symlink() else None
        new = self.directory / f"..{uuid.uuid4().hex}"
        new.mkdir(mode=0o755)
        for name, text in data.items():
            (new / name).write_text(text)
            (new / name).chmod(0o644)
            if not (self.directory / name).is_symlink():
                (self.directory / name).symlink_to(f"..data/{name}")
        (self.directory / "..data_tmp").symlink_to(new.name)
        (self.directory / "..data_tmp").rename(link)
        if old:
            shutil.rmtree(old)


def probe(container: Container, described: Described, kind: str) -> tuple[bool, str]:
    """Whether an exec probe succeeds, and what it says; the engine may be away just now."""
    request = messages.ExecSyncRequest(container_id=container.id, cmd=described[kind]["exec"]["command"], timeout=60)
    try:
        answer = call(container.cri.runtime.ExecSync, request)
    except CriError as error:
        return False, str(error)
    return answer.exit_code == 0, (answer.stdout + answer.stderr).decode()
