"""Where the images of each distribution keep their CA files, for `trust check`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hook.core.base.compare import clean

_OPENSSL, _BUNDLE, _JAVA = "OpenSSL: Python, Ruby, wget", "curl, git, Go, requests", "Java"
_EXTRACTED = "/etc/pki/ca-trust/extracted"


@dataclass(frozen=True)
class Image:
    """A distribution. `links`: symbolic links of its images. `reads`: programs, and the path that each reads."""

    name: str
    reads: Sequence[tuple[str, str]]
    links: Mapping[str, str] = field(default_factory=dict)


IMAGES = (
    Image(
        "Debian, Ubuntu",
        (
            (_BUNDLE, "/etc/ssl/certs/ca-certificates.crt"),
            (_OPENSSL, "/etc/ssl/certs"),
            (_JAVA, "/etc/ssl/certs/java/cacerts"),
        ),
    ),
    Image("distroless, scratch", (("Go, OpenSSL", "/etc/ssl/certs/ca-certificates.crt"),)),
    Image(
        "Alpine",
        (
            (_BUNDLE, "/etc/ssl/certs/ca-certificates.crt"),
            (_OPENSSL, "/etc/ssl/cert.pem"),
            (_JAVA, "/etc/ssl/certs/java/cacerts"),
        ),
        {"/etc/ssl/cert.pem": "/etc/ssl/certs/ca-certificates.crt"},
    ),
    Image(
        "RHEL 8 and 9, Amazon Linux",
        (
            (_BUNDLE, "/etc/pki/tls/certs/ca-bundle.crt"),
            (_OPENSSL, "/etc/pki/tls/cert.pem"),
            (_JAVA, "/etc/pki/java/cacerts"),
        ),
        {
            "/etc/ssl/certs": "/etc/pki/tls/certs",
            "/etc/pki/tls/cert.pem": f"{_EXTRACTED}/pem/tls-ca-bundle.pem",
            "/etc/pki/tls/certs/ca-bundle.crt": f"{_EXTRACTED}/pem/tls-ca-bundle.pem",
            "/etc/pki/java/cacerts": f"{_EXTRACTED}/java/cacerts",
        },
    ),
    Image(
        "Fedora 43, RHEL 10",
        (
            (_BUNDLE, f"{_EXTRACTED}/pem/tls-ca-bundle.pem"),
            (_OPENSSL, "/etc/ssl/certs"),
            (_JAVA, "/etc/pki/java/cacerts"),
        ),
        {
            "/etc/ssl/certs": f"{_EXTRACTED}/pem/directory-hash",
            "/etc/pki/java/cacerts": f"{_EXTRACTED}/java/cacerts",
        },
    ),
    Image(
        "SUSE",
        (
            (_BUNDLE, "/etc/ssl/ca-bundle.pem"),
            (_OPENSSL, "/etc/ssl/certs"),
            (_JAVA, "/var/lib/ca-certificates/java-cacerts"),
        ),
        {
            "/etc/ssl/certs": "/var/lib/ca-certificates/pem",
            "/etc/ssl/ca-bundle.pem": "/var/lib/ca-certificates/ca-bundle.pem",
        },
    ),
)

Mounts = Sequence[tuple[str, str]]
"""Paths in the container with the node's path that is mounted there, in the order of mounting."""


def source_of(path: str, image: Image, mounts: Mounts) -> str | None:
    """The node's path of what a program reads at a container's path; None if it is the image's own."""
    at = [_follow(destination, image.links) for destination, _ in mounts]
    current, source, rest = -1, "", ""
    parts = [part for part in clean(path).split("/") if part]
    prefix, number = "", 0
    while number < len(parts):
        prefix += f"/{parts[number]}"
        number += 1
        last = max((index for index, place in enumerate(at) if place == prefix), default=-1)
        if last > current:
            current, source, rest = last, mounts[last][1], "/".join(parts[number:])
        elif current < 0 and prefix in image.links:
            parts = [*clean(image.links[prefix]).strip("/").split("/"), *parts[number:]]
            prefix, number = "", 0
    if current < 0:
        return None
    return f"{source}/{rest}".rstrip("/")


def _follow(path: str, links: Mapping[str, str]) -> str:
    """A path with the image's links resolved, as the runtime does before it mounts there."""
    for link, target in links.items():
        if path == link or path.startswith(f"{link}/"):
            return _follow(target + path[len(link) :], links)
    return path
