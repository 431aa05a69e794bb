"""The containerd of k3s and RKE2, which write its config.toml at each start, from a template.

Source: k3s' pkg/agent/containerd/config.go at 06ea261c, from which RKE2 is built too. The base template of newer
releases imports `config-v3.toml.d/*.toml`, for a configuration of version 2 `config.toml.d/*.toml` (k3s-io/k3s#13680);
our drop-in goes there. An older base template imports nothing. There, a template of the administrator's is read
instead, which can include the base template but not add a key to one of its tables. So a first line with `imports` is
put into that template. Once k3s is upgraded, the base template has an `imports` too, and containerd does not start with
two: a drop-in of the unit then removes our line before the next attempt.
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path
from typing import Any, Self

from hook.node import systemd
from hook.node.change.files import Change, State, look
from hook.node.engines import toml
from hook.node.engines.base import Base, Choice, Wiring
from hook.node.engines.containerd.engine import OLDEST, Containerd
from hook.node.engines.containerd.files import FORMATS, Files
from hook.node.engines.containerd.settings import Dump
from hook.node.errors import NodeError

_TEMPLATES = list(dict.fromkeys(each.template for each in FORMATS.values()))
"""In the order in which k3s looks for them. k3s uses the first template that exists."""

_MARK = "{{/* reassert */}}"
_BASE = '{{ template "base" . }}\n'
_IMPORTS = re.compile(r"^[ \t]*imports[ \t]*=", re.MULTILINE)

_SECONDS = 300
"""The longest wait for k3s or RKE2, which start etcd and the API server before they are ready."""


class Rancher(Containerd):
    """The containerd that k3s or RKE2 starts."""

    units: tuple[str, str]
    directory: str
    """The data directory; another one (--data-dir) is not supported."""

    restart_note = "the kubelet restarts too, on a server also the API server; running pods stay"

    @classmethod
    def services(cls) -> tuple[str, ...]:
        """Returns the units of a server and of an agent; a node has one of them."""
        return cls.units

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
        known = [unit for unit in cls.units if systemd.is_active(unit)]
        known += [unit for unit in cls.units if systemd.load_state(unit) == "loaded"]
        found.service = (known or [cls.units[0]])[0]
        return found

    def read(self) -> Dump:
        """Returns the configuration that containerd has after the next start of the service."""
        generated = Path(self._config).read_bytes()
        text = toml.decode(generated)
        lines = [line for path in self._templates() for line in toml.decode(_content(path)).split("\n")]
        ours = [line for line in lines if line.startswith(_MARK)]
        if not ours or _IMPORTS.search(text):
            return self.dump(self._config)
        with tempfile.NamedTemporaryFile(prefix="reassert-", suffix=".toml") as file:
            rendered = ours[0].removeprefix(_MARK).partition("{{")[0]  # what k3s makes of our line
            file.write(toml.encode(rendered + "\n") + generated)
            file.flush()
            return self.dump(file.name)

    def files(self, dump: Dump, base: Base) -> Files:
        """Returns the configuration files. Raises NodeError."""
        if self.version[0] < 2:
            raise NodeError(
                f"{self.title}: containerd 1.x cannot be wired in {self.name}, because an import replaces all of the "
                f"CRI plugin's table; update {self.name} to a release with containerd 2 (1.31.6, 1.32.2 or later)"
            )
        directory = os.path.dirname(self._config)
        patterns = [str(each) for each in dump.get("imports") or [] if str(each).startswith(f"{directory}/")]
        return _Files.read(self._config, int(dump.get("version", 2)), patterns, base)

    def wire(self, now: Dump, choice: Choice, base: Base, notes: dict[str, Any]) -> Wiring:
        """As for containerd; beside a template, the drop-in of the unit that guards it."""
        wiring = super().wire(now, choice, base, notes)
        for path, _ in wiring.references:
            if path in self._templates():
                wiring.artifacts.append((f"/etc/systemd/system/{self.service}.d/reassert.conf", self._guard(path)))
        return wiring

    def strip(self, path: str, content: bytes, notes: dict[str, Any]) -> bytes | None:
        """Returns a template without our line; None if nothing but the base template is left."""
        if path not in self._templates():
            return super().strip(path, content, notes)
        lines = toml.decode(content).splitlines(keepends=True)
        left = "".join(line for line in lines if not line.startswith(_MARK))
        return None if left == _BASE else toml.encode(left)

    def restart(self) -> None:
        """Restarts the service, which generates the configuration and starts kubelet and containerd."""
        before = systemd.main_pid(self.service)
        systemd.run("daemon-reload")
        systemd.restart(self.service, wait=False)
        if not systemd.wait_until(lambda: systemd.main_pid(self.service) not in (0, before), _SECONDS):
            raise NodeError(f"{self.service} does not start again{systemd.last_lines(self.service)}")
        self.wait(_SECONDS)

    def _templates(self) -> list[str]:
        return [f"{os.path.dirname(self._config)}/{name}" for name in _TEMPLATES]

    def _guard(self, template: str) -> State:
        """Returns the drop-in of the unit. grep counts the lines with `imports` of the last generated config.toml."""
        count = f'grep -c "^[[:blank:]]*imports[[:blank:]]*=" {self._config} | grep -qvx "[01]"'
        text = (
            "# written by reassert (`reassert node`); do not edit\n"
            "# containerd does not start with two `imports`: one of the template's, one of a newer base template's.\n"
            f"[Service]\nExecStartPre=-/bin/sh -c '{count} && sed -i \"/^{{{{.. reassert/d\" {template}'\n"
        )
        return State(text.encode())

    def _state(self, now: Dump) -> str:
        return "/run/k3s/containerd"


class K3s(Rancher):
    """k3s, server or agent."""

    name = "k3s"
    units = ("k3s.service", "k3s-agent.service")
    directory = "/var/lib/rancher/k3s"
    programs = f"{directory}/data/current/bin"


class Rke2(Rancher):
    """RKE2, server or agent."""

    name = "rke2"
    units = ("rke2-server.service", "rke2-agent.service")
    directory = "/var/lib/rancher/rke2"
    programs = f"{directory}/bin"


class _Files(Files):
    """config.toml, which is never edited, and the directory of its template."""

    def drop_ins(self) -> str:
        """Returns the directory that newer base templates import, whether or not this one does."""
        return f"{os.path.dirname(self.main)}/{FORMATS[self.version].drop_ins}"

    def have_imported(self, path: str) -> tuple[list[Change], list[dict[str, Any]]]:
        """Returns the template with our line, unless the base template, or an administrator's, has the import."""
        directory = os.path.dirname(self.main)
        templates = [f"{directory}/{name}" for name in _TEMPLATES]
        usual = f"{directory}/{FORMATS[self.version].template}"
        template = next((path for path in templates if os.path.lexists(path)), usual)
        text = toml.decode(_content(template))
        if self.has_imports and not text.startswith(_MARK):
            if self.is_imported(path):
                return [], []
            raise NodeError(
                f"{self.main} has an `imports` that does not cover {path}, and a second one would stop containerd; "
                f'add "{os.path.dirname(path)}/*.toml" to it in {template} and restart the service'
            )
        state = self.base(template)
        without = _BASE if state is None else toml.decode(state.content)
        line = f'{_MARK}imports = ["{os.path.dirname(path)}/*.toml"]' + '{{ "\\n" }}\n'
        return [(template, self._state(template, line + without))], []


def _content(path: str) -> bytes:
    state = look(path)
    return state.content if state else b""
