"""Configurations of containerd, as administrators write them: one for each format that its versions read."""

from __future__ import annotations

import os
from dataclasses import dataclass

CONFIG = "/etc/containerd/config.toml"

SANDBOX_IMAGE = "registry.example/mirror/pause:3.9"
"""Named in every configuration; nothing is ever pulled."""

_HEAD_2 = """\
# containerd on worker nodes. Changes go through the platform team.
version = 2

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}" # mirrored, so that a node needs no internet

  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "{default}"
"""

_HEAD_3 = """\
# containerd on worker nodes. Changes go through the platform team.
version = 3

[plugins.'io.containerd.cri.v1.images']
  snapshotter = 'overlayfs'

  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = '{pause}' # mirrored, so that a node needs no internet

[plugins.'io.containerd.cri.v1.runtime'.containerd]
  default_runtime_name = '{default}'
"""

_HANDLER = """
    # {comment}
    [plugins."{plugin}".containerd.runtimes.{name}]
      runtime_type = "{type}"
{more}
      [plugins."{plugin}".containerd.runtimes.{name}.options]
        {options}
"""

_NRI = """
[plugins."io.containerd.nri.v1.nri"]
  disable = {disable}
"""

_RUNTIME_PLUGIN = {2: "io.containerd.grpc.v1.cri"}

FORMATS = {"bookworm": 2, "trixie": 2, "forky": int(os.environ.get("REASSERT_TEST_FORMAT", "3")), "sid": 3}
"""Of config.toml, by suite: containerd 1.6, 1.7 and 2.1, or the one of tests/lab/engines/run.sh."""

SUITES = ("bookworm", "forky", "trixie")
"""Those of the tests of containerd. sid has the same containerd as forky: test_today.py has its other engines."""


@dataclass(frozen=True)
class Handler:
    """A runtime handler. `options` and `more`: lines of TOML in its tables."""

    name: str
    options: str
    comment: str
    type: str = "io.containerd.runc.v2"
    more: str = ""


RUNC = Handler("runc", "SystemdCgroup = false", "kubelet: cgroupDriver cgroupfs")
CRUN = Handler("crun", 'BinaryName = "/usr/bin/crun"', "RuntimeClass crun: faster starts, for batch jobs")


def containerd_config(
    version: int, handlers: tuple[Handler, ...] = (RUNC, CRUN), nri: bool | None = None, more: str = ""
) -> str:
    """A config.toml.

    `version`: of the format, from 2 on. `handlers`: the first is the default one. `nri`: on or off, None where nothing
    is said of it. `more`: what follows.
    """
    head = _HEAD_2 if version == 2 else _HEAD_3.replace("version = 3", f"version = {version}")
    parts = [head.format(pause=SANDBOX_IMAGE, default=handlers[0].name)]
    parts += [handler_config(version, handler) for handler in handlers]
    if nri is not None:
        parts.append(_NRI.format(disable=str(not nri).lower()))
    return "".join(parts) + more


def handler_config(version: int, handler: Handler) -> str:
    """The part of a config.toml that is a handler's."""
    return _HANDLER.format(plugin=_RUNTIME_PLUGIN.get(version, "io.containerd.cri.v1.runtime"), **vars(handler))
