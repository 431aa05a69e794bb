"""`--metrics ADDRESS` and `--textfile DIR` of the resident processes."""

from __future__ import annotations

import argparse
import contextlib
import sys
import threading
import time

from hook.adapters.nri.metrics import Metrics, NoMetrics
from hook.base.errors import Usage
from hook.base.system import replace_file
from hook.metrics.log import LogCounter
from hook.metrics.node import NodeState
from hook.metrics.options import check_address, check_directory
from hook.metrics.unchanged import UnchangedStarts

FILE = "reassert.prom"
"""Name of the file for node_exporter's textfile collector, which reads `*.prom`."""

_COUNT, _WRITE = 5.0, 15.0
"""Seconds between two looks at the event log, and between two versions of the textfile."""


def start(options: argparse.Namespace, has_plugin: bool, unchanged: UnchangedStarts | None) -> NoMetrics:
    """What counts, served as the options say. Raises Usage.

    `options`: metrics, textfile, policy, store, events. `has_plugin`: whether the NRI plugin is in this process.
    `unchanged`: counts what leaves no event, None where this process is not the agent. The agent counts the other
    adapters from the event log, and it runs without metrics while the address is in use or the directory is missing:
    container starts wait for it.
    """
    if not options.metrics and not options.textfile:
        return NoMetrics()
    metrics, all_adapters = Metrics(), unchanged is not None
    if not has_plugin:
        metrics.without_plugin()
    state = NodeState(metrics, options.policy, options.store, has_plugin)
    own = ("nri",) if has_plugin else ()
    log = LogCounter(options.events, options.store, metrics, own, unchanged) if all_adapters else None

    def refresh() -> None:
        try:
            if log:
                log.count()
            state.refresh()
        except Exception:  # what cannot be read must not hide the other metrics
            metrics.error("metrics")

    metrics.refresh = refresh
    if options.metrics:
        check_address(options.metrics)
    if options.textfile and not all_adapters:
        check_directory(options.textfile)
    work = _Work(metrics, options.textfile or "", log, options.metrics or "")
    work.serve(patient=all_adapters)
    if options.textfile or log:
        threading.Thread(target=work.run, name="metrics", daemon=True).start()
    return metrics


class _Work:
    """The thread that counts, and writes the textfile. `address`: what is not served yet."""

    def __init__(self, metrics: Metrics, directory: str, log: LogCounter | None, address: str = "") -> None:
        self._metrics = metrics
        self._directory = directory
        self._log = log
        self._address = address
        self._said: set[str] = set()

    def serve(self, patient: bool = True) -> None:
        """Serve the metrics at the address. If it is in use: raises Usage, or, if `patient`, says so once."""
        if not self._address:
            return
        from hook.adapters.nri.scrape import serve  # http.server: 3 MB, only with --metrics

        try:
            serve(self._metrics, self._address)
            self._address = ""
        except Usage as error:
            if not patient:
                raise
            self._say(str(error))

    def run(self) -> None:
        written = -_WRITE
        while True:
            self.serve()
            if self._directory and time.monotonic() - written >= _WRITE:
                written = time.monotonic()
                self.write()
            elif self._log:
                with contextlib.suppress(OSError), self._metrics.lock:
                    self._log.count()
            time.sleep(_COUNT)

    def write(self) -> None:
        """Replace the file: node_exporter reads the old one or the new one. A problem is said once."""
        try:
            replace_file(f"{self._directory}/{FILE}", self._metrics.text()[1], 0o644)
        except OSError as error:
            self._say(f"--textfile: {self._directory}/{FILE}: {error.strerror or error}")

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            print(f"reassert: {text}", file=sys.stderr)
