"""The containerd of this node: found by its command line, read by `containerd config dump`."""

from __future__ import annotations

import glob
import json
import os
import time
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from hook.core.base.jsontext import Malformed
from hook.core.facts.cri import call, pairs
from hook.core.policy.model import Policy, excluded
from hook.node import answers, systemd
from hook.node.engines import shims, toml
from hook.node.engines.base import CDI, HOOK, LOADED_SECONDS, NRI, RUNTIME, Daemon, Wiring
from hook.node.engines.containerd.config import ContainerdConfig
from hook.node.engines.containerd.files import FORMATS
from hook.node.engines.containerd.settings import Dump
from hook.node.engines.toml import Key
from hook.node.errors import NodeError
from hook.node.services import plugin_runs
from hook.node.systemd import option, strings_of
from hook.resident.terminal import counted

if TYPE_CHECKING:
    from hook.node.probe.starter import Starter

CONFIG = "/etc/containerd/config.toml"
OLDEST = (1, 6)
"""The oldest containerd that is supported."""

_PINNED: Key = ("plugins", "io.containerd.cri.v1.images", "pinned_images", "sandbox")


class Containerd(Daemon[ContainerdConfig]):
    """The containerd of this node.

    `config_file`: path of its configuration file. `address`: path of its socket.
    """

    name = "containerd"
    adapters = (RUNTIME, NRI, HOOK, CDI)
    service = "containerd.service"
    config_class = ContainerdConfig

    programs: str | None = None
    """The directory of containerd, ctr and the default runc, where PATH does not name it (k3s)."""

    def __init__(self, version: tuple[int, int, int], config_file: str, address: str) -> None:
        self.version = version
        self.title = f"containerd {'.'.join(map(str, version))}"
        self._config_file = config_file
        self._address = address

    @classmethod
    def find(cls) -> Self:
        """Returns the containerd of this node, by `containerd --version` and the running daemon's command line."""
        arguments = strings_of(systemd.main_pid(cls.service), "cmdline")
        config_file = option(arguments, "--config", "-c") or [CONFIG]
        address = option(arguments, "--address", "-a") or ["/run/containerd/containerd.sock"]
        return cls(systemd.version_of("containerd", OLDEST), config_file[-1], address[-1])

    @classmethod
    def which(cls, program: str) -> str | None:
        """Returns the absolute path of one of containerd's programs; None if there is none."""
        bundled = f"{cls.programs}/{program}"
        return bundled if cls.programs and os.access(bundled, os.X_OK) else systemd.which(program)

    # -- the configuration

    def read(self) -> ContainerdConfig:
        """Returns the effective configuration. Raises NodeError with containerd's message."""
        # Without a file, 1.x starts with its defaults, but `config dump` fails.
        return self.config_class(
            dump=self._dump(self._config_file if os.path.exists(self._config_file) else os.devnull),
            version=self.version,
            engine=self.name,
            title=self.title,
            file=self._config_file,
            address=self._address,
            plugin_runs=plugin_runs(),
            default_spec=lambda configured: _default_spec(configured, self._called("ctr")),
            programs=self.programs,
        )

    def _dump(self, config_file: str) -> Dump:
        """Returns the values that a configuration file and its imports have in containerd. Raises NodeError."""
        command = [self._called("containerd"), "--config", config_file, "config", "dump"]

        def run() -> str:
            return systemd.output(command, f"containerd does not accept {self._config_file}")

        shown = answers.ask(command, run, lambda text: _read_for(config_file, text))
        return toml.parse(shown, "containerd config dump")

    def loaded(self, config: ContainerdConfig) -> ContainerdConfig:
        """Returns the handlers of the running CRI plugin, which its Status names (`crictl info`). Raises NodeError."""
        deadline = time.monotonic() + LOADED_SECONDS
        while True:
            try:
                # StatusRequest{verbose = 1: true}, StatusResponse{map<string, string> info = 2}
                said = pairs(call(self._address, "Status", b"\x08\x01", deadline), 2)
                return config.with_runtimes(json.loads(said["config"])["containerd"]["runtimes"])
            except (OSError, Malformed, ValueError, LookupError, AttributeError) as error:
                if time.monotonic() > deadline:  # the plugin may not be ready yet
                    raise NodeError(f"{self.title} does not tell its handlers at {self._address}: {error}") from None
                time.sleep(0.1)

    def check(self, config: ContainerdConfig, wiring: Wiring) -> None:
        """Checks that `containerd config dump` prints exactly the expected values."""
        config.check(wiring)

    def restart(self) -> None:
        """Restarts containerd. Containers keep running: their shims are separate processes."""
        systemd.restart(self.service)
        self.wait(systemd.SECONDS)

    def wait(self, seconds: float) -> None:
        """Waits until containerd answers and its service is active. Raises NodeError."""
        asked = [self._called("ctr"), "--address", self._address, "version"]
        if not systemd.wait_until(lambda: systemd.command(asked).returncode == 0, seconds, 0.2):
            raise NodeError(f"containerd does not answer at {self._address}{systemd.last_lines(self.service)}")
        systemd.wait_active(self.service, seconds)

    # -- its containers

    def preexisting(self, config: ContainerdConfig, policy: Policy, hooked: bool) -> list[str]:
        """Returns a warning about pods whose sandbox has another BinaryName: the CRI plugin keeps using it there."""
        names = [
            f"{identity.namespace}/{identity.pod}"
            for identity in shims.preexisting_pods(config.state)
            if not excluded(policy, identity)
        ]
        if not names:
            return []
        becomes = "is refused if it lacks a reserved value" if hooked else "bypasses reassert"
        return [
            f"{counted(len(names), 'pod')} created before the install; until it is recreated (kubectl drain), a "
            f"container that starts in such a pod {becomes}: {shims.listed(names)}"
        ]

    def starter(self, config: ContainerdConfig) -> Starter:
        """Returns a starter of test pods, which run the sandbox image of the configuration."""
        from hook.node.probe.pods import PodStarter  # imports gRPC

        image = toml.get(config.dump, _PINNED) or toml.get(config.dump, (*FORMATS[2].cri, "sandbox_image"))
        return PodStarter(Containerd.name, self._address, str(image))

    def users(self, config: ContainerdConfig, path: str) -> int:
        """Returns how many running containers have a shim that calls this runtime."""
        return shims.users(path, config.state)

    def called_for(self, config: ContainerdConfig, container_id: str) -> str:
        """The value that its shim was started with."""
        return shims.called_for(container_id, config.state)

    def _called(self, program: str) -> str:
        """Returns the path of one of containerd's own programs, or its name, for a message that it is missing."""
        return self.which(program) or program


def _read_for(main: str, shown: str) -> set[str] | None:
    """The files that `config dump` reads, with all that is in the directories of imports.

    None for a pattern that releases of containerd understand in different ways: a relative one, or one of directories.
    `shown`: what it has printed, with the imports by default.
    """
    found: set[str] = {main}
    pending, parsed = [main], set[str]()
    patterns = [*toml.parse(shown, main).get("imports", [])]
    try:
        while pending:
            path = pending.pop()
            parsed.add(path)
            patterns += toml.parse(toml.decode(Path(path).read_bytes()), path).get("imports", [])
            for directory, name in (os.path.split(str(pattern)) for pattern in patterns):
                if not os.path.isabs(directory) or glob.has_magic(directory):
                    return None
                inside = [f"{directory}/{each}" for each in os.listdir(directory)]
                found |= {directory, *inside}
                pending += {each for each in inside if fnmatchcase(each, f"{directory}/{name}")} - parsed - {*pending}
    except (OSError, NodeError):
        return None
    return found


def _default_spec(configured: str, ctr: str) -> dict[str, Any]:
    """Returns the base_runtime_spec that the handler had, or containerd's default. `ctr`: containerd's client."""
    try:
        default = [ctr, "oci", "spec"]
        text = Path(configured).read_text() if configured else systemd.output(default, "`ctr oci spec` failed")
        spec = json.loads(text)
    except (OSError, ValueError) as error:
        raise NodeError(f"base_runtime_spec {configured}: {error}") from None
    if not isinstance(spec, dict):
        raise NodeError(f"base_runtime_spec {configured} is not an OCI spec")
    return spec
