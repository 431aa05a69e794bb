"""What each setting of containerd's configuration means, and how it is wired, by texts alone."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from hook.entry.dispatcher import DISPATCHER_MARK
from hook.node.engines.base import CDI, HOOK, RUNTIME, Choice, Wiring
from hook.node.engines.containerd.config import ContainerdConfig
from hook.node.engines.containerd.files import FORMATS
from hook.node.errors import NodeError
from unit.node.engines.table import Table
from unit.support import policy

FILE = "/etc/containerd/config.toml"
RUNC = "io.containerd.runc.v2"
PROGRAMS = ("/usr/sbin/runc", "/usr/bin/crun", "/usr/local/bin/runsc")
RUNSC = "/run/containerd/runsc/config.toml"
BY_PATH = "/opt/bin/containerd-shim-runc-v2"


def configured(
    version: tuple[int, int, int] = (2, 1, 9), texts: dict[str, str] | None = None, more: str = "", **handlers: str
) -> ContainerdConfig:
    """A configuration with these handlers, each by the lines of its table. `more`: lines of the CRI plugin's table."""
    number = 3 if version >= (2, 0, 0) else 2
    plugin = f'plugins."{FORMATS[number].cri[1]}"'
    tables = "".join(f"[{plugin}.containerd.runtimes.{name}]\n{lines}\n" for name, lines in handlers.items())
    text = f'version = {number}\n[{plugin}]\n{more}\n[{plugin}.containerd]\ndefault_runtime_name = "runc"\n{tables}'
    return ContainerdConfig(
        dump=tomllib.loads(text),
        version=version,
        engine="containerd",
        title=f"containerd {'.'.join(map(str, version))}",
        file=FILE,
        address="/run/containerd/containerd.sock",
        plugin_runs=False,
        default_spec=lambda configured: {"process": {"env": ["PATH=/bin"]}, "was": configured},
        node=Table(PROGRAMS, {FILE: text, **(texts or {})}),
    )


def runtime(kind: str = RUNC, **options: str) -> str:
    told = ", ".join(f'{name} = "{value}"' for name, value in options.items())
    return f'runtime_type = "{kind}"\n' + (f"options = {{{told}}}\n" if options else "")


def wire(config: ContainerdConfig, *adapters: str, runtime_class: str | None = None) -> Wiring:
    rule = {"name": "r", "env": [{"name": "A", "value": "1"}]}
    choice = Choice(adapters, runtime_class, "/opt/reassert/reassert", policy(rule))
    return config.wire(choice, config.node.state, {})


@pytest.mark.parametrize(
    ("lines", "called", "note", "can_be_wired"),
    [
        (runtime(), "/usr/sbin/runc", "", True),
        (runtime(BinaryName="crun"), "/usr/bin/crun", "", True),
        (runtime(BinaryName="/opt/gone"), "/opt/gone", "not installed", True),
        (runtime(BY_PATH), "/usr/sbin/runc", "names its shim by path", False),
        (runtime("io.containerd.kata.v2"), "", "io.containerd.kata.v2: calls no OCI runtime", True),
        (
            runtime("io.containerd.runhcs.v1"),
            "io.containerd.runhcs.v1",
            "the shim of Windows nodes, is not installed",
            True,
        ),
        ('sandboxer = "shim"', "", "no runtime_type: calls no OCI runtime", True),
        (runtime("io.containerd.runsc.v1"), "", "io.containerd.runsc.v1: calls no OCI runtime", True),
        ('runtime_type = "io.containerd.runtime.v1.linux"', "/usr/sbin/runc", "containerd's first shim", True),
    ],
)
def test_what_a_handler_calls(lines: str, called: str, note: str, can_be_wired: bool) -> None:
    [found] = configured(one=lines).handlers({})
    assert (found.runtime, found.wired, found.can_be_wired) == (called, (), can_be_wired)
    assert note in found.note
    assert bool(found.note) == bool(note)
    assert found.is_installed == ("not installed" not in found.note)


@pytest.mark.parametrize("text", ["", 'binary_name = "/usr/local/bin/runsc"\n'])
def test_gvisors_own_shim_calls_what_its_file_names(text: str) -> None:
    config = configured(texts={RUNSC: text}, runc=runtime(), runsc=runtime("io.containerd.runsc.v1"))
    assert config.handlers({})[1].runtime == "/usr/local/bin/runsc"
    [written] = [state for path, state in wire(config, RUNTIME).references if path == RUNSC]
    assert written is not None
    assert tomllib.loads(written.content.decode()) == {"binary_name": "/opt/reassert/reassert-runsc"}


def test_2_gets_a_drop_in_that_containerd_must_read_as_it_is_meant() -> None:
    config = configured(runc=runtime(SystemdCgroup="yes"), crun=runtime(BinaryName="crun"))
    wiring = wire(config, RUNTIME)
    texts = {path: state.content.decode() for path, state in wiring.references if state}
    assert list(texts) == ["/etc/containerd/conf.d/99-reassert.toml", FILE]
    tables = tomllib.loads(texts["/etc/containerd/conf.d/99-reassert.toml"])["plugins"][FORMATS[3].cri[1]]
    assert {name: table["options"] for name, table in tables["containerd"]["runtimes"].items()} == {
        "runc": {"BinaryName": "/opt/reassert/reassert-runc"},
        "crun": {"BinaryName": "/opt/reassert/reassert-crun"},
    }
    with pytest.raises(
        NodeError, match=r"runtimes.crun.options.BinaryName is 'crun', not '/opt/reassert/reassert-crun'"
    ):
        config.check(wiring)
    wired = configured(
        runc=runtime(SystemdCgroup="yes", BinaryName="/opt/reassert/reassert-runc"),
        crun=runtime(BinaryName="/opt/reassert/reassert-crun"),
    )
    wired.check(wiring)
    config.check(Wiring())


def test_1_has_its_own_file_edited_and_gets_it_back() -> None:
    config = configured((1, 7, 24), runc=runtime())
    wiring = wire(config, RUNTIME)
    [(path, state)] = wiring.references
    before = config.node.content(FILE)
    assert (path, state is not None) == (FILE, True)
    assert state is not None
    assert b'BinaryName = "/opt/reassert/reassert-runc"' in state.content
    assert ContainerdConfig.strip(FILE, state.content, wiring.notes) == before
    assert ContainerdConfig.strip("/etc/containerd/conf.d/99-reassert.toml", b"", wiring.notes) is None


def test_the_hook_goes_into_the_spec_that_a_handler_has() -> None:
    config = configured(runc=f'{runtime()}base_runtime_spec = "/etc/site.json"', by_path=runtime(BY_PATH))
    wiring = wire(config, HOOK)
    specs = {path: state.content.decode() for path, state in wiring.references if state and path.endswith(".json")}
    assert list(specs) == [f"/etc/reassert/base-runtime-spec/{name}.json" for name in ("runc", "by_path")]
    assert '"was": "/etc/site.json"' in specs["/etc/reassert/base-runtime-spec/runc.json"]
    assert '"A=1"' in specs["/etc/reassert/base-runtime-spec/runc.json"]


def test_a_shim_by_path_is_warned_of_until_it_has_the_hook() -> None:
    [said] = configured(one=runtime(BY_PATH)).warnings()
    assert said.startswith("handler one names its shim by path, and containerd passes no BinaryName to such a shim")
    assert said.endswith(f'write runtime_type = "{RUNC}" and runtime_path = "{BY_PATH}"')
    ours = 'base_runtime_spec = "/etc/reassert/base-runtime-spec/one.json"'
    assert configured(one=f"{runtime(BY_PATH)}{ours}").warnings() == []


@pytest.mark.parametrize(
    ("runtime_class", "why"),
    [
        ("Upper", "a RuntimeClass' handler is a DNS label"),
        ("kata", "handler kata is of type io.containerd.kata.v2 and calls no runc"),
        ("path", "handler path names its shim by path"),
    ],
)
def test_a_handler_that_cannot_be_wired_is_refused_by_name(runtime_class: str, why: str) -> None:
    config = configured(runc=runtime(), kata=runtime("io.containerd.kata.v2"), path=runtime(BY_PATH))
    with pytest.raises(NodeError, match=why):
        wire(config, RUNTIME, runtime_class=runtime_class)


def test_a_new_handler_is_a_copy_of_the_default_one() -> None:
    wiring = wire(configured(runc=runtime(SystemdCgroup="yes")), RUNTIME, runtime_class="held")
    drop_in = next(state for path, state in wiring.references if path.endswith("99-reassert.toml"))
    assert drop_in is not None
    tables = tomllib.loads(drop_in.content.decode())["plugins"][FORMATS[3].cri[1]]["containerd"]["runtimes"]
    assert tables == {
        "held": {
            "runtime_type": RUNC,
            "options": {"SystemdCgroup": "yes", "BinaryName": "/opt/reassert/reassert-runc"},
        }
    }
    assert wiring.notes["created"] == "held"


@pytest.mark.parametrize(
    ("version", "more", "said"),
    [
        ((1, 6, 20), "", "containerd 1.6.20 has no CDI, which needs 1.7 or later"),
        ((1, 7, 24), "", f"enable_cdi is false in {FILE}; add `cdi` to --adapter"),
        ((2, 1, 9), "enable_cdi = true", ""),
    ],
)
def test_who_ignores_cdi_devices(version: tuple[int, int, int], more: str, said: str) -> None:
    found = configured(version, more=more, runc=runtime()).without_cdi()
    assert found.startswith(said)
    assert bool(found) == bool(said)


def test_cdi_needs_a_directory_that_is_read() -> None:
    with pytest.raises(NodeError, match="cdi_spec_dirs does not name /etc/cdi; add it"):
        wire(configured(runc=runtime()), CDI)
    read = configured(more='enable_cdi = true\ncdi_spec_dirs = ["/etc/cdi/"]', runc=runtime())
    assert [path for path, _ in wire(read, CDI).artifacts] == ["/etc/cdi/reassert.json"]
    assert wire(read, CDI).references == []


def test_settings_that_some_guides_recommend_are_said_to_do_nothing() -> None:
    [env, hooks] = sorted(configured(runc=runtime(hooks="x", env="y")).hints())
    assert env.startswith("runtimes.runc.options.env does nothing in containerd; reserve env in")
    assert hooks.startswith("runtimes.runc.options.hooks does nothing in containerd; hooks go into the OCI spec")


@pytest.mark.parametrize(
    ("dump", "why"),
    [
        ({"plugins": {}}, "the CRI plugin is disabled"),
        ({"disabled_plugins": ["cri"], "plugins": {FORMATS[2].cri[1]: {}}}, "the CRI plugin is disabled"),
        (
            {"plugins": {FORMATS[2].cri[1]: {"containerd": {"default_runtime": {"runtime_type": RUNC}}}}},
            "default_runtime is deprecated and not supported",
        ),
    ],
)
def test_what_kubelet_could_not_use_is_refused(dump: dict[str, Any], why: str) -> None:
    with pytest.raises(NodeError, match=f"^{FILE}: {why}"):
        ContainerdConfig(dump, (1, 7, 24), "containerd", "containerd", FILE, "", False, dict)


def test_what_cri_has_loaded_is_compared_in_its_own_spelling() -> None:
    ours = "/opt/reassert/reassert-runc"
    script = f"#!/bin/sh\n{DISPATCHER_MARK}: a test\nexec /usr/sbin/runc\n"
    config = configured(texts={ours: script}, runc=runtime(BinaryName=ours), crun=runtime(BinaryName="crun"))
    assert [handler.wired for handler in config.handlers({})] == [(), (RUNTIME,)]
    crun = {"runtimeType": RUNC, "options": {"BinaryName": "crun"}, "baseRuntimeSpec": ""}
    stale = config.with_runtimes({"runc": {"runtimeType": RUNC, "options": None}, "crun": crun})
    assert config.not_loaded(stale, {}) == ["runc"]
    fresh = config.with_runtimes({"runc": {"runtimeType": RUNC, "options": {"BinaryName": ours}}, "crun": crun})
    assert config.not_loaded(fresh, {}) == []
