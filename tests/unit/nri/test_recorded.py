"""What containerd 1.7 and 2.1 really sent to a plugin, from Configure to a container. Cut anywhere, it is understood.

Recorded with a pod of a device plugin's value, a hostile image and an override of everything. Host names are blanked.
"""

from __future__ import annotations

from pathlib import Path

import marks
import pytest

from hook.nri import ttrpc
from hook.nri.creation import REMOVES_MOUNTS, identify, version_at_least
from hook.nri.ttrpc import PLUGIN, RUNTIME
from unit.nri.support import REQUEST, RESPONSE, running
from unit.nri.test_wire import fed
from unit.support import FIXTURES, document

pytestmark = marks.promise(
    "Recorded requests of containerd are read, split at any byte; no size, speed or malformed data "
    "disconnects the plugin or delays others"
)

GPU = {"name": "gpu", "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]}


@pytest.fixture(params=["1.7", "2.1"])
def recorded(request: pytest.FixtureRequest) -> bytes:
    """The bytes from the runtime to the plugin."""
    return (FIXTURES / "nri" / f"containerd-{request.param}.bin").read_bytes()


def calls(wire: bytes) -> dict[str, bytes]:
    """The last payload of each method."""
    requests = [ttrpc.read_request(message) for stream, message in fed([wire]) if stream == PLUGIN]
    return {request.method: request.payload for request in requests}


def test_cut_at_every_byte_it_is_the_same(recorded: bytes) -> None:
    whole = fed([recorded])
    for at in range(len(recorded)):
        assert fed([recorded[:at], recorded[at:]]) == whole
    assert RUNTIME in [stream for stream, _ in whole]  # that we are registered; 1.7 says so after Configure


def test_methods_and_who_the_container_is(recorded: bytes) -> None:
    found = calls(recorded)
    assert set(found) == {"Configure", "Synchronize", "CreateContainer"}
    configure = ttrpc.get("ConfigureRequest").FromString(found["Configure"])
    assert configure.runtime_name == "containerd"
    version = configure.runtime_version
    assert version_at_least("containerd", version, REMOVES_MOUNTS) is version.startswith("2.")
    synchronize = ttrpc.get("SynchronizeRequest").FromString(found["Synchronize"])
    assert "early" in [container.name for container in synchronize.containers]
    create = REQUEST.FromString(found["CreateContainer"])
    identity = identify(create.pod, create.container, "containerd")
    assert (identity.namespace, identity.pod, identity.container) == ("team-a", "web-1", "app")
    assert (identity.image, identity.labels) == ("reassert.test/hostile:1", {"tier": "web"})
    values = [entry for entry in create.container.env if entry.startswith("NVIDIA_VISIBLE_DEVICES=")]
    assert [value.partition("=")[2] for value in values] == ["all", "GPU-4", "all"]


def test_the_recorded_container_is_refused_for_its_duplicates_and_adjusted_without(
    recorded: bytes, root_dir: Path
) -> None:
    create = REQUEST.FromString(calls(recorded)["CreateContainer"])
    with running(root_dir, document(GPU)) as plugin:
        assert "occurs more than once" in plugin.peer.call("CreateContainer", create).status.message
        del create.container.env[-4:-1]
        create.container.env.append("NVIDIA_VISIBLE_DEVICES=all")
        create.container.env[:] = dict.fromkeys(create.container.env)
        answer = RESPONSE.FromString(plugin.peer.call("CreateContainer", create).payload)
        assert [(entry.key, entry.value) for entry in answer.adjust.env] == [("NVIDIA_VISIBLE_DEVICES", "void")]
