"""Certificate authorities, and HTTPS servers on the loopback whose certificates they signed."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from unit.ops.trust.authority import ca


class Authority:
    """A CA with one server. `pem` and `key`: the CA's. `server`: the server's certificate and key, in one file."""

    def __init__(self, directory: Path, name: str, host: str = "localhost") -> None:
        self.name = name
        self.pem = directory / f"{name}.pem"
        self.key = directory / f"{name}.key"
        self.server = directory / f"{name}-server.pem"
        made = ca(f"{name} root", signer=ec.generate_private_key(ec.SECP256R1()))
        served = ca(host, by=made, signer=ec.generate_private_key(ec.SECP256R1()), is_ca=False, host=host)
        self.pem.write_bytes(made.pem)
        self.key.write_bytes(made.key_in(Encoding.PEM))
        self.server.write_bytes(served.pem + served.key_in(Encoding.PEM))


class _Handler(BaseHTTPRequestHandler):
    """Answers every request, and those of pip and npm. It has a git repository of one branch, as any web server can."""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        answers = {
            "/git/info/refs": b"%b\trefs/heads/main\n" % (b"a" * 40),
            "/git/HEAD": b"ref: refs/heads/main\n",
            "/simple/demo/": b"<!DOCTYPE html><a href=demo-1.0-py3-none-any.whl>demo-1.0-py3-none-any.whl</a>\n",
            "/-/ping": b"{}\n",
        }
        body = answers.get(path, b"hello\n")
        self.send_response(200)
        self.send_header("Content-Type", "text/html" if path.startswith("/simple/") else "text/plain")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, authority: Authority, port: int) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(authority.server)

    def finish_request(self, request: object, client_address: object) -> None:
        """The handshake is in the request's own thread: a client that leaves holds no other one up."""
        try:
            super().finish_request(self.context.wrap_socket(request, server_side=True), client_address)  # type: ignore[arg-type]  # a TLS socket for a socket
        except OSError:  # the client does not trust the certificate
            pass


@contextmanager
def serving(authority: Authority, port: int = 0) -> Iterator[int]:
    """A server with the authority's certificate. Gives its port: any, or the one that is named."""
    server = _Server(authority, port)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
