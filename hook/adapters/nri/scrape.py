"""The metrics over HTTP, on a loopback port or a unix socket. Loaded only where somebody asks for it."""

from __future__ import annotations

import ipaddress
import os
import socket
import socketserver
import threading
from http.server import BaseHTTPRequestHandler

from hook.adapters.nri.metrics import Metrics
from hook.errors import Usage


def serve(metrics: Metrics, address: str) -> None:
    """Answer HTTP at `127.0.0.1:PORT`, `[::1]:PORT` or `unix:/PATH`, in a thread. Raises Usage, OSError."""

    class Handler(BaseHTTPRequestHandler):
        timeout = 5

        def do_GET(self) -> None:
            found = self.path in ("/", "/metrics")
            kind, text = metrics.text() if found else ("text/plain", b"try /metrics\n")
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            """A scrape is no event."""

        def address_string(self) -> str:
            return "client"

    server = _server(address, Handler)
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()


class _Inet(socketserver.ThreadingMixIn, socketserver.TCPServer):
    daemon_threads = True
    allow_reuse_address = True


class _Inet6(_Inet):
    address_family = socket.AF_INET6


class _Unix(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


def _server(address: str, handler: type[BaseHTTPRequestHandler]) -> socketserver.BaseServer:
    if address.startswith("unix:/"):
        path = address[len("unix:") :]
        if os.path.exists(path):
            os.unlink(path)
        mask = os.umask(0o177)
        try:
            return _Unix(path, handler)
        finally:
            os.umask(mask)
    host, _, port = address.rpartition(":")
    try:
        where = ipaddress.ip_address(host.strip("[]"))
        if not where.is_loopback:
            raise ValueError
        return (_Inet if where.version == 4 else _Inet6)((str(where), int(port)), handler)
    except ValueError:
        raise Usage(f"--metrics takes 127.0.0.1:PORT, [::1]:PORT or unix:/PATH, not {address!r}") from None
