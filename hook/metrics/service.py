"""`--metrics ADDRESS` and `--textfile DIR` of the resident processes."""

from __future__ import annotations

import argparse
import contextlib
import sys
import threading
import time

from hook.adapters.nri.metrics import Metrics, NoMetrics
from hook.base.system import replace_file
from hook.metrics.log import LogCounter
from hook.metrics.node import NodeState
from hook.metrics.options import check_directory

FILE = "reassert.prom"
"""Name of the file for node_exporter's textfile collector, which reads `*.prom`."""

_COUNT, _WRITE = 5.0, 15.0
"""Seconds between two looks at the event log, and between two versions of the textfile."""


def start(options: argparse.Namespace, has_plugin: bool, all_adapters: bool) -> NoMetrics:
    """What counts, served as the options say. Raises Usage.

    `options`: metrics, textfile, policy, store, events. `has_plugin`: whether the NRI plugin is in this process.
    `all_adapters`: whether this process counts the other adapters from the event log.
    """
    if not options.metrics and not options.textfile:
        return NoMetrics()
    metrics = Metrics()
    if not has_plugin:
        metrics.without_plugin()
    state = NodeState(metrics, options.policy, options.store, has_plugin)
    own = ("nri",) if has_plugin else ()
    log = LogCounter(options.events, options.store, metrics, own) if all_adapters else None

    def refresh() -> None:
        try:
            if log:
                log.count()
            state.refresh()
        except Exception:  # what cannot be read must not hide the other metrics
            metrics.error("metrics")

    metrics.refresh = refresh
    if options.metrics:
        from hook.adapters.nri.scrape import serve  # http.server: 3 MB, only with --metrics

        serve(metrics, options.metrics)
    if options.textfile:
        check_directory(options.textfile)
    if options.textfile or log:
        work = _Work(metrics, options.textfile or "", log)
        threading.Thread(target=work.run, name="metrics", daemon=True).start()
    return metrics


class _Work:
    """The thread that counts, and writes the textfile."""

    def __init__(self, metrics: Metrics, directory: str, log: LogCounter | None) -> None:
        self._metrics = metrics
        self._directory = directory
        self._log = log
        self._said = ""

    def run(self) -> None:
        written = -_WRITE
        while True:
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
            self._said = ""
        except OSError as error:
            said = f"{self._directory}/{FILE}: {error.strerror or error}"
            if said != self._said:
                self._said = said
                print(f"reassert: --textfile: {said}", file=sys.stderr)
