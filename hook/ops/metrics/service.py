"""`--metrics ADDRESS` and `--textfile DIR` of the resident processes."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import socket
import socketserver
import stat
import sys
import threading
import time
from collections.abc import Callable
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler

from prometheus_client.exposition import ThreadingWSGIServer, make_wsgi_app

from hook.core.base.errors import Usage
from hook.core.base.system import replace_file
from hook.node.services import UNIX, check_address, check_directory
from hook.ops.metrics.log import LogCounter
from hook.ops.metrics.node import NodeState
from hook.ops.metrics.prometheus import Metrics
from hook.resident import oplog
from hook.resident.metrics import NoMetrics

FILE = "reassert.prom"
"""Name of the file for node_exporter's textfile collector, which reads `*.prom`."""

_COUNT, _WRITE = 5.0, 15.0
"""Seconds between two looks at the event log, and between two versions of the textfile."""


def start(options: argparse.Namespace, has_plugin: bool, all_adapters: bool) -> NoMetrics:
    """What counts, served as the options say. Raises Usage.

    `options`: metrics, textfile, policy, store, events. `has_plugin`: whether the NRI plugin is in this process.
    `all_adapters`: whether this process is the agent. The agent counts the other adapters from the event log, and it
    runs without metrics while the address is in use or the directory is missing: container starts wait for it.
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
        except Exception as error:  # what cannot be read must not hide the other metrics
            oplog.warning("metrics.unread", key=type(error), exc_info=error)
            metrics.error("metrics")
            metrics.forget()

    metrics.refresh = refresh
    if options.metrics:
        check_address(options.metrics)
    if options.textfile and not all_adapters:
        check_directory(options.textfile)

    def tell(text: str) -> None:
        """Say a problem; a repeated one is counted."""
        oplog.warning("metrics.failed", key=text, error=text)

    def is_served() -> bool:
        try:
            serve(metrics, options.metrics)
        except Usage as error:
            if not all_adapters:
                raise
            tell(str(error))
            return False
        return True

    def work(served: bool) -> None:
        written = -_WRITE
        while True:
            served = served or is_served()
            if options.textfile and time.monotonic() - written >= _WRITE:
                written = time.monotonic()
                write(metrics, options.textfile, tell)
            elif log:
                with contextlib.suppress(OSError), metrics.lock:
                    log.count()
            time.sleep(_COUNT)

    served = not options.metrics or is_served()
    if options.textfile or log:
        threading.Thread(target=work, args=(served,), name="metrics", daemon=True).start()
    return metrics


def write(metrics: Metrics, directory: str, tell: Callable[[str], None]) -> None:
    """Replace the file of a directory: node_exporter reads the old one or the new one."""
    try:
        replace_file(f"{directory}/{FILE}", metrics.text(), mode=0o644)
    except OSError as error:
        tell(f"--textfile: {directory}/{FILE}: {error.strerror or error}")


CONNECTIONS = 64
"""The most connections at once. One more ends the oldest, so connections that are held open keep no scrape away."""

SECONDS = 5.0
"""How long a connection may take, from accept(2) to the last byte of the answer."""


def serve(metrics: Metrics, address: str) -> None:
    """Answer HTTP at `127.0.0.1:PORT`, `[::1]:PORT` or `unix:/PATH`, in threads. Raises Usage."""
    where, path = check_address(address), address.removeprefix(UNIX)
    family = socket.AF_UNIX if where is None else socket.AF_INET6 if ":" in where[0] else socket.AF_INET
    mask = os.umask(0o177)
    try:
        if where is None and os.path.lexists(path):
            if not stat.S_ISSOCK(os.lstat(path).st_mode):
                raise Usage(f"--metrics {address}: {path} exists and is not a socket")
            os.unlink(path)  # left by an earlier process
        server = type("Server", (_Server,), {"address_family": family})(where or path, _Handler)
    except OSError as error:
        raise Usage(f"--metrics {address}: {error.strerror or error}; give another address") from None
    finally:
        os.umask(mask)
    server.set_app(make_wsgi_app(metrics.registry))
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    oplog.info("metrics.served", address=address)


class _Handler(WSGIRequestHandler):
    def log_message(self, *_: object) -> None:
        """Log nothing for a scrape."""

    def get_stderr(self) -> Any:
        """Takes the traceback of an answer that failed."""
        return _Traceback()


class _Traceback(io.StringIO):
    """Instead of a traceback, one line in the operation log."""

    def flush(self) -> None:
        """Called in the handler of the exception."""
        oplog.error("metrics.failed", key="answer", exc_info=sys.exc_info()[1])


class _Server(ThreadingWSGIServer):
    """prometheus_client's server, which has a thread for each connection, with bounds."""

    request_queue_size = 128

    def __init__(self, *arguments: Any) -> None:
        self._began: dict[socket.socket, float] = {}  # the oldest first
        super().__init__(*arguments)

    def server_bind(self) -> None:
        """As HTTPServer's, but without the address's name, for which that asks DNS."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = "localhost", 0
        self.setup_environ()

    def get_request(self) -> Any:
        """A connection. Those of a unix socket have no address, and the handler wants one."""
        return self.socket.accept()[0], ("", 0)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start its thread."""
        self._began[request] = time.monotonic()
        if len(self._began) > CONNECTIONS:
            self._end(next(iter(self._began)))
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        """End connections that take too long. `serve_forever` calls this twice a second."""
        for request, began in list(self._began.items()):
            if time.monotonic() - began > SECONDS:
                self._end(request)

    def shutdown_request(self, request: Any) -> None:
        """Its thread is done with it."""
        self._began.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, *_: object) -> None:
        """Log nothing for a client that disconnected early."""

    def _end(self, request: socket.socket) -> None:
        self._began.pop(request, None)
        with contextlib.suppress(OSError):  # its thread has closed it
            request.shutdown(socket.SHUT_RDWR)  # wakes its thread, which closes it
