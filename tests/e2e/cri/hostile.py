"""A pod whose author overrides what the node reserves, and what must come of it."""

from __future__ import annotations

CA_BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
TEXT = 'a "b"\n\tü\\ =c'

ENV = [
    ("NVIDIA_VISIBLE_DEVICES", "GPU-4"),
    ("NVIDIA_VISIBLE_DEVICES", "all"),
    ("REQUESTS_CA_BUNDLE", "/tmp/evil"),
    ("PYTHONHTTPSVERIFY", "0"),
    ("TEXT", TEXT),
]
"""As kubelet sends it: the device plugin's value first, then the pod's; the image has its own before both."""

RESERVED = {"NVIDIA_VISIBLE_DEVICES": "void", "REQUESTS_CA_BUNDLE": CA_BUNDLE}
"""What the node wants of these names: two values, and the third absent."""

OVERRIDDEN = {"NVIDIA_VISIBLE_DEVICES": "all", "REQUESTS_CA_BUNDLE": "/tmp/evil", "PYTHONHTTPSVERIFY": "0"}
"""What the pod's author wants."""


def reserved_in(environ: list[str]) -> dict[str, str]:
    """The entries under reserved names, none of which may be there twice."""
    found = [entry.partition("=") for entry in environ if entry.partition("=")[0] in OVERRIDDEN]
    assert len({name for name, _, _ in found}) == len(found), found
    return {name: value for name, _, value in found}


def assert_only_ours(mounts: list[tuple[str, str, str]]) -> None:
    """Of mounts at or below /etc/ssl, there is the node's and no other."""
    [(source, point, options)] = mounts
    assert source.endswith("/ca"), source
    assert (point, options.split(",")[0]) == ("/etc/ssl", "ro")
