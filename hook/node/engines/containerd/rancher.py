"""The containerd of k3s and RKE2, which write its config.toml at each start, from a template.

Source: k3s' pkg/agent/containerd/config.go at 2a1e2e8c, from which RKE2 is built too. The base template of newer
releases imports `config-v3.toml.d/*.toml`, for a configuration of version 2 `config.toml.d/*.toml` (k3s-io/k3s#13680);
our drop-in goes there. An older base template imports nothing. There, an administrator can have a template of his own
with that line; reassert 0.3 wrote one, which `strip` takes back.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from os.path import basename, dirname
from typing import Any, Self

from hook.node import systemd
from hook.node.change.files import Change
from hook.node.engines import toml
from hook.node.engines.base import Base
from hook.node.engines.containerd.config import ContainerdConfig
from hook.node.engines.containerd.daemon import OLDEST, Containerd
from hook.node.engines.containerd.files import FORMATS, Files
from hook.node.engines.facts import FACTS
from hook.node.errors import NodeError

_TEMPLATES = list(dict.fromkeys(each.template for each in FORMATS.values()))
"""In the order in which k3s looks for them. k3s uses the first template that exists."""

_MARK = "{{/* reassert */}}"
_BASE = '{{ template "base" . }}\n'
_SECONDS = 300
"""The longest wait for k3s or RKE2, which start etcd and the API server before they are ready."""


@dataclass(frozen=True)
class RancherConfig(ContainerdConfig):
    """The configuration of a containerd that k3s or RKE2 starts."""

    @property
    def state(self) -> str:
        """The state directory of containerd; with a template of version 2, an option of its command line."""
        return "/run/k3s/containerd"

    def files(self, base: Base) -> Files:
        """Returns the configuration files. Raises NodeError."""
        if self.version[0] < 2:
            raise NodeError(
                f"{self.title}: containerd 1.x cannot be wired in {self.engine}, because an import replaces all of the "
                f"CRI plugin's table; update {self.engine} to a release with containerd 2 (1.31.6, 1.32.2 or later)"
            )
        directory = dirname(self.file)
        patterns = [str(each) for each in self.dump.get("imports") or [] if str(each).startswith(f"{directory}/")]
        return _Files.read(self.file, int(self.dump.get("version", 2)), patterns, base, self.node)

    @staticmethod
    def strip(path: str, content: bytes, notes: dict[str, Any]) -> bytes | None:
        """Returns a template without the line of reassert 0.3; None if nothing but the base template is left."""
        if basename(path) not in _TEMPLATES:
            return ContainerdConfig.strip(path, content, notes)
        lines = toml.decode(content).splitlines(keepends=True)
        left = "".join(line for line in lines if not line.startswith(_MARK))
        return None if left == _BASE else toml.encode(left)


class Rancher(Containerd):
    """The containerd that k3s or RKE2 starts."""

    config_class = RancherConfig
    directory: str
    """The data directory; another one (--data-dir) is not supported."""

    service = ""  # `find` says which
    restart_note = "the kubelet restarts too, on a server also the API server; running pods stay"

    @classmethod
    def find(cls) -> Self:
        """Returns the containerd of the distribution. Raises NodeError if it has not been started yet."""
        config = f"{cls.directory}/agent/etc/containerd/config.toml"
        containerd = cls.which("containerd")
        if not os.path.exists(config) or containerd is None or not containerd.startswith(f"{cls.programs}/"):
            raise NodeError(
                f"{cls.directory} has no {'program of containerd' if os.path.exists(config) else config}: start "
                f"{cls.name} once; if it was told to use another engine (--container-runtime-endpoint), use "
                "--engine NAME"
            )
        found = cls(systemd.version_of(containerd, OLDEST), config, "/run/k3s/containerd/containerd.sock")
        found.title = f"{cls.name} ({found.title})"
        units = FACTS[cls.name].units  # a server's and an agent's; a node has one of them
        known = [unit for unit in units if systemd.is_active(unit)]
        known += [unit for unit in units if systemd.load_state(unit) == "loaded"]
        found.service = (known or [*units])[0]
        return found

    def restart(self) -> None:
        """Restarts the service, which generates the configuration and starts kubelet and containerd."""
        before = systemd.main_pid(self.service)
        systemd.run("daemon-reload")
        systemd.restart(self.service, wait=False)
        if not systemd.wait_until(lambda: systemd.main_pid(self.service) not in (0, before), _SECONDS):
            raise NodeError(f"{self.service} does not start again{systemd.last_lines(self.service)}")
        self.wait(_SECONDS)


class K3s(Rancher):
    """k3s, server or agent."""

    name = "k3s"
    directory = "/var/lib/rancher/k3s"
    programs = f"{directory}/data/current/bin"


class Rke2(Rancher):
    """RKE2, server or agent."""

    name = "rke2"
    directory = "/var/lib/rancher/rke2"
    programs = f"{directory}/bin"


class _Files(Files):
    """config.toml, which is never edited, and the directory of its template."""

    def drop_ins(self) -> str:
        """Returns the directory that newer base templates import, whether or not this one does."""
        return f"{dirname(self.main)}/{FORMATS[self.version].drop_ins}"

    def have_imported(self, path: str) -> tuple[list[Change], list[dict[str, Any]]]:
        """Returns no change: the base template, or an administrator's, has the import. Raises NodeError otherwise."""
        directory = dirname(self.main)
        templates = [f"{directory}/{name}" for name in _TEMPLATES]
        usual = f"{directory}/{FORMATS[self.version].template}"
        template = next((path for path in templates if not self.node.is_free(path)), usual)
        state = self.node.state(template)  # as it is, also where reassert 0.3 wrote it
        text = toml.decode(state.content) if state else ""
        if self.has_imports and not text.startswith(_MARK):
            if self.is_imported(path):
                return [], []
            raise NodeError(
                f"{self.main} has an `imports` that does not cover {path}, and a second one would stop containerd; "
                f'add "{dirname(path)}/*.toml" to it in {template} and restart the service'
            )
        first = f'imports = ["{dirname(path)}/*.toml"]'
        rest = "" if text else f", with `{_BASE.strip()}` below it"
        replaced = ", in place of that of reassert 0.3" if text.startswith(_MARK) else ""
        raise NodeError(
            f"the base template of {self.main} has no `imports`, so containerd reads no drop-in: update k3s or RKE2 "
            f"to a release that has it, or make this the first line of {template}{replaced}{rest}, and restart the "
            f"service: {first}"
        )
