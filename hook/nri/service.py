"""`reassert nri`: stays connected to the runtime's NRI socket, or serves the socket that a runtime started it with."""

from __future__ import annotations

import argparse
import atexit
import gc
import os
import socket
import stat
import time
from collections.abc import Callable
from typing import Any

from hook import __version__
from hook.core.base.errors import Usage, describe
from hook.core.base.system import make_directory, replace_file
from hook.nri.creation import Decider
from hook.nri.plugin import Plugin
from hook.nri.report import DISCONNECTED, Report
from hook.resident import oplog, service
from hook.resident.metrics import NoMetrics
from hook.resident.notifier import Notifier
from hook.resident.policy import Resident

NAME = "reassert"
INDEX = "10"

FIRST_PAUSE, ABSENT_PAUSE, LONGEST_PAUSE = 0.05, 0.2, 1.0
"""Seconds between two attempts to connect; at most ABSENT_PAUSE while no runtime listens: such an attempt is cheap.

Pauses are short, since a node on which the plugin is required refuses containers until the plugin is connected again.
"""

STABLE_AFTER = 1.0
"""Seconds after which a connection counts as good: when it ends, the pauses start at FIRST_PAUSE again."""

COMPILE_PATIENCE = 25.0

SILENCE = 5.0 + COMPILE_PATIENCE
"""Seconds without activity after which another program's watchdog takes the plugin for dead."""


def main(chosen: argparse.Namespace, metrics_of: Callable[[], NoMetrics]) -> int:
    """Serve for ever, or a single connection if a runtime started the plugin. Raises Usage, OSError.

    `metrics_of`: makes what counts.
    """
    service.check_paths(chosen)
    index = _checked(chosen.plugin_index or os.environ.get("NRI_PLUGIN_IDX", INDEX), "socket", chosen.socket)
    given = os.environ.get("NRI_PLUGIN_SOCKET", "")
    descriptor = _descriptor(given) if given else -1
    plugin = Service(chosen, index, Report(chosen.events, metrics_of()), Notifier())
    service.begin(plugin.stop)
    names = ("socket", "policy", "store", "events", "metrics", "textfile")
    settings = {name: getattr(chosen, name) for name in names}
    oplog.info("nri.started", version=__version__, index=index, launched=bool(given), **settings)
    gc.freeze()  # loaded objects stay: a collection in the middle of a request takes 0.1 ms instead of 40
    if given:
        return plugin.launched(descriptor)
    return plugin.connect_for_ever()


def beside(chosen: argparse.Namespace, metrics: NoMetrics) -> Service:
    """The plugin as a part of the agent, which handles its own socket, signals and systemd. Raises Usage."""
    index = _checked(chosen.plugin_index or INDEX, "nri-socket", chosen.nri_socket)
    options = argparse.Namespace(**{**vars(chosen), "socket": chosen.nri_socket})
    plugin = Service(options, index, Report(chosen.events, metrics), None)
    atexit.register(plugin.finish)
    return plugin


def _checked(index: str, option: str, path: str) -> str:
    if not (len(index) == 2 and index.isascii() and index.isdigit()):
        raise Usage(f"--plugin-index takes two digits, not {index!r}")
    if len(os.fsencode(path)) > service.SOCKET_PATH_BYTES or not path.startswith("/"):
        raise Usage(f"--{option} takes an absolute path of at most {service.SOCKET_PATH_BYTES} bytes, not {path!r}")
    return index


def _descriptor(given: str) -> int:
    """The socket that a runtime opened for the plugin. Raises Usage."""
    try:
        if stat.S_ISSOCK(os.fstat(int(given)).st_mode):
            return int(given)
    except (ValueError, OverflowError, OSError):
        pass
    raise Usage(
        f"NRI_PLUGIN_SOCKET={given!r} is not an open socket; a runtime that starts reassert sets this variable to 3"
    )


class Service:
    """The plugin's process: it manages connections, the policy's source and notifications to systemd."""

    def __init__(
        self,
        chosen: argparse.Namespace,
        index: str,
        report: Report,
        notifier: Notifier | None,
    ) -> None:
        """`notifier`: None where the plugin is a part of another program."""
        self._chosen = chosen
        self._index = index
        self._report = report
        self._decider = Decider(Resident(chosen.policy, chosen.store), report)
        self._decider.gvisor = frozenset(chosen.gvisor)
        self._notifier = notifier
        self._plugin: Plugin | None = None
        self._seen = time.monotonic()

    def connected(self) -> bool:
        """Returns whether a runtime asks the plugin about each container."""
        plugin = self._plugin
        return plugin is not None and plugin.connected.is_set()

    def healthy(self) -> bool:
        """Returns whether the plugin can read requests, or tries to connect."""
        return time.monotonic() - self._seen < SILENCE

    def _tick(self, healthy: Any) -> None:
        if healthy:
            self._seen = time.monotonic()
        resident = self._decider.resident
        policy = resident.get(0)  # compiles an edit in the background, so that no container has to wait
        self._report.metrics.policy(policy, resident.loaded_at)
        if self._notifier:
            self._notifier.tick(healthy)

    def stop(self, *_: object) -> None:
        """Ends the process, as the handler of a signal."""
        if self._notifier:
            self._notifier.say("STOPPING=1")
        self.finish()
        os._exit(0)

    def finish(self) -> None:
        """Write the events that were not written yet. Waits for that at most two seconds."""
        self._decider.pending.finish(1.0)
        self._report.close()
        if self._notifier:
            oplog.info("nri.stopped", version=__version__)
            oplog.close()

    def launched(self, descriptor: int) -> int:
        """Serve the socket that the runtime opened for the plugin, until the runtime closes it."""
        name = os.environ.get("NRI_PLUGIN_NAME", NAME)
        os.set_inheritable(descriptor, False)
        with socket.socket(fileno=descriptor) as connection:
            self._serve(connection, name)
        self._report.close()
        oplog.info("nri.stopped", version=__version__)
        return 0

    def connect_for_ever(self, sleep: Callable[[float], None] = time.sleep) -> int:
        """Connect and serve; connect again whenever the connection ends, after a pause (`sleep`)."""
        self._decider.resident.get(COMPILE_PATIENCE)
        pause, silent = FIRST_PAUSE, ""
        while True:
            connection = None
            try:
                connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                connection.connect(self._chosen.socket)
            except OSError as error:
                if connection:
                    connection.close()
                if describe(error) != silent:  # one event, not one for each attempt
                    silent = describe(error)
                    self._report.metrics.error("connection")
                    self._decider.tell(DISCONNECTED, "warning", f"{self._chosen.socket}: {silent}")
                self._tick(True)
                pause = min(pause, ABSENT_PAUSE)
                sleep(pause)
                pause *= 2
                continue
            began = time.monotonic()
            if self._serve(connection, NAME):
                silent = ""
                if time.monotonic() - began > STABLE_AFTER:
                    pause = FIRST_PAUSE
            sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    def _serve(self, connection: socket.socket, name: str) -> bool:
        """Serve one connection; returns whether the runtime configured the plugin."""
        self._plugin = plugin = Plugin(connection, self._decider, name=name, index=self._index)
        plugin.on_configure = self._configured
        plugin.on_connected = self._notifier.ready if self._notifier else plugin.on_connected
        plugin.on_tick = self._tick
        plugin.run()
        self._plugin = None
        return plugin.configured.is_set()

    def _configured(self, text: str) -> None:
        """Apply the runtime's configuration. `text`: a policy from its configuration directory, or ""."""
        if text.strip():
            path = f"{self._chosen.store}/nri-{self._index}.yaml"
            self._keep(path, text.encode())
            if self._decider.resident.source != path:
                self._decider.resident = Resident(path, self._chosen.store)
        elif self._decider.resident.source != self._chosen.policy:
            self._decider.resident = Resident(self._chosen.policy, self._chosen.store)
        self._decider.resident.get()

    def _keep(self, path: str, text: bytes) -> None:
        """Write the runtime's policy to a file in the store: it is checked, compiled and held back like any other."""
        make_directory(self._chosen.store, 0o700)
        try:
            with open(path, "rb") as file:
                if file.read() == text:
                    return
        except OSError:
            pass
        replace_file(path, text)
