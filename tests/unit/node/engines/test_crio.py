"""CRI-O's files, and what CRI-O 1.31.0 itself made of them (tests/fixtures/crio)."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import marks
import pytest

from hook.node import systemd
from hook.node.change.files import State
from hook.node.engines.base import HOOK, NRI, RUNTIME, Choice, Wiring
from hook.node.engines.crio import HOOKS, Crio, CrioConfig
from hook.node.errors import NodeError
from unit.node.engines.table import Table
from unit.ownmachine import Machine
from unit.support import FIXTURES, policy

pytestmark = marks.promise(
    "With any configuration of an engine, only the intended settings change, or install says why not"
)

RECORDED = FIXTURES / "crio"
PROGRAM = "/opt/reassert/reassert"
RULE = {"name": "ca", "env": [{"name": "A", "value": "1"}]}
DIRECTORY = "/etc/crio/crio.conf.d"
OURS = f"{DIRECTORY}/99-reassert.conf"
SITE = (RECORDED / "10-crio.conf").read_text()
"""An administrator's file."""


def parsed(name: str, change: Callable[[str], str] = str) -> dict[str, Any]:
    """A recorded answer of `crio config`."""
    return tomllib.loads(change((RECORDED / name).read_text()))


def read(site: str = SITE, **others: str) -> CrioConfig:
    """The configuration of a node with crun and runc, and these drop-ins beside the administrator's."""
    below = {f"{DIRECTORY}/{name}": text for name, text in sorted({"10-crio.conf": site, **others}.items())}
    texts = {"/etc/crio/crio.conf": "", **below}
    files = {path: tomllib.loads(text) for path, text in texts.items()}
    node = Table(["/usr/bin/crun", "/usr/sbin/runc"], texts)
    return CrioConfig(parsed("default.toml"), files, OURS, {}, node=node)


def wire(config: CrioConfig, *adapters: str, runtime_class: str | None = None, unit: bool = True) -> Wiring:
    return config.wire(Choice(adapters, runtime_class, PROGRAM, policy(RULE), unit), lambda path: None, {})


@pytest.fixture
def drop_ins(machine: Machine) -> Path:
    """crio.conf.d with an administrator's file."""
    machine.file("/etc/crio/crio.conf.d/10-crio.conf", (RECORDED / "10-crio.conf").read_bytes())
    machine.crio()
    machine.program(
        "crio",
        f"""echo "$(env | grep ^CONTAINER_) crio $*" >> /run/crio.log
case "$*" in
*--version) echo crio version 1.31.0 ;;
*--default) cat {RECORDED}/default.toml ;;
*) if [ -e /run/error ]; then cat /run/error >&2; exit 1; fi; cat /run/shown.toml ;;
esac""",
    )
    shown("default.toml")
    return Path("/etc/crio/crio.conf.d")


def shown(name: str, change: Callable[[str], str] = str) -> None:
    """What `crio config` prints from now on: a recorded answer."""
    Path("/run/shown.toml").write_text(change((RECORDED / name).read_text()))


def drop_in(wiring: Wiring) -> dict[str, Any]:
    """What our file says."""
    [(path, state)] = wiring.references
    assert path.endswith("/crio.conf.d/99-reassert.conf")
    assert state is not None
    return tomllib.loads(state.content.decode())


def test_tables_are_repeated_whole_with_the_dispatcher_in_them() -> None:
    wiring = wire(read(), RUNTIME)
    assert drop_in(wiring)["crio"]["runtime"]["runtimes"] == {
        "crun": {
            "runtime_path": "/opt/reassert/reassert-crun",
            "runtime_root": "/run/crun",
            "monitor_path": "/usr/libexec/crio/conmon",
            "allowed_annotations": ["io.containers.trace-syscall"],
        },
        "runc": {"runtime_path": "/opt/reassert/reassert-runc", "runtime_root": "/run/runc"},
    }
    dispatchers = [f"/opt/reassert/reassert-{name}" for name in ("crun", "runc")]
    assert [path for path, _ in wiring.artifacts] == ["/var/lib/reassert/cri/crio", *dispatchers]
    assert wiring.artifacts[0][1] == State(b"/var/run/crio/crio.sock\n")
    assert wiring.remarks == ["handler kata (vm) calls no OCI runtime; --adapter nri reaches it"]


def test_second_time_it_says_the_same() -> None:
    first = wire(read(), RUNTIME, HOOK)
    [(_, state)] = first.references
    assert state is not None
    wired = read(**{"99-reassert.conf": state.content.decode()})
    assert wire(wired, RUNTIME, HOOK).references == first.references


def test_builtin_handler_keeps_its_settings() -> None:
    table = drop_in(wire(read(""), RUNTIME))["crio"]["runtime"]["runtimes"]["crun"]
    builtin = parsed("default.toml")["crio"]["runtime"]["runtimes"]["crun"]
    assert table.pop("runtime_path").endswith("/reassert-crun")
    assert {**table, "runtime_path": ""}.items() <= builtin.items()
    assert "timezone" not in table  # crio.runtime's, which `crio config` writes below the last handler
    assert table["monitor_env"]


def test_hook_joins_the_directories_that_there_are() -> None:
    wiring = wire(read(), HOOK)
    assert drop_in(wiring)["crio"]["runtime"]["hooks_dir"] == ["/etc/containers/oci/hooks.d", HOOKS]
    assert [path for path, _ in wiring.artifacts] == ["/var/lib/reassert/cri/crio", f"{HOOKS}/reassert.json"]


def test_where_nobody_else_sets_reserved_env_crio_does() -> None:
    """Else the hook would refuse every container that does not set it itself."""
    config = read(**{"20.conf": '[crio.runtime]\ndefault_env = ["B=2"]\n'})
    assert drop_in(wire(config, HOOK))["crio"]["runtime"]["default_env"] == ["B=2", "A=1"]
    assert "default_env" not in drop_in(wire(config, RUNTIME, HOOK))["crio"]["runtime"]


def test_nri_is_switched_on_and_brings_the_hook() -> None:
    wiring = wire(read(), NRI)
    assert drop_in(wiring)["crio"]["nri"] == {"enable_nri": True}
    assert HOOKS in drop_in(wiring)["crio"]["runtime"]["hooks_dir"]
    assert wiring.units == ["reassert-nri.service"]
    others = wire(read(), NRI, unit=False)
    assert drop_in(others) == drop_in(wiring)
    assert (others.units, len(others.artifacts)) == ([], 2)
    assert "something else runs the NRI plugin" in read().handlers(others.notes)[0].note


def test_named_handler_only() -> None:
    assert list(drop_in(wire(read(), RUNTIME, runtime_class="runc"))["crio"]["runtime"]["runtimes"]) == ["runc"]
    made = drop_in(wire(read(), RUNTIME, runtime_class="held"))["crio"]["runtime"]["runtimes"]["held"]
    assert (made["runtime_path"], made["runtime_root"]) == ("/opt/reassert/reassert-crun", "/run/crun")
    inherited = drop_in(wire(read(), RUNTIME, runtime_class="same"))["crio"]["runtime"]["runtimes"]["same"]
    assert inherited == {
        "runtime_path": "/opt/reassert/reassert-crun",
        "runtime_type": "",
        "runtime_root": "/run/crun",
        "runtime_config_path": "",
    }
    with pytest.raises(NodeError, match="handler kata is of type vm"):
        wire(read(), RUNTIME, runtime_class="kata")


def test_handlers_as_they_are() -> None:
    found = {handler.name: (handler.runtime, handler.wired) for handler in read().handlers({})}
    assert found["crun"] == found["same"] == ("/usr/bin/crun", ())
    assert found["runc"] == ("/usr/sbin/runc", ())
    assert "kata" not in found  # not installed here, and then CRI-O ignores it


def test_crio_read_it_as_it_was_meant() -> None:
    read().check(parsed("wired.toml"), wire(read(), RUNTIME, HOOK))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda text: text.replace("reassert-runc", "runc"), "runtimes.runc.runtime_path as '/opt/reassert/runc'"),
        (lambda text: text.replace(f'\t"{HOOKS}",\n', ""), "hooks_dir as ['/etc/containers/oci/hooks.d'], not as"),
    ],
)
def test_what_crio_reads_otherwise_is_said(change: Callable[[str], str], complaint: str) -> None:
    with pytest.raises(NodeError) as error:
        read().check(parsed("wired.toml", change), wire(read(), RUNTIME, HOOK))
    assert complaint in str(error.value)


def test_settings_that_a_drop_in_lost_are_noticed() -> None:
    """What becomes of a handler whose table in a later file has a runtime_path and nothing else."""
    with pytest.raises(NodeError, match=r"crun.runtime_root as '', not as '/run/crun'"):
        read().check(parsed("path-only.toml"), wire(read(), RUNTIME, runtime_class="crun"))


def test_what_crio_does_not_accept_is_said_in_its_words(drop_ins: Path) -> None:
    engine = Crio.find()
    config = engine.read()
    wiring = wire(config, RUNTIME, HOOK)
    Path("/run/error").write_text('level=info msg=reading\nlevel=fatal msg="unable to decode configuration x.conf"\n')
    with pytest.raises(NodeError, match=r'^CRI-O does not accept its configuration: level=fatal msg="unable'):
        engine.check(config, wiring)


@pytest.mark.parametrize(
    ("name", "text", "key"),
    [
        ("zz.conf", '[crio.runtime.runtimes.crun]\nruntime_path = "/usr/bin/crun"\n', "crio.runtime.runtimes.crun"),
        ("99-x/a", "crio.runtime.hooks_dir = []\n", "crio.runtime.hooks_dir"),
    ],
)
def test_file_that_would_undo_it_stops_the_install(name: str, text: str, key: str) -> None:
    with pytest.raises(NodeError) as error:
        wire(read(**{name: text}), RUNTIME, HOOK)
    assert f"{DIRECTORY}/{name} is read after {OURS} and sets {key}" in str(error.value)


def test_podmans_hook_where_crio_looks_is_warned_of(drop_ins: Path, tmp_path: Path) -> None:
    hooks = tmp_path / "hooks.d"
    hooks.mkdir()
    (drop_ins / "20.conf").write_text(f'crio.runtime.hooks_dir = ["{hooks}"]\n')
    engine = Crio.find()
    assert engine.read().warnings() == []
    (hooks / "reassert.json").write_text('{"stages": ["precreate"]}')
    [warning] = engine.read().warnings()
    assert warning.startswith(f"{hooks}/reassert.json: CRI-O does not start")


def test_what_the_running_crio_was_told_counts_and_not_the_files_alone(drop_ins: Path, machine: Machine) -> None:
    """With --hooks-dir and --listen: the hook of our drop-in is not called, and the socket is another one."""
    [(path, state)] = wire(Crio.find().read(), HOOK).references
    assert state is not None
    Path(path).write_bytes(state.content)
    assert HOOK in Crio.find().read().handlers({})[0].wired
    options = ["--hooks-dir", "/etc/mine", "--listen=/run/mine.sock"]
    listen = 'listen = "/var/run/crio/crio.sock"'
    shown(
        "wired.toml",
        lambda text: text.replace(f'\t"{HOOKS}",\n', "").replace(
            "[crio.api]", "[crio.api]\n" + listen.replace("crio/crio", "mine")
        ),
    )
    machine.daemon("crio.service", "/usr/bin/crio", *options, PATH=systemd.PATH, CONTAINER_STREAM_PORT="1")
    engine = Crio.find()
    now = engine.read()
    assert f"CONTAINER_STREAM_PORT=1 crio {' '.join(options)} config\n" in Path("/run/crio.log").read_text()
    assert HOOK not in now.handlers({})[0].wired
    assert now.effective(with_ours=True)["crio"]["api"]["listen"] == "/var/run/mine.sock"
    choice = Choice((HOOK,), None, PROGRAM, policy(RULE))
    with pytest.raises(NodeError, match=r"an option or variable for hooks_dir, which overrides .*, or set it to "):
        now.wire(choice, lambda path: None, {})


def test_files_that_a_variable_names_are_read(drop_ins: Path, tmp_path: Path, machine: Machine) -> None:
    other = tmp_path / "other.conf.d"
    machine.daemon("crio.service", "/usr/bin/crio", PATH=systemd.PATH, CONTAINER_CONFIG_DIR=str(other))
    assert wire(Crio.find().read(), HOOK).references[0][0] == f"{other}/99-reassert.conf"


def test_deprecated_settings_of_the_monitor_are_every_handlers() -> None:
    """No file has a table of a handler, and CRI-O shows the setting in the built-in ones."""
    config = read('[crio.runtime]\nconmon_cgroup = "pod"\n')
    table = drop_in(wire(config, RUNTIME))["crio"]["runtime"]["runtimes"]["crun"]
    assert table["monitor_cgroup"] == "pod"
    said = 'monitor_cgroup = "system.slice"', 'monitor_cgroup = "pod"'
    shown_now = parsed("default.toml", lambda text: text.replace(*said))
    config.check(shown_now, Wiring(expected={"crio": {"runtime": {"runtimes": {"crun": {"monitor_cgroup": "pod"}}}}}))


def test_a_validator_that_crio_config_never_shows_is_no_difference() -> None:
    table = {"default_validator": {"nri_enable_default_validator": True}}
    read().check(parsed("default.toml"), Wiring(expected={"crio": {"nri": table}}))


def test_a_stored_platform_path_keeps_its_dispatcher(drop_ins: Path, tmp_path: Path) -> None:
    (drop_ins / "20.conf").write_text(f'[crio]\nroot = "{tmp_path}/storage"\n')
    paths = {"platform-runtime-path.crio.io": "new", "io.kubernetes.cri-o.PlatformRuntimePath": "old", "other": "none"}
    for name, stored in paths.items():
        place = tmp_path / f"storage/overlay-containers/{stored}/userdata"
        place.mkdir(parents=True)
        (place / "config.json").write_text(json.dumps({"annotations": {name: f"/opt/reassert/reassert-{stored}"}}))
    engine = Crio.find()
    counts = [engine.users(engine.read(), f"/opt/reassert/reassert-{stored}") for stored in paths.values()]
    assert counts == [1, 1, 0]
