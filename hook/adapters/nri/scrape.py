"""Serves the metrics over HTTP, on a loopback port or a unix socket. Loaded only with --metrics."""

from __future__ import annotations

import os
import socket
import socketserver
import stat
import threading
from http.server import BaseHTTPRequestHandler
from typing import Any

from hook.adapters.nri.metrics import Metrics
from hook.base.errors import Usage
from hook.metrics.options import UNIX, check_address

CONNECTIONS = 8
"""How many connections are served at once. Further ones are closed without a reply."""


def serve(metrics: Metrics, address: str) -> None:
    """Answer HTTP at `127.0.0.1:PORT`, `[::1]:PORT` or `unix:/PATH`, in a thread. Raises Usage."""

    class Handler(BaseHTTPRequestHandler):
        timeout = 5

        def do_GET(self) -> None:
            known = self.path.partition("?")[0] in ("/", "/metrics")
            kind, text = metrics.text() if known else ("text/plain", b"try /metrics\n")
            self.send_response(200 if known else 404)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            """Log nothing for a scrape."""

        def address_string(self) -> str:
            return "client"

    try:
        server = _server(address, Handler)
    except OSError as error:
        raise Usage(f"--metrics {address}: {error.strerror or error}; give another address") from None
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()


class _Bounded(socketserver.ThreadingMixIn):
    """A thread for each connection, up to CONNECTIONS: no client can use up the plugin's file descriptors."""

    daemon_threads = True
    request_queue_size = 16

    def __init__(self, *arguments: Any) -> None:
        self._free = threading.Semaphore(CONNECTIONS)
        super().__init__(*arguments)

    def verify_request(self, *_: object) -> bool:
        return self._free.acquire(blocking=False)

    def process_request(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread can be started
            self._free.release()
            raise

    def handle_error(self, *_: object) -> None:
        """Log nothing for a client that disconnected early."""

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()


class _Inet(_Bounded, socketserver.TCPServer):
    allow_reuse_address = True


class _Inet6(_Inet):
    address_family = socket.AF_INET6


class _Unix(_Bounded, socketserver.UnixStreamServer):
    pass


def _server(address: str, handler: type[BaseHTTPRequestHandler]) -> socketserver.BaseServer:
    where = check_address(address)
    if where is None:
        path = address.removeprefix(UNIX)
        if os.path.lexists(path):
            if not stat.S_ISSOCK(os.lstat(path).st_mode):
                raise Usage(f"--metrics {address}: {path} exists and is not a socket")
            os.unlink(path)  # left by an earlier plugin process
        mask = os.umask(0o177)
        try:
            return _Unix(path, handler)
        finally:
            os.umask(mask)
    return (_Inet6 if ":" in where[0] else _Inet)(where, handler)
