"""A pod's directories by way of the hook, in the node's mount namespace and in the container's."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import marks
import pytest
from harness.bundle import Bundle
from harness.container import Running
from harness.node import Node
from harness.paths import RUNTIMES
from harness.tools import need, run

from e2e.runtimes import EACH, guarded, real_runtime
from hook.core.linux.volumes import sweep
from hook.core.reserve.volumes import in_memory

POD = "11111111-2222-3333-4444-555555555555"
POLICY = """\
apiVersion: reassert/v1
kind: NodePolicy
spec:
  kubelet: {root: ROOT}
  rules:
  - {name: disk, mounts: [{emptyDir: {}, mountPath: /disk}]}
  - {name: memory, match: {containerNames: [m*]}, mounts: [{emptyDir: {medium: Memory}, mountPath: /memory}]}
"""


@pytest.fixture
def kubelet(node: Node) -> Iterator[Path]:
    """kubelet's root directory, with that of one pod."""
    root = node.directory / "kubelet"
    (root / "pods" / POD).mkdir(parents=True)
    node.compile(POLICY.replace("ROOT", str(root)))
    yield root
    shutil.rmtree(root / "pods")
    sweep(str(root / "pods"))
    with contextlib.suppress(FileNotFoundError):
        Path(in_memory(str(root / "pods"))).rmdir()


def bundles(node: Node, *names: str, **more: str) -> list[Bundle]:
    """Containers of the pod. `more`: annotations, or their type."""
    made = [Bundle(node.directory / "k8s.io" / name) for name in names]
    for bundle, name in zip(made, names, strict=True):
        bundle.pod(container=name, **more)
        bundle.save()
    return made


@pytest.mark.parametrize("stage", ["createRuntime", "createContainer"])
@pytest.mark.parametrize("runtime", sorted(RUNTIMES))
@pytest.mark.usefixtures("kubelet")
def test_the_hook_alone_makes_and_mounts_it(node: Node, runtime: str, stage: str) -> None:
    one, two, three, four = bundles(node, "one", "two", "m1", "m2")
    with guarded(stage, RUNTIMES[runtime], node, one) as first, guarded(stage, RUNTIMES[runtime], node, two) as second:
        first.exec("/bin/sh", "-c", "echo mine > /disk/file")
        assert second.exec("/bin/cat", "/disk/file") == "mine\n"
    if stage == "createContainer":
        refused = guarded(stage, RUNTIMES[runtime], node, three)
        assert refused.create() != 0
        assert "a createContainer hook cannot mount on the node" in str(node.logged()[-1])
        return
    with (
        guarded(stage, RUNTIMES[runtime], node, three) as first,
        guarded(stage, RUNTIMES[runtime], node, four) as second,
    ):
        first.exec("/bin/sh", "-c", "echo mine > /memory/file")
        assert second.exec("/bin/cat", "/memory/file") == "mine\n"


@pytest.mark.usefixtures("kubelet")
def test_gvisors_containers_share_it(node: Node) -> None:
    """Two sandboxes: runsc looks for the sandbox of a container that is none."""
    need(os.access("/usr/bin/runsc", os.X_OK), "runsc")
    real = node.directory / "runsc"
    real.write_text('#!/bin/sh\nexec /usr/bin/runsc --platform=ptrace --network=none --ignore-cgroups "$@"\n')
    real.chmod(0o755)
    one, two = bundles(node, "m1", "m2", type="sandbox")
    with Running(node.dispatcher(str(real)), one) as first, Running(node.dispatcher(str(real)), two) as second:
        first.exec("/bin/sh", "-c", "echo mine > /disk/file; echo mine > /memory/file")
        assert second.exec("/bin/cat", "/disk/file", "/memory/file") == "mine\nmine\n"


EXCHANGED = """#!/bin/sh
# A container with a volume of the pods puts a link there just before the runtime mounts, and takes it away after that.
case "$*" in *create*) mv DISK DISK.kept; ln -s TARGET DISK ;; esac
exec REAL "$@"
"""


@marks.claim("empty-dir", "runtime")
@marks.hole(
    "A container with a volume of kubelet's pods exchanged a rule's `emptyDir` and a link while another one "
    "started: any directory of the node became its writable reserved mount",
    since="0.4.0",
    fixed="0.4.0",
    severity="high",
)
@pytest.mark.parametrize("each", EACH)
@pytest.mark.parametrize("above", ["", ", volumesAbove: Allow"])
def test_what_a_link_led_to_while_the_runtime_mounted_refuses_the_container(
    node: Node, kubelet: Path, directory: Path, each: str, above: str
) -> None:
    node.compile(POLICY.replace("ROOT", str(kubelet)).replace("mountPath: /disk", f"mountPath: /disk{above}"))
    one, two = bundles(node, "one", "two")
    real = real_runtime(each, node.directory)
    with Running(node.dispatcher(real), one):
        pass
    [disk] = (kubelet / "pods" / POD / "reassert").iterdir()
    target, engine, back = directory / "target", directory / "engine", directory / "back"
    target.mkdir()
    engine.write_text(EXCHANGED.replace("DISK", str(disk)).replace("TARGET", str(target)).replace("REAL", real))
    back.write_text(f"#!/bin/sh\ncat > /dev/null\nrm {disk}\nmv {disk}.kept {disk}\n")
    for file in (engine, back):
        file.chmod(0o755)
    two.spec["hooks"] = {"createRuntime": [{"path": str(back), "env": ["PATH=/usr/bin:/bin"]}]}
    two.save()
    refused = Running(node.dispatcher(str(engine)), two)
    assert refused.create() != 0
    run(real, "delete", "--force", refused.id, check=False)
    assert "a link was there when the runtime mounted it" in str(node.logged()[-1])


OTHER = POD.replace("1111", "2222", 1)


@marks.hole(
    "A container with a read-only hostPath above /run/reassert wrote to another pod's emptyDir in memory",
    since="0.4.0",
    fixed="0.4.0",
    severity="medium",
)
@pytest.mark.parametrize("runtime", sorted(RUNTIMES))
@pytest.mark.parametrize("options", [("ro",), ("ro", "rslave"), ("rw",)], ids=",".join)
def test_another_pod_does_not_write_to_one_in_memory(
    node: Node, kubelet: Path, runtime: str, options: tuple[str, ...]
) -> None:
    """By a hostPath above, which has reassert's tmpfs as a submount: kubelet's `readOnly` does not reach it."""
    (kubelet / "pods" / OTHER).mkdir()
    dispatcher = node.dispatcher(RUNTIMES[runtime])
    pods = in_memory(str(kubelet / "pods"))
    (one, later), (other,) = bundles(node, "m1", "m2"), bundles(node, "other")
    other.pod(container="other", name="q", **{"io.kubernetes.cri.sandbox-uid": OTHER})
    other.bind("/run", "/host", *options)
    other.save()
    write = f'for file in /host/{pods[5:]}/*/*/*; do echo theirs > "$file"; done; ls /host/{pods[5:]}/{POD}/*'
    with Running(dispatcher, one) as first:
        first.exec("/bin/sh", "-c", "echo mine > /memory/file")
        attacker = Running(dispatcher, other)
        if options == ("rw",):
            assert attacker.create() != 0
            assert "/run/reassert" in attacker.output()
            return
        with attacker:
            attacker.exec("/bin/sh", "-c", f"{write}; true")
            assert first.exec("/bin/cat", "/memory/file") == "mine\n"
            shutil.rmtree(kubelet / "pods" / POD)
            sweep(str(kubelet / "pods"))
            (kubelet / "pods" / POD).mkdir()
            with Running(dispatcher, later) as second:
                second.exec("/bin/sh", "-c", "echo mine > /memory/file")
                attacker.exec("/bin/sh", "-c", f"{write}; true")
                assert second.exec("/bin/cat", "/memory/file") == "mine\n"


@marks.hole(
    "A container that writes to kubelet's directory of pods put a link to the node in place of an emptyDir",
    since="0.4.0",
    fixed="0.4.0",
    severity="medium",
)
@pytest.mark.usefixtures("kubelet")
@pytest.mark.parametrize("replaced", ["reassert/*", "reassert", "."])
def test_a_link_in_its_place_refuses_the_container(node: Node, kubelet: Path, replaced: str) -> None:
    dispatcher = node.dispatcher(RUNTIMES["runc"])
    one, two = bundles(node, "one", "two")
    with Running(dispatcher, one):
        pass
    place = next((kubelet / "pods" / POD).glob(replaced)) if replaced != "." else kubelet / "pods" / POD
    place.rename(node.directory / "moved")
    place.symlink_to(node.directory / "moved")
    refused = Running(dispatcher, two)
    assert refused.create() != 0
    assert f"{place} is not a directory" in refused.output()
    place.unlink()
    (node.directory / "moved").rename(place)
