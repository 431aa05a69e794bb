"""Certificate authorities, and HTTPS servers on the loopback whose certificates they signed."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import IPv4Address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat


class Authority:
    """A CA with one server. `pem` and `key`: the CA's. `server`: the server's certificate and key, in one file."""

    def __init__(self, directory: Path, name: str, host: str = "localhost") -> None:
        self.name = name
        self.pem = directory / f"{name}.pem"
        self.key = directory / f"{name}.key"
        self.server = directory / f"{name}-server.pem"
        key, subject = ec.generate_private_key(ec.SECP256R1()), _named(f"{name} root")
        self.certificate = _signed(subject, subject, key.public_key(), key, x509.BasicConstraints(True, None))
        self.pem.write_bytes(self.certificate.public_bytes(Encoding.PEM))
        self.key.write_bytes(_private(key))
        own = ec.generate_private_key(ec.SECP256R1())
        served = _signed(_named(host), subject, own.public_key(), key, x509.BasicConstraints(False, None))
        self.server.write_bytes(served.public_bytes(Encoding.PEM) + _private(own))


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _named(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])


def _signed(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    by: ec.EllipticCurvePrivateKey,
    constraints: x509.BasicConstraints,
) -> x509.Certificate:
    now = datetime.now(UTC)
    number = x509.random_serial_number()
    built = x509.CertificateBuilder(issuer, subject, key, number, now - timedelta(hours=1), now + timedelta(days=30))
    built = built.add_extension(constraints, critical=True)
    if not constraints.ca:
        [host] = subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
        names = x509.SubjectAlternativeName([x509.DNSName(str(host.value)), x509.IPAddress(IPv4Address("127.0.0.1"))])
        built = built.add_extension(names, critical=False)
    return built.sign(by, hashes.SHA256())


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
