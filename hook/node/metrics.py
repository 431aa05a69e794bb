"""What `--metrics` and `--textfile` take, for the resident processes and for `node install`."""

from __future__ import annotations

import ipaddress
import os

from hook.core.base.errors import Usage

UNIX = "unix:"


def check_address(address: str) -> tuple[str, int] | None:
    """Host and port of --metrics, None for a socket (`unix:/PATH`). Raises Usage, also for what is not loopback."""
    if address.startswith(f"{UNIX}/"):
        return None
    host, _, port = address.rpartition(":")
    try:
        where = ipaddress.ip_address(host.strip("[]"))
        if not where.is_loopback or not 0 <= int(port) < 1 << 16:
            raise ValueError
        return str(where), int(port)
    except ValueError:
        raise Usage(f"--metrics takes 127.0.0.1:PORT, [::1]:PORT or unix:/PATH, not {address!r}") from None


def check_directory(path: str) -> None:
    """Raises Usage unless --textfile names a directory."""
    if not path.startswith("/") or not os.path.isdir(path):
        what = "is not an absolute path" if path[:1] != "/" else "is not a directory; create it, or correct the path"
        raise Usage(f"--textfile takes the directory of node_exporter's textfile collector: {path!r} {what}")
