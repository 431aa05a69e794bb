"""Configurations that containerd is found with: only what is meant changes, and all comes back.

containerd does not run but where a test says so: `containerd config dump` is what tells.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest

from e2e.node.booted import BootedNode
from e2e.node.conftest import Boot
from e2e.node.engines import CONFIG, CRUN, FORMATS, RUNC, SANDBOX_IMAGE, containerd_config

from e2e.node.wiring import FILES, POLICY, Before, assert_corrected, is_wired, prepared, reassert, unwire, wired

CONF_D = "/etc/containerd/conf.d"
DROP_IN = f"{CONF_D}/99-reassert.toml"
SITE = "/etc/containerd/site.toml"

Dump = dict[tuple[str, ...], Any]


@pytest.fixture(scope="module", params=sorted(FORMATS))
def booted(request: pytest.FixtureRequest, module_boot: Boot) -> BootedNode:
    node = prepared(module_boot(request.param, files=FILES))
    node.run("systemctl", "stop", "containerd")
    return node


@pytest.fixture
def node(booted: BootedNode) -> Iterator[BootedNode]:
    """A node without reassert and with a usual configuration."""
    usual = booted.path(CONFIG).read_text()
    there = set(booted.snapshot(("/etc/containerd",)))
    yield booted
    unwire(booted)
    for path in sorted(set(booted.snapshot(("/etc/containerd",))) - there, reverse=True):
        found = booted.path(path)
        found.rmdir() if found.is_dir() and not found.is_symlink() else found.unlink()
    booted.path(CONFIG).unlink(missing_ok=True)
    booted.path(CONFIG).write_text(usual)


def version(node: BootedNode) -> int:
    """Of the configuration format."""
    return FORMATS[node.suite]


def two(node: BootedNode) -> bool:
    """Whether it is containerd 2."""
    return node.suite == "forky"


def dump(node: BootedNode) -> Dump:
    """What containerd makes of its configuration, without what is nothing; `imports` is how it got there."""
    text = node.run("containerd", "--config", CONFIG, "config", "dump").stdout
    flat: Dump = {}

    def walk(values: dict[str, Any], key: tuple[str, ...]) -> None:
        for name, value in values.items():
            if isinstance(value, dict):
                walk(value, (*key, name))
            elif value and (*key, name) != ("imports",):
                flat[*key, name] = value

    walk(tomllib.loads(text), ())
    return flat


def binaries(dumped: Dump) -> dict[str, str]:
    """By handler, its BinaryName; they are taken out."""
    keys = [key for key in dumped if key[-2:] == ("options", "BinaryName")]
    return {key[-3]: dumped.pop(key) for key in keys}


def assert_round_trip(node: BootedNode, *changed: str, handlers: tuple[str, ...] = ("crun", "runc")) -> None:
    """Install changes just these files below /etc and, for containerd, only BinaryName; uninstall leaves nothing."""
    before = Before(node, *[path for path in (CONFIG,) if node.path(path).exists()])
    tree, was = node.snapshot(("/etc",)), dump(node)
    reassert(node, "install")
    now = dump(node)
    set_now = binaries(now)
    binaries(was)
    assert now == was
    assert {name: os.path.basename(path) for name, path in set_now.items()} == {
        name: f"reassert-{'crun' if name == 'crun' else 'runc'}" for name in handlers
    }
    after = node.snapshot(("/etc",))
    files = {path for path in tree.keys() | after.keys() if tree.get(path) != after.get(path)}
    assert files == set(changed)
    assert reassert(node, "install").stdout.startswith("containerd ")
    reassert(node, "uninstall")
    before.is_back()


def test_none_at_all(node: BootedNode) -> None:
    node.path(CONFIG).unlink()
    assert_round_trip(node, *((CONFIG, CONF_D, DROP_IN) if two(node) else (CONFIG,)), handlers=("runc",))


def test_none_at_all_and_a_pod(node: BootedNode) -> None:
    """The defaults survive: the runtime still starts pods."""
    node.path(CONFIG).unlink()
    dumped = node.run("containerd", "config", "dump").stdout
    [image] = {line.split("=")[1].strip(" '\"") for line in dumped.splitlines() if "sandbox" in line and "pause" in line}
    node.run("systemctl", "start", "containerd")
    try:
        node.wait_for_cri()
        node.ctr("image", "tag", "--force", SANDBOX_IMAGE, image)
        reassert(node, "install")
        assert wired(node, expected=0) == {"runc": ["runtime"]}
        assert_corrected(node)
        reassert(node, "uninstall")
    finally:
        node.run("systemctl", "stop", "containerd")


def test_as_the_distribution_ships_it(node: BootedNode) -> None:
    packaged = (node.root / CONFIG.lstrip("/")).read_text()
    node.path(CONFIG).write_text(packaged)
    assert_round_trip(node, *((CONFIG, CONF_D, DROP_IN) if two(node) else (CONFIG,)), handlers=("runc",))


def test_mode_and_owner_are_kept(node: BootedNode) -> None:
    config = node.path(CONFIG)
    config.chmod(0o600)
    os.chown(config, 1, 2)
    reassert(node, "install")
    assert "reassert" in config.read_text()
    state = config.stat()
    assert (state.st_mode & 0o7777, state.st_uid, state.st_gid) == (0o600, 1, 2)
    reassert(node, "uninstall")
    state = config.stat()
    assert (state.st_mode & 0o7777, state.st_uid, state.st_gid) == (0o600, 1, 2)
    config.chmod(0o644)
    os.chown(config, 0, 0)


@pytest.mark.parametrize("target", ["/etc/containerd/real.toml", "real.toml"])
def test_a_symbolic_link(node: BootedNode, target: str) -> None:
    """The file that it leads to is edited, and the link stays."""
    real = "/etc/containerd/real.toml"
    node.path(CONFIG).rename(node.path(real))
    node.path(CONFIG).symlink_to(target)
    assert_round_trip(node, *((real, CONF_D, DROP_IN) if two(node) else (real,)))


def test_an_import_with_the_table_of_the_plugin(node: BootedNode) -> None:
    """In containerd 1.x it replaces the main file's table, so it is what has to be edited."""
    node.path(SITE).write_text(containerd_config(version(node), (RUNC, CRUN)))
    node.path(CONFIG).write_text(f'version = {version(node)}\nimports = ["{SITE}"]\n')
    assert_round_trip(node, *((CONFIG, CONF_D, DROP_IN) if two(node) else (SITE,)))


def test_an_import_with_something_else(node: BootedNode) -> None:
    node.path(SITE).write_text(f"version = {version(node)}\noom_score = -998\n")
    config = node.path(CONFIG)
    config.write_text(f'imports = ["site.toml"] # ours\n{config.read_text()}')
    assert_round_trip(node, *((CONFIG, CONF_D, DROP_IN) if two(node) else (CONFIG,)))


def test_a_directory_that_is_imported(node: BootedNode) -> None:
    node.path(CONF_D).mkdir()
    node.path(f"{CONF_D}/10-site.toml").write_text(f"version = {version(node)}\noom_score = -998\n")
    config = node.path(CONFIG)
    config.write_text(f'imports = ["{CONF_D}/*.toml"]\n{config.read_text()}')
    assert_round_trip(node, DROP_IN if two(node) else CONFIG)


def test_a_directory_that_is_not_imported(node: BootedNode) -> None:
    """What lies there does not come into force by the way."""
    node.path(CONF_D).mkdir()
    node.path(f"{CONF_D}/10-site.toml").write_text(f"version = {version(node)}\noom_score = -998\n")
    assert_round_trip(node, *((CONFIG, DROP_IN) if two(node) else (CONFIG,)))


def test_version_2_on_containerd_2(node: BootedNode) -> None:
    if not two(node):
        pytest.skip("it is what 1.x has in the other tests")
    node.path(CONFIG).write_text(containerd_config(2))
    assert_round_trip(node, CONFIG, CONF_D, DROP_IN)


def assert_refused(node: BootedNode, *words: str, arguments: tuple[str, ...] = ()) -> None:
    """Install says in a line what is wrong, and changes nothing."""
    before = Before(node, CONFIG)
    done = reassert(node, "install", *arguments, status=1)
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    for word in ("reassert: ", *words):
        assert word in line
    before.is_back()
    assert not is_wired(node)


def test_broken(node: BootedNode) -> None:
    config = node.path(CONFIG)
    config.write_text(config.read_text() + "\n[plugins\n")
    number = config.read_text().splitlines().index("[plugins") + 1
    assert_refused(node, CONFIG, str(number))


def test_of_version_1(node: BootedNode) -> None:
    config = node.path(CONFIG)
    config.write_text(config.read_text().replace(f"version = {version(node)}\n", "").partition("[plugins")[0])
    assert_refused(node, CONFIG, "write `version = 2`")


@pytest.mark.parametrize("plugin", ["cri", "io.containerd.grpc.v1.cri"])
def test_cri_is_disabled(node: BootedNode, plugin: str) -> None:
    """As in the package that Docker ships."""
    config = node.path(CONFIG)
    config.write_text(f'disabled_plugins = ["{plugin}"]\n{config.read_text()}')
    assert_refused(node, CONFIG, "the CRI plugin is disabled")


def test_no_nri_in_it(node: BootedNode) -> None:
    if node.suite != "bookworm":
        pytest.skip("this containerd has it")
    assert_refused(node, "has no NRI, that needs 1.7 or later; use --adapter runtime", arguments=("--adapter", "nri"))


def test_it_does_not_run(node: BootedNode) -> None:
    done = reassert(node, "install")
    assert "does not run; it will read its new configuration when it starts\n" in done.stdout
    assert node.property("containerd.service", "ActiveState") == "inactive"
    done = reassert(node, "status", status=1)
    assert "does not run" in done.stdout


BLOGS = """
    [plugins."{plugin}".containerd.runtimes.{name}.options.hooks]
      prestart = ["/usr/local/bin/inject-ca"]
    [plugins."{plugin}".containerd.runtimes.{name}.options.env]
      REQUESTS_CA_BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
"""


def test_what_blogs_recommend_is_recognised(node: BootedNode) -> None:
    plugin = "io.containerd.cri.v1.runtime" if two(node) else "io.containerd.grpc.v1.cri"
    config = node.path(CONFIG)
    config.write_text(config.read_text() + BLOGS.format(plugin=plugin, name="crun"))
    said = reassert(node, "status", status=3).stdout
    assert (
        "runtimes.crun.options.hooks does nothing in containerd; hooks go into the OCI spec that base_runtime_spec "
        "names: reassert node install --adapter hook"
    ) in said
    assert f"runtimes.crun.options.env does nothing in containerd; reserve env in {POLICY}: reassert node install" in said
    assert "runtimes.runc.options" not in said


