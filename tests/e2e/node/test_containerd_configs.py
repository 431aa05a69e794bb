"""Configurations that containerd is found with: only what is meant changes, and all comes back.

containerd does not run but where a test says so: `containerd config dump` is what tells.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import marks
import pytest

from e2e.node.booted import BootedNode
from e2e.node.conftest import Boot
from e2e.node.dumped import (
    BOTH,
    CONF_D,
    DEFAULT,
    DROP_IN,
    SITE,
    assert_refused,
    assert_round_trip,
    binaries,
    dump,
    main_file,
    two,
    version,
    write,
)
from e2e.node.engines import CONFIG, CRUN, FORMATS, RUNC, SANDBOX_IMAGE, SUITES, Handler, containerd_config
from e2e.node.wired import FILES, PACKAGED, POLICY_FILE, Wirable, package, without_package

pytestmark = marks.promise(
    "With any configuration of an engine, only the intended settings change, or install says why not", about="Node"
)


@pytest.fixture(scope="module", params=["trixie", "forky"])
def booted(request: pytest.FixtureRequest, module_boot: Boot) -> BootedNode:
    node = module_boot(request.param, files=FILES)
    package(node)
    node.run("systemctl", "stop", "containerd")
    return node


@pytest.fixture
def node(booted: BootedNode) -> Iterator[Wirable]:
    """A node without reassert and with a usual configuration."""
    wirable = Wirable(booted, booted.snapshot(), PACKAGED, ("--no-agent",))  # only the engine's files count here
    yield wirable
    wirable.take_out()
    booted.run("rm", "-r", "/etc/containerd")
    booted.path(CONFIG).parent.mkdir()
    booted.path(CONFIG).write_text(containerd_config(FORMATS[booted.suite]))


with_every_containerd = pytest.mark.parametrize("booted", SUITES, indirect=True)
"""1.6 edits what 1.7 edits, in the same format, but reads and dumps it by itself."""

with_one_file = pytest.mark.parametrize("booted", ["trixie"], indirect=True)
"""For what is edited in place, and for what reassert does before it asks containerd anything."""

with_a_drop_in = pytest.mark.parametrize("booted", ["forky"], indirect=True)
"""For what the files of containerd 2 decide, or are asked in the same way."""


def test_none_at_all(node: Wirable) -> None:
    """The defaults survive, and the runtime starts pods."""
    node.booted.path(CONFIG).unlink()
    assert_round_trip(node, *main_file(node), wired=DEFAULT)
    images = [value for key, value in dump(node).items() if key[-1] in ("sandbox", "sandbox_image")]
    node.booted.run("systemctl", "start", "containerd")
    try:
        node.booted.wait_for_cri()
        node.booted.ctr("image", "tag", "--force", SANDBOX_IMAGE, *images)
        node.install("--no-probe")
        assert node.status() == (0, {"runc": ["runtime"]}, [])
        node.pod_gets("")
        node.node("uninstall")
    finally:
        node.booted.run("systemctl", "stop", "containerd")


@with_every_containerd
def test_as_the_distribution_ships_it(node: Wirable) -> None:
    write(node, CONFIG, (node.booted.root / CONFIG.lstrip("/")).read_text())
    assert_round_trip(node, *main_file(node), wired=DEFAULT)


def test_as_containerd_prints_its_defaults(node: Wirable) -> None:
    """`containerd config default > config.toml`, then sed, is how most nodes were set up."""
    text = node.booted.run("containerd", "config", "default").stdout
    write(node, CONFIG, text.replace("SystemdCgroup = false", "SystemdCgroup = true"))
    imports_it = f"{CONF_D}/*.toml" in text  # from 2.2 on
    assert_round_trip(node, *[path for path in main_file(node) if path != CONFIG or not imports_it], wired=DEFAULT)


@with_one_file
def test_as_few_people_write_it(node: Wirable) -> None:
    """Other ends of lines, none at the last one, inline tables, dotted keys."""
    lines = [
        "version = 2",
        "oom_score = -998 # a\u2028b",
        "[plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes]",
        'runc = {runtime_type = "io.containerd.runc.v2", options = {SystemdCgroup = false}}',
        'crun.runtime_type = "io.containerd.runc.v2"',
        "crun.options.BinaryName = '/usr/bin/crun' # faster",
    ]
    node.booted.path(CONFIG).write_bytes("\r\n".join(lines).encode())
    assert_round_trip(node, CONFIG)


def test_a_symbolic_link(node: Wirable) -> None:
    """The file that it leads to is edited, and the link stays."""
    real = "/etc/containerd/real.toml"
    node.booted.path(CONFIG).rename(node.booted.path(real))
    node.booted.path(CONFIG).symlink_to(real)
    assert_round_trip(node, *((real, CONF_D, DROP_IN) if two(node) else (real,)))


@with_one_file
def test_an_import_with_the_table_of_the_plugin(node: Wirable) -> None:
    """In containerd 1.x it replaces the main file's table, so it is what has to be edited."""
    write(node, SITE, node.config())
    write(node, CONFIG, f'version = 2\nimports = ["{SITE}"]\n')
    assert_round_trip(node, SITE)


@with_a_drop_in
@pytest.mark.parametrize("imported", [True, False])
def test_a_directory_of_others(node: Wirable, imported: bool) -> None:
    """Where it is not imported, what lies there does not come into force by the way."""
    write(node, f"{CONF_D}/10-site.toml", "version = 3\noom_score = -998\n")
    if imported:
        write(node, CONFIG, f'imports = ["{CONF_D}/*.toml"]\n{node.config()}')
    assert_round_trip(node, *([] if imported else [CONFIG]), DROP_IN)


@with_one_file
@pytest.mark.parametrize("head", ["", "version = 2\n"], ids=["docker's package", "version 2"])
def test_cri_is_disabled(node: Wirable, head: str) -> None:
    write(node, CONFIG, f'{head}disabled_plugins = ["{"io.containerd.grpc.v1." if head else ""}cri"]\n')
    assert_refused(node, CONFIG, "the CRI plugin is disabled")


NVIDIA_CTK = """
    [plugins."{plugin}".containerd.runtimes.nvidia]
      runtime_type = "io.containerd.runc.v2"
      privileged_without_host_devices = false
      [plugins."{plugin}".containerd.runtimes.nvidia.options]
        BinaryName = "/usr/local/bin/nvidia-container-runtime"
        SystemdCgroup = true
"""


def test_as_nvidia_ctk_leaves_it(node: Wirable) -> None:
    """`nvidia-ctk runtime configure --set-as-default`: a handler of its own, the default one, in a drop-in on 2.x."""
    node.booted.path("/usr/local/bin/nvidia-container-runtime").chmod(0o755)
    plugin = "io.containerd.cri.v1.runtime" if two(node) else "io.containerd.grpc.v1.cri"
    handler = NVIDIA_CTK.format(plugin=plugin)
    if two(node):
        default = f'[plugins."{plugin}".containerd]\n  default_runtime_name = "nvidia"\n'
        write(node, f"{CONF_D}/99-nvidia.toml", f"version = 3\n{default}{handler}")
        write(node, CONFIG, f'imports = ["{CONF_D}/*.toml"]\n{node.config()}')
    else:
        write(node, CONFIG, node.config().replace('_name = "runc"', '_name = "nvidia"') + handler)
    changed = (DROP_IN,) if two(node) else (CONFIG,)
    assert_round_trip(node, *changed, wired={**BOTH, "nvidia": "reassert-nvidia-container-runtime"})
    node.before = node.booted.snapshot()
    node.install("--runtime-class", "guarded")  # a copy of the default one
    assert binaries(dump(node))["guarded"] == "reassert-nvidia-container-runtime"


@marks.hole(
    "Pods of a handler that names runc's shim by its path started unchanged, and `verify` passed",
    since="0.1.0",
    fixed="0.1.0",
    severity="medium",
)
@with_a_drop_in
def test_a_shim_that_is_named_by_its_path(node: Wirable) -> None:
    """containerd tells it no BinaryName: a way around, which is said, but for the hook."""
    shim = "/usr/bin/containerd-shim-runc-v2"
    write(node, CONFIG, containerd_config(version(node), (RUNC, Handler("other", "", "by path", type=shim))))
    node.before = node.booted.snapshot()
    why = (
        "names its shim by path, and containerd passes no BinaryName to such a shim, so it cannot be wrapped; write "
        f'runtime_type = "io.containerd.runc.v2" and runtime_path = "{shim}"'
    )
    assert f"handler other {why}" in node.refuses("--runtime-class", "other")
    node.install()
    code, wired, problems = node.status()
    assert (code, wired) == (1, {"other": [], "runc": ["runtime"]})
    assert f"containerd: handler other {why}" in problems
    node.install("--adapter", "runtime,hook")
    assert node.status()[1] == {"other": ["hook"], "runc": ["runtime", "hook"]}
    assert [problem for problem in node.status()[2] if "other" in problem] == [
        "containerd: containers of other start without the adapter runtime: run `reassert install`"
    ]
    node.node("uninstall")
    assert node.changes() == [], "\n".join(node.changes())


BLOGS = """
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.crun.options.hooks]
      prestart = ["/usr/local/bin/inject-ca"]
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.crun.options.env]
      REQUESTS_CA_BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
"""


@with_a_drop_in
def test_what_blogs_recommend_is_recognised(node: Wirable) -> None:
    write(node, CONFIG, node.config() + BLOGS)
    hints = [
        f"containerd: runtimes.crun.options.{text}"
        for text in (
            "hooks does nothing in containerd; hooks go into the OCI spec that base_runtime_spec names: "
            "reassert install --adapter hook",
            f"env does nothing in containerd; reserve env in {POLICY_FILE}: reassert install",
        )
    ]
    assert [hint for hint in node.hints() if ".options." in hint] == hints
    assert_round_trip(node, *main_file(node))
    node.install()
    assert [hint for hint in node.hints() if ".options." in hint] == hints
    assert [problem for problem in node.status()[2] if " does not run" not in problem] == []


@with_a_drop_in
def test_a_handlers_own_base_runtime_spec(node: Wirable) -> None:
    """What containers start from is the administrator's, with our hook as the last one."""
    spec = json.loads(node.booted.run("ctr", "oci", "spec").stdout)
    spec["process"].setdefault("env", []).append("SITE=berlin")
    spec["hooks"] = {"createRuntime": [{"path": "/usr/bin/site-hook"}]}
    theirs = f"{CONF_D}/base.json"
    write(node, theirs, json.dumps(spec))
    runc = Handler(RUNC.name, RUNC.options, RUNC.comment, more=f'      base_runtime_spec = "{theirs}"\n')
    write(node, CONFIG, containerd_config(version(node), (runc, CRUN)))
    node.before = node.booted.snapshot()
    node.install("--adapter", "hook")
    specs = {key[-2]: value for key, value in dump(node).items() if key[-1] == "base_runtime_spec"}
    ours = json.loads(node.booted.path(specs["runc"]).read_text())
    assert "SITE=berlin" in ours["process"].pop("env")
    spec["process"].pop("env")
    assert ours["process"] == spec["process"]
    [first, last] = ours["hooks"]["createRuntime"]
    assert first["path"] == "/usr/bin/site-hook"
    assert (last["path"], last["args"]) == (PACKAGED, ["reassert", "hook", "createRuntime"])
    assert "berlin" not in node.booted.path(specs["crun"]).read_text()
    node.node("uninstall")
    assert node.changes() == [], "\n".join(node.changes())


@with_one_file
def test_a_new_runtime_class_is_a_copy_of_the_default_one(node: Wirable) -> None:
    more = "      privileged_without_host_devices = true\n"
    runc = Handler(RUNC.name, "SystemdCgroup = true", RUNC.comment, more=more)
    write(node, CONFIG, containerd_config(version(node), (runc, CRUN)))
    node.before = node.booted.snapshot()
    was = dump(node)
    node.install("--runtime-class", "guarded")
    now = dump(node)
    guarded = {key: now.pop(key) for key in list(now) if "guarded" in key}
    assert now == was
    assert guarded.pop(next(key for key in guarded if key[-1] == "BinaryName")) == "/opt/reassert/reassert-runc"
    assert guarded == {
        tuple("guarded" if part == "runc" else part for part in key): value
        for key, value in was.items()
        if key[-3:-1] == ("runtimes", "runc") or key[-3:-1] == ("runc", "options")
    }
    node.node("uninstall")
    assert node.changes() == [], "\n".join(node.changes())


@pytest.mark.parametrize("booted", ["bookworm"], indirect=True)
def test_a_containerd_without_nri(node: Wirable) -> None:
    assert_refused(node, "containerd 1.6.20 has no NRI", options=("--adapter=nri",))


@with_one_file
def test_what_somebody_breaks_is_said(node: Wirable) -> None:
    with without_package(node) as copied:  # with a program that can go while another one says so
        assert_said(copied)


def assert_said(node: Wirable) -> None:
    node.install()
    node.booted.run("reassert", "policy", "compile")  # which the agent would do some time
    for path, said in (
        (
            "/opt/reassert/reassert",
            "/opt/reassert/reassert is missing, so no container starts: run `reassert install`",
        ),
        (POLICY_FILE, f"the last good policy stays in force: {POLICY_FILE}: No such file or directory"),
        ("/opt/reassert/reassert-runc", "/opt/reassert/reassert-runc out of date: run `reassert install`"),
    ):
        here = node.booted.path(path)
        here.rename(f"{here}.away")
        exit_status, _, problems = node.status()
        assert exit_status == 1
        assert [each for each in problems if each.removeprefix("containerd: ").startswith(said)], problems
        here.with_name(f"{here.name}.away").rename(here)
    dispatcher = node.booted.path("/opt/reassert/reassert-runc")
    dispatcher.write_bytes(dispatcher.read_bytes() + b"\n")
    assert "reassert-runc out of date" in node.status()[2][1]
    node.install()
    assert " does not run" in node.status()[2][0]
    node.node("uninstall")
