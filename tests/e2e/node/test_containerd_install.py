"""`reassert node install` for containerd: every handler is wired, and every way back is there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from e2e.node.booted import BootedNode
from e2e.node.conftest import Boot
from e2e.node.engines import CONFIG, FORMATS, Handler, containerd_config, handler_config
from e2e.node.wiring import (
    FILES,
    HANDLERS,
    RUNC_TYPE,
    STATE,
    Before,
    assert_corrected,
    assert_overridden,
    events,
    main_pid,
    prepared,
    reassert,
    start_hostile,
    status,
    unwire,
    wire,
    wired,
)

NO_HANDLER: dict[str, list[str]] = {"crun": [], "kata": [], "nvidia": [], "runc": []}
EVERY_HANDLER = NO_HANDLER | dict.fromkeys(RUNC_TYPE, ["runtime"])


@pytest.fixture(scope="module", params=sorted(FORMATS))
def node(request: pytest.FixtureRequest, module_boot: Boot) -> BootedNode:
    """A node with handlers of every kind."""
    suite = request.param
    return prepared(module_boot(suite, config=containerd_config(FORMATS[suite], HANDLERS), files=FILES))


@pytest.fixture
def bare(node: BootedNode) -> BootedNode:
    """That node, without reassert."""
    return unwire(node)


@pytest.fixture
def installed(node: BootedNode) -> BootedNode:
    """That node, with reassert."""
    return wire(node)


def test_without_reassert_nothing_is_wired(bare: BootedNode) -> None:
    """The other tests would prove nothing if it were."""
    assert wired(bare, expected=3) == NO_HANDLER
    assert_overridden(bare, "runc")
    said = reassert(bare, "verify", status=1).stdout
    assert "env REQUESTS_CA_BUNDLE is reassert-verify-pod" in said
    assert said.endswith("result     not protected: crun, nvidia, runc\n")


def test_a_plan_says_what_would_change_and_changes_nothing(bare: BootedNode) -> None:
    before, was = Before(bare, CONFIG), main_pid(bare)
    plan = reassert(bare, "plan").stdout
    assert plan == reassert(bare, "install", "--dry-run").stdout
    for name, runtime in RUNC_TYPE.items():
        assert f'BinaryName = "/usr/local/sbin/reassert-{runtime.rpartition("/")[2]}"' in plan, name
    assert "/opt/reassert: the program" in plan
    assert "would be restarted" in plan
    before.is_back()
    assert main_pid(bare) == was


def test_install_wires_every_handler_of_a_runc_type_and_proves_it(bare: BootedNode) -> None:
    was = main_pid(bare)
    said = reassert(bare, "install").stdout
    assert "containerd 1." in said or "containerd 2." in said
    assert "is wired (runtime).\n" in said
    assert main_pid(bare) != was
    assert wired(bare, expected=0) == EVERY_HANDLER
    handlers = status(bare, expected=0)["handlers"]
    assert {name: handlers[name]["runtime"] for name in RUNC_TYPE} == RUNC_TYPE
    table = reassert(bare, "status").stdout
    [kata] = [line for line in table.splitlines() if " kata " in line]
    assert "io.containerd.kata.v2: calls no OCI runtime" in kata


@pytest.mark.parametrize("handler", sorted(RUNC_TYPE))
def test_a_hostile_pod_is_corrected(installed: BootedNode, handler: str) -> None:
    container = assert_corrected(installed, handler)
    [event] = [event for event in events(installed) if event["id"] == container]
    assert (event["event"], event["applied"], event["adapter"]) == ("container.edited", True, "runtime")
    through_nvidia = installed.path("/run/nvidia.log").exists() and (
        f" {container}\n" in installed.path("/run/nvidia.log").read_text()
    )
    assert through_nvidia == (handler == "nvidia")


def test_verify_finds_every_handler_protected(installed: BootedNode) -> None:
    said = reassert(installed, "verify").stdout
    assert said.endswith("result     every handler is protected\n")
    assert installed.ctr("container", "list", "--quiet") == ""


def test_a_second_install_changes_nothing(installed: BootedNode) -> None:
    before, was = Before(installed, CONFIG, f"{STATE}/installed.json"), main_pid(installed)
    assert "is wired already (runtime); nothing to change, nothing was restarted.\n" in (
        reassert(installed, "install").stdout
    )
    assert reassert(installed, "plan").stdout == "Nothing to change.\n"
    before.is_back()
    assert main_pid(installed) == was


def test_uninstall_puts_back_every_byte(bare: BootedNode) -> None:
    before = Before(bare, CONFIG)
    lines = [line.strip() for line in bare.path(CONFIG).read_text().splitlines()]
    wire(bare)
    kept = [line.strip() for line in bare.path(CONFIG).read_text().splitlines()]
    assert [line for line in lines if line.startswith("#") and line not in kept] == []
    assert "# mirrored, so that a node needs no internet" in bare.path(CONFIG).read_text()
    was = main_pid(bare)
    assert "is as it was before reassert.\n" in reassert(bare, "uninstall").stdout
    before.is_back()
    assert main_pid(bare) != was
    assert_overridden(bare, "crun")
    assert reassert(bare, "uninstall").stdout == "Nothing is wired; nothing was changed.\n"


def test_containers_that_were_started_through_it_outlive_its_removal(bare: BootedNode) -> None:
    before = Before(bare, CONFIG)
    wire(bare)
    started = {name: start_hostile(bare, name) for name in ("runc", "crun")}
    said = reassert(bare, "uninstall").stdout
    for name, pod in started.items():
        assert f"running containers still call /usr/local/sbin/reassert-{name}: it stays" in said
        pod.container.exec("/bin/true")
        assert pod.container.exec("/bin/ls", "/etc/ssl/certs").split() == ["company.crt"]
    assert wired(bare, expected=3) == NO_HANDLER
    started["runc"].container.remove()  # kill and delete, through what passes everything on
    assert_overridden(bare, "runc")
    for pod in started.values():
        pod.pod.remove()
    reassert(bare, "uninstall")
    before.is_back()


LATER = Handler("later", 'BinaryName = "/usr/bin/crun"', "added when the node had been wired for long")


@pytest.fixture
def edited(bare: BootedNode) -> Iterator[tuple[BootedNode, str]]:
    """A node where an administrator edits config.toml after the installation, and what it then is without reassert."""
    path = bare.path(CONFIG)
    before = path.read_text()
    wire(bare)

    def edit(text: str) -> str:
        assert "mirrored" in text
        return text.replace("mirrored", "copied") + handler_config(FORMATS[bare.suite], LATER)

    path.write_text(edit(path.read_text()))
    yield bare, edit(before)
    unwire(bare)
    path.write_text(before)
    bare.run("systemctl", "restart", "containerd")
    bare.wait_for_cri()


def test_a_handler_that_is_added_later_is_reported_and_wired_by_the_next_install(
    edited: tuple[BootedNode, str],
) -> None:
    node, without = edited
    node.run("systemctl", "restart", "containerd")
    node.wait_for_cri()
    assert wired(node, expected=1) == {**EVERY_HANDLER, "later": []}
    [problem] = status(node, expected=1)["problems"]
    assert "out of date: run `reassert node install`, which restarts containerd" in problem
    assert reassert(node, "verify", status=1).stdout.endswith("result     not protected: later\n")
    assert_overridden(node, "later")

    reassert(node, "install", "--no-probe")
    assert wired(node, expected=0) == {**EVERY_HANDLER, "later": ["runtime"]}
    assert_corrected(node, "later")
    reassert(node, "uninstall")
    assert node.path(CONFIG).read_text() == without


def test_uninstall_keeps_what_an_administrator_edited_meanwhile(edited: tuple[BootedNode, str]) -> None:
    node, without = edited
    reassert(node, "uninstall")
    assert node.path(CONFIG).read_text() == without
    assert wired(node, expected=3) == {**NO_HANDLER, "later": []}
    assert_overridden(node, "later")
