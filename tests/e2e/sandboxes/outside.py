"""What is outside of the sandboxes: a web server, and proxies that lead to it, in a network namespace of their own.

    unshare --net --mount --propagation private python -m e2e.sandboxes.outside DIRECTORY PID

The network namespace of the process PID gets one interface. Nothing answers on it but the proxies, which ask for USER:

PROXY intercepts TLS, and signs with the CA proxy.pem. ATTACKER does the same with attacker.pem. PUBLIC passes TLS on to
the web server, whose certificate web.pem signed, as a public CA would. The next three ports are the same without a
password. The CAs are written to DIRECTORY.

It is proxy.py of PyPI: one wheel of 0.2 MB, without dependencies. (mitmproxy is 42 wheels of 23 MB, and those that
Debian 12's Python can load are old.) The program prints `ready` when all listen, and ends with its standard input.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from harness.tools import run

from e2e.cri.client import wait_for
from e2e.trust.authorities import Authority, serving

HOST = "web.example"
ADDRESS = "10.77.0.1"
PORTS = {"proxy": 3128, "attacker": 3129, "public": 3130}
WITHOUT_PASSWORD = 10
"""Is added to a port."""

PASSWORD = "s3cret"
USER = f"sandbox:{PASSWORD}"


def url(name: str) -> str:
    """What HTTPS_PROXY is for one of PORTS."""
    return f"http://{USER}@{ADDRESS}:{PORTS[name]}"


def proxy(directory: Path, port: int, web: Authority, by: Authority | None, user: str) -> subprocess.Popen[bytes]:
    """Start a proxy. `by`: it intercepts TLS with this CA; None: it passes TLS on."""
    command = [sys.executable, "-m", "proxy", "--hostname", ADDRESS, "--port", str(port), "--timeout", "60"]
    command += ["--num-acceptors", "1", "--num-workers", "1", "--data-dir", str(directory / f"{port}")]
    if user:
        command += ["--basic-auth", user]
    if by:
        command += ["--ca-cert-file", str(by.pem), "--ca-key-file", str(by.key), "--ca-file", str(web.pem)]
        command += ["--ca-signing-key-file", str(web.key), "--ca-cert-dir", str(directory / f"{port}-made")]
    with (directory / f"proxy-{port}.log").open("wb") as log:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def listens(port: int) -> bool:
    """Whether something accepts connections there."""
    with socket.socket() as connection:
        return connection.connect_ex((ADDRESS, port)) == 0


def main(directory: Path, pid: str) -> None:
    """Until standard input ends."""
    (directory / "hosts").write_text(f"127.0.0.1 localhost {HOST}\n")
    run("mount", "--bind", str(directory / "hosts"), "/etc/hosts")
    run("ip", "link", "set", "lo", "up")
    run("ip", "link", "add", "sandboxes", "type", "veth", "peer", "name", "outside", "netns", pid)
    for prefix, device, address in (
        ((), "sandboxes", ADDRESS),
        (("nsenter", "--target", pid, "--net"), "outside", "10.77.0.2"),
    ):
        run(*prefix, "ip", "address", "add", f"{address}/24", "dev", device)
        run(*prefix, "ip", "link", "set", device, "up")
    authorities = {name: Authority(directory, name, HOST) for name in ("web", "proxy", "attacker")}
    signers = {"proxy": authorities["proxy"], "attacker": authorities["attacker"], "public": None}
    with serving(authorities["web"], 443), ExitStack() as stack:
        ports = []
        for name, by in signers.items():
            for more, user in ((0, USER), (WITHOUT_PASSWORD, "")):
                ports.append(PORTS[name] + more)
                process = proxy(directory, ports[-1], authorities["web"], by, user)
                stack.callback(process.wait)
                stack.callback(process.terminate)
        wait_for(lambda: all(map(listens, ports)), "the proxies")
        print("ready", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
