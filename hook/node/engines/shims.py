"""containerd's shims: the OCI runtime that each running container calls for its lifetime."""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Iterator
from pathlib import Path

from hook.core.base.errors import ReassertError
from hook.core.container.identity import APP_TYPES, SANDBOX, Identity, identify
from hook.core.container.spec import Spec
from hook.node.artifacts.dispatchers import behind, real_of


def users(path: str, state: str) -> int:
    """Returns how many containers have a shim that calls this runtime. `state`: containerd's state directory.

    A shim gets the runtime when its container is created and stores it in the bundle (containerd's runtime/v2/runc).
    """
    found = set()
    for name, needle in (("options.json", f'"{path}"'), ("runtime", path)):
        for file in glob.glob(f"{state}/io.containerd.runtime.v2.task/*/*/{name}"):
            try:
                text = Path(file).read_text(errors="replace").strip()
            except OSError:  # the container has ended
                continue
            if text == needle or (needle in text and name == "options.json"):
                found.add(os.path.dirname(file))
    return len(found)


def called_for(container_id: str, state: str) -> str:
    """The real runtime that a container's shim calls; "" where it is gone, or was told none. `state`: as in `users`."""
    for bundle in glob.glob(f"{state}/io.containerd.runtime.v2.task/*/{glob.escape(container_id or '?')}"):
        try:
            binary = str(json.loads(Path(f"{bundle}/options.json").read_bytes()).get("binary_name", ""))
        except (OSError, ValueError, AttributeError):
            continue
        return behind(binary) if binary else ""
    return ""


def preexisting_pods(state: str) -> Iterator[Identity]:
    """Yields the pods whose runc shim does not call one of our dispatchers, with the identity of their containers."""
    for options in sorted(glob.glob(f"{state}/io.containerd.runtime.v2.task/k8s.io/*/options.json")):
        config = f"{os.path.dirname(options)}/config.json"
        try:
            binary = str(json.loads(Path(options).read_bytes()).get("binary_name", ""))
            identity = identify(Spec(Path(config).read_bytes(), config))
        except (OSError, ValueError, AttributeError, ReassertError):  # the pod has ended
            continue
        if identity.types == (SANDBOX,) and not (binary and real_of(binary)):
            yield Identity(identity.engine, True, namespace=identity.namespace, pod=identity.pod, types=APP_TYPES)


def listed(names: list[str]) -> str:
    """Returns the first ten names, for a message."""
    return ", ".join(names[:10]) + (", …" if len(names) > 10 else "")
