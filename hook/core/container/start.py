"""What a container would start with, or has. Part of the start path: builtins only."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from hook.core.base.jsontext import Strings

    Entries = list[str] | Strings
    """Env, as in OCI process.env."""

    Places = list[tuple[int, str, str | None]]
    """Position, name and value (None without `=`) of entries; in `Strings`, the position of the quote before it."""

    Json = dict[str, object]


class Start:
    """OCI's objects of one container, from a config.json, an NRI request, a pod's YAML or a running container.

    `env`: entries as in process.env. `mounts`, `devices`, `device_rules`: objects as in mounts, linux.devices and
    linux.resources.devices. `annotations`: by key. `pod_annotations`: the pod's, which only NRI shows.
    `shared_processes`: with whom it shares its processes, or "".

    None: this adapter does not see it. A kind that needs it then says "cannot tell" (`Outcome.cannot_tell`).
    """

    pod_annotations: "Mapping[str, str] | None" = None
    of_systemd = False
    """Whether systemd makes the container's cgroup, as far as this adapter sees it."""

    def __init__(
        self,
        env: "Entries",
        mounts: "list[Json]",
        annotations: "dict[str, str] | None" = None,
        devices: "list[Json] | None" = None,
        device_rules: "list[Json] | None" = None,
        shared_processes: "str | None" = None,
    ) -> None:
        self.env = env
        self.mounts = mounts
        self.annotations = annotations or {}
        self.devices = devices or []
        self.device_rules = device_rules or []
        self._shared_processes = shared_processes

    @property
    def shared_processes(self) -> "str | None":
        """See the class."""
        return self._shared_processes
