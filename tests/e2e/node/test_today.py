"""`reassert` with the engines of Debian's newest suite: docker 28, podman 5.8 and gVisor's runsc of 2024, on one node.

The other tests of docker, podman and runsc have those of Debian 12. Here is what must hold of each engine.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator

import marks
import pytest
from harness.paths import TOP
from harness.tools import need

from e2e.node.booted import BootedNode
from e2e.node.commands import ENV, SHOW, Engine, runsc_files
from e2e.node.conftest import Boot
from e2e.node.files import differences
from e2e.node.wired import COMPANY, audited, with_program_and_images

pytestmark = [
    marks.promise("Install wires every handler, tests it, and restarts no container; uninstall restores every byte"),
    pytest.mark.usefixtures("owner_of_null"),
]

SUITE = "sid"
RUNSC = ["--platform=systrap", "--network=none", "--ignore-cgroups"]  # its ptrace ends at once on newer kernels
POLICY = "/etc/reassert/policy.yaml"
MORE = """\
  - {name: strict, env: [{name: PYTHONHTTPSVERIFY, absent: true}], onConflict: Deny}
  - {name: gpu, deviceAllocations: {exclusive: ["/dev/gpu*"]}}
"""
"""Rules that make a `verify` long, which tries each way to a device."""
FILES = {**COMPANY, **runsc_files(RUNSC)}
TOPS = ("/etc", "/opt", "/usr/local")
LEFT_ALONE, CORRECTED = "/tmp/evil\ncerts\n", "/etc/ssl/certs/ca-certificates.crt\ncompany.crt\n"


@pytest.fixture(scope="module")
def node(module_boot: Boot) -> BootedNode:
    """A node with all of them, and with two devices in /dev that no container is given."""
    is_as_claimed()
    node: BootedNode = module_boot(SUITE, files=FILES, docker=True, images=False)
    os.mknod(node.path("/dev/gpu0"), stat.S_IFCHR | 0o666, os.makedev(240, 0))
    node.run("chmod", "755", "/usr/local/bin/runsc-here")
    return with_program_and_images(node, "docker", "podman")


def is_as_claimed() -> None:
    """Fails the tests where the suite has not what the claims say, and says what to do."""
    root = TOP / "build/roots" / SUITE
    missing = root.with_name(f"{SUITE}.missing")
    need(not missing.exists(), f"Debian's {SUITE}: {missing.read_text() if missing.exists() else ''}")
    need((root / ".complete").exists(), f"{root} (tests/roots.sh {SUITE})")
    text = (root / "var/lib/dpkg/status").read_text()
    there = dict(re.findall(r"^Package: (\S+)\n(?:.+\n)*?Version: (\S+)", text, re.MULTILINE))
    moved = [
        f"{package} is {there.get(package, 'gone')} there, and the claims say {version}"
        for package, version in marks.TODAY.items()
        if not re.match(rf"{re.escape(version)}\b", there.get(package, ""))
    ]
    if moved and not os.environ.get("REASSERT_TODAY"):
        pytest.fail(
            f"Debian's {SUITE} has moved on: {'; '.join(moved)}. Run this file with REASSERT_TODAY=1, correct what is "
            "red, then TODAY and the versions in tests/marks.py, and run tests/pages.py",
            pytrace=False,
        )


@pytest.fixture(params=["docker", "podman"])
def today(request: pytest.FixtureRequest, node: BootedNode) -> Iterator[Engine]:
    """An engine without reassert, before and after."""
    engine = Engine(node, request.param)
    yield engine
    engine("rm", "--force", *engine("ps", "--all", "--quiet").split(), check=False)
    engine.reassert("uninstall", check=False)


@pytest.fixture
def strict(today: Engine) -> Iterator[Engine]:
    """The same with a policy of more rules."""
    path = today.node.path(POLICY)
    path.write_text(FILES[POLICY] + MORE)
    yield today
    path.write_text(FILES[POLICY])


def test_it_is_wired_tested_shown_and_taken_out_to_the_byte(today: Engine) -> None:
    before = today.node.snapshot(TOPS)
    today.run("--detach", "--name=before", command=("sleep", "1000"))
    assert today.run("--rm") == LEFT_ALONE
    said = today.install("--no-probe", "--no-agent")  # verify starts what the probes would, and each once
    assert f"{today.name} {marks.TODAY[{'docker': 'docker.io'}.get(today.name, today.name)]}" in said
    today.run("--detach", "--name=during", command=("sleep", "1000"))
    assert audited(today.node) == {"before": (today.name, "drifted"), "during": (today.name, "in policy")}
    today("rm", "--force", "before", "during")
    assert json.loads(today.reassert("status", "--output=json"))["exitStatus"] == 0
    found = json.loads(today.reassert("verify", "--output=json", "--except=*", check=False))  # crun-wasm is not wired
    results = {handler["name"]: (handler["result"], handler["exec"]) for handler in found["handlers"]}
    for handler in {"docker": ("reassert", "runsc"), "podman": ("crun", "runsc")}[today.name]:
        assert results[handler] == ("protected", "protected"), found["handlers"]
    today.reassert("uninstall")
    assert differences(before, today.node.snapshot(TOPS)) == []
    assert today.run("--rm") == LEFT_ALONE


@marks.claim("env", "runtime")
@marks.claim("mounts", "runtime")
@marks.claim("exec", "runtime")
@marks.claim("exclusive", "runtime")
@marks.claim("absent-env", "runtime")
def test_env_mounts_exec_and_devices_are_the_nodes_and_a_user_reads_why_it_is_refused(
    today: Engine, strict: Engine
) -> None:
    opens = ("sh", "-c", "cat /dev/gpu0 2>&1 || mknod /dev/x c 240 0 && cat /dev/x 2>&1")
    device = ("--rm", "--device=/dev/gpu0", "--cap-add=mknod")
    assert "'/dev/gpu0': No such device or address" in today.run(*device, command=opens, check=False)
    strict.install("--no-probe")
    assert today.run("--rm") == CORRECTED
    assert today.run("--rm", "--volume=/tmp:/etc/ssl") == CORRECTED
    assert today.run("--rm", "--volume=/tmp:/etc/ssl/certs:ro") == CORRECTED
    today.run("--detach", "--name=during", command=("sleep", "1000"))
    assert today("exec", ENV, "during", *SHOW) == CORRECTED
    assert "'/dev/x': Operation not permitted" in today.run(*device, command=opens, check=False)
    said = today.run("--rm", "--env=PYTHONHTTPSVERIFY=0", check=False)
    assert "reassert: refused" in said
    assert "PYTHONHTTPSVERIFY" in said
    assert "company.crt" not in said


@marks.claim("env", "runtime")
@marks.claim("mounts", "runtime")
@marks.claim("exec", "runtime")
@pytest.mark.parametrize("today", ["docker"], indirect=True)
@pytest.mark.parametrize("runtime", ["runsc"])
def test_a_container_in_gvisor_gets_the_nodes_values(today: Engine, runtime: str) -> None:
    inside = Engine(today.node, today.name, f"--runtime={runtime}")
    assert inside.run("--rm") == LEFT_ALONE
    today.install("--no-probe")
    assert inside.run("--rm") == CORRECTED
    inside.run("--detach", "--name=during", command=("sleep", "1000"))
    assert today("exec", ENV, "during", *SHOW) == CORRECTED
