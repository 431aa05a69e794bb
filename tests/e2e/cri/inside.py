"""Run `reassert verify`'s own function inside a node's namespaces: `inside.py PID REQUEST`.

Everything is loaded before the namespaces are entered; another Debian's root has no Python of this machine's.
"""

from __future__ import annotations

import ctypes
import encodings.ascii  # opening a file as ASCII would load it there
import encodings.idna  # and connecting to an address this
import json
import os
import sys
from types import SimpleNamespace

from hook.core.base.errors import ReassertError
from hook.core.policy import store
from hook.node.engines.base import Handler
from hook.node.probe.containers import ContainerStarter
from hook.node.probe.pods import PodStarter
from hook.node.probe.verify import probe, verify

assert all((encodings.ascii, encodings.idna))


def main(pid: str, request: str) -> int:
    asked = json.loads(request)
    policy = store.load(asked["policy"], asked["store"])
    handlers = [Handler(name, "runc", tuple(wired)) for name, wired in asked["wired"].items()]
    _enter(pid)
    if asked["socket"]:
        starter = PodStarter("containerd", asked["socket"], asked["image"])
    else:
        starter = ContainerStarter("docker")
    try:
        if asked["probe"]:
            for handler in handlers:
                probe(starter, handler.name)
            return 0
        # Of the engine only its name and title are asked for.
        engine = SimpleNamespace(name="engine", title="engine")
        return verify(engine, handlers, policy, starter, "json").status()  # type: ignore[arg-type]  # an Engine has more
    except (ReassertError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        starter.close()


def _enter(pid: str) -> None:
    """Its mount namespace for this process, and its pid namespace for a child, which goes on."""
    libc = ctypes.CDLL(None, use_errno=True)
    spaces = [os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC) for kind in ("pid", "mnt")]
    for fd in spaces:
        assert libc.setns(fd, 0) == 0, os.strerror(ctypes.get_errno())
    child = os.fork()
    if child:
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


if __name__ == "__main__":
    status = main(*sys.argv[1:])
    sys.stdout.flush()
    os._exit(status)
