"""CRI-O's files, and what CRI-O 1.31.0 itself made of them (tests/fixtures/crio)."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hook.node import systemd
from hook.node.change.files import State
from hook.node.engines.base import HOOK, NRI, RUNTIME, Choice, Wiring
from hook.node.engines.crio import HOOKS, Crio
from hook.node.errors import NodeError
from unit.ownmachine import Machine
from unit.support import FIXTURES, policy

RECORDED = FIXTURES / "crio"
PROGRAM = "/opt/reassert/reassert"
RULE = {"name": "ca", "env": [{"name": "A", "value": "1"}]}


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


def wire(*adapters: str, runtime_class: str | None = None, unit: bool = True) -> tuple[Crio, Wiring]:
    engine = Crio.find()
    choice = Choice(adapters, runtime_class, PROGRAM, policy(RULE), unit)
    return engine, engine.wire(engine.read(), choice, lambda path: None, {})


def drop_in(wiring: Wiring) -> dict[str, Any]:
    """What our file says."""
    [(path, state)] = wiring.references
    assert path.endswith("/crio.conf.d/99-reassert.conf")
    assert state is not None
    return tomllib.loads(state.content.decode())


def test_tables_are_repeated_whole_with_the_dispatcher_in_them(drop_ins: Path) -> None:
    _, wiring = wire(RUNTIME)
    assert drop_in(wiring)["crio"]["runtime"]["runtimes"] == {
        "crun": {
            "runtime_path": "/usr/local/sbin/reassert-crun",
            "runtime_root": "/run/crun",
            "monitor_path": "/usr/libexec/crio/conmon",
            "allowed_annotations": ["io.containers.trace-syscall"],
        },
        "runc": {"runtime_path": "/usr/local/sbin/reassert-runc", "runtime_root": "/run/runc"},
    }
    dispatchers = [f"/usr/local/sbin/reassert-{name}" for name in ("crun", "runc")]
    assert [path for path, _ in wiring.artifacts] == ["/var/lib/reassert/cri/crio", *dispatchers]
    assert wiring.artifacts[0][1] == State(b"/var/run/crio/crio.sock\n")
    assert wiring.remarks == ["handler kata (vm) calls no OCI runtime; --adapter nri reaches it"]


def test_second_time_it_says_the_same(drop_ins: Path) -> None:
    _, first = wire(RUNTIME, HOOK)
    [(path, state)] = first.references
    assert state is not None
    Path(path).write_bytes(state.content)
    assert wire(RUNTIME, HOOK)[1].references == first.references


def test_builtin_handler_keeps_its_settings(drop_ins: Path) -> None:
    (drop_ins / "10-crio.conf").unlink()
    _, wiring = wire(RUNTIME)
    table = drop_in(wiring)["crio"]["runtime"]["runtimes"]["crun"]
    builtin = tomllib.loads((RECORDED / "default.toml").read_text())["crio"]["runtime"]["runtimes"]["crun"]
    assert table.pop("runtime_path").endswith("/reassert-crun")
    assert {**table, "runtime_path": ""}.items() <= builtin.items()
    assert "timezone" not in table  # crio.runtime's, which `crio config` writes below the last handler
    assert table["monitor_env"]


def test_hook_joins_the_directories_that_there_are(drop_ins: Path) -> None:
    _, wiring = wire(HOOK)
    assert drop_in(wiring)["crio"]["runtime"]["hooks_dir"] == ["/etc/containers/oci/hooks.d", HOOKS]
    assert [path for path, _ in wiring.artifacts] == ["/var/lib/reassert/cri/crio", f"{HOOKS}/reassert.json"]


def test_where_nobody_else_sets_reserved_env_crio_does(drop_ins: Path) -> None:
    """Else the hook would refuse every container that does not set it itself."""
    (drop_ins / "20.conf").write_text('[crio.runtime]\ndefault_env = ["B=2"]\n')
    assert drop_in(wire(HOOK)[1])["crio"]["runtime"]["default_env"] == ["B=2", "A=1"]
    assert "default_env" not in drop_in(wire(RUNTIME, HOOK)[1])["crio"]["runtime"]


def test_nri_is_switched_on_and_brings_the_hook(drop_ins: Path) -> None:
    _, wiring = wire(NRI)
    assert drop_in(wiring)["crio"]["nri"] == {"enable_nri": True}
    assert HOOKS in drop_in(wiring)["crio"]["runtime"]["hooks_dir"]
    assert wiring.units == ["reassert-nri.service"]
    engine, others = wire(NRI, unit=False)
    assert drop_in(others) == drop_in(wiring)
    assert (others.units, len(others.artifacts)) == ([], 2)
    assert "something else runs the NRI plugin" in engine.handlers(engine.read(), others.notes)[0].note


def test_named_handler_only(drop_ins: Path) -> None:
    assert list(drop_in(wire(RUNTIME, runtime_class="runc")[1])["crio"]["runtime"]["runtimes"]) == ["runc"]
    made = drop_in(wire(RUNTIME, runtime_class="held")[1])["crio"]["runtime"]["runtimes"]["held"]
    assert (made["runtime_path"], made["runtime_root"]) == ("/usr/local/sbin/reassert-crun", "/run/crun")
    inherited = drop_in(wire(RUNTIME, runtime_class="same")[1])["crio"]["runtime"]["runtimes"]["same"]
    assert inherited == {
        "runtime_path": "/usr/local/sbin/reassert-crun",
        "runtime_type": "",
        "runtime_root": "/run/crun",
        "runtime_config_path": "",
    }
    with pytest.raises(NodeError, match="handler kata is of type vm"):
        wire(RUNTIME, runtime_class="kata")


def test_handlers_as_they_are(drop_ins: Path) -> None:
    found = {handler.name: (handler.runtime, handler.wired) for handler in Crio.find().handlers(Crio.find().read(), {})}
    assert found["crun"] == found["same"] == ("/usr/bin/crun", ())
    assert found["runc"] == ("/usr/sbin/runc", ())
    assert "kata" not in found  # not installed here, and then CRI-O ignores it


def test_crio_read_it_as_it_was_meant(drop_ins: Path) -> None:
    engine, wiring = wire(RUNTIME, HOOK)
    shown("wired.toml")
    engine.check(engine.read(), wiring)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda text: text.replace("reassert-runc", "runc"), "runtimes.runc.runtime_path as '/usr/local/sbin/runc'"),
        (lambda text: text.replace(f'\t"{HOOKS}",\n', ""), "hooks_dir as ['/etc/containers/oci/hooks.d'], not as"),
    ],
)
def test_what_crio_reads_otherwise_is_said(change: Callable[[str], str], complaint: str, drop_ins: Path) -> None:
    engine, wiring = wire(RUNTIME, HOOK)
    shown("wired.toml", change)
    with pytest.raises(NodeError) as error:
        engine.check(engine.read(), wiring)
    assert complaint in str(error.value)


def test_settings_that_a_drop_in_lost_are_noticed(drop_ins: Path) -> None:
    """What becomes of a handler whose table in a later file has a runtime_path and nothing else."""
    engine, wiring = wire(RUNTIME, runtime_class="crun")
    shown("path-only.toml")
    with pytest.raises(NodeError, match=r"crun.runtime_root as '', not as '/run/crun'"):
        engine.check(engine.read(), wiring)


def test_what_crio_does_not_accept_is_said_in_its_words(drop_ins: Path) -> None:
    engine, wiring = wire(RUNTIME, HOOK)
    Path("/run/error").write_text('level=info msg=reading\nlevel=fatal msg="unable to decode configuration x.conf"\n')
    with pytest.raises(NodeError, match=r'^CRI-O does not accept its configuration: level=fatal msg="unable'):
        engine.check(engine.read(), wiring)


@pytest.mark.parametrize(
    ("name", "text", "key"),
    [
        ("zz.conf", '[crio.runtime.runtimes.crun]\nruntime_path = "/usr/bin/crun"\n', "crio.runtime.runtimes.crun"),
        ("99-x/a", "crio.runtime.hooks_dir = []\n", "crio.runtime.hooks_dir"),
    ],
)
def test_file_that_would_undo_it_stops_the_install(name: str, text: str, key: str, drop_ins: Path) -> None:
    (drop_ins / name).parent.mkdir(exist_ok=True)
    (drop_ins / name).write_text(text)
    with pytest.raises(NodeError) as error:
        wire(RUNTIME, HOOK)
    assert f"{drop_ins / name} is read after {drop_ins}/99-reassert.conf and sets {key}" in str(error.value)


def test_podmans_hook_where_crio_looks_is_warned_of(drop_ins: Path, tmp_path: Path) -> None:
    hooks = tmp_path / "hooks.d"
    hooks.mkdir()
    (drop_ins / "20.conf").write_text(f'crio.runtime.hooks_dir = ["{hooks}"]\n')
    engine = Crio.find()
    assert engine.warnings(engine.read()) == []
    (hooks / "reassert.json").write_text('{"stages": ["precreate"]}')
    [warning] = engine.warnings(engine.read())
    assert warning.startswith(f"{hooks}/reassert.json: CRI-O does not start")


def test_what_the_running_crio_was_told_counts_and_not_the_files_alone(drop_ins: Path, machine: Machine) -> None:
    """With --hooks-dir and --listen: the hook of our drop-in is not called, and the socket is another one."""
    _, wiring = wire(HOOK)
    [(path, state)] = wiring.references
    assert state is not None
    Path(path).write_bytes(state.content)
    assert HOOK in Crio.find().handlers(Crio.find().read(), {})[0].wired
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
    assert HOOK not in engine.handlers(now, {})[0].wired
    assert now.effective(with_ours=True)["crio"]["api"]["listen"] == "/var/run/mine.sock"
    choice = Choice((HOOK,), None, PROGRAM, policy(RULE))
    with pytest.raises(NodeError, match=r"an option or variable for hooks_dir, which overrides .*, or set it to "):
        engine.wire(now, choice, lambda path: None, {})


def test_files_that_a_variable_names_are_read(drop_ins: Path, tmp_path: Path, machine: Machine) -> None:
    other = tmp_path / "other.conf.d"
    machine.daemon("crio.service", "/usr/bin/crio", PATH=systemd.PATH, CONTAINER_CONFIG_DIR=str(other))
    _, wiring = wire(HOOK)
    assert wiring.references[0][0] == f"{other}/99-reassert.conf"


def test_deprecated_settings_of_the_monitor_are_every_handlers(drop_ins: Path) -> None:
    """No file has a table of a handler, and CRI-O shows the setting in the built-in ones."""
    (drop_ins / "10-crio.conf").write_text('[crio.runtime]\nconmon_cgroup = "pod"\n')
    engine, wiring = wire(RUNTIME)
    table = drop_in(wiring)["crio"]["runtime"]["runtimes"]["crun"]
    assert table["monitor_cgroup"] == "pod"
    shown("default.toml", lambda text: text.replace('monitor_cgroup = "system.slice"', 'monitor_cgroup = "pod"'))
    engine.check(
        engine.read(), Wiring(expected={"crio": {"runtime": {"runtimes": {"crun": {"monitor_cgroup": "pod"}}}}})
    )


def test_a_validator_that_crio_config_never_shows_is_no_difference(drop_ins: Path) -> None:
    engine = Crio.find()
    table = {"default_validator": {"nri_enable_default_validator": True}}
    engine.check(engine.read(), Wiring(expected={"crio": {"nri": table}}))


def test_a_stored_platform_path_keeps_its_dispatcher(drop_ins: Path, tmp_path: Path) -> None:
    (drop_ins / "20.conf").write_text(f'[crio]\nroot = "{tmp_path}/storage"\n')
    paths = {"platform-runtime-path.crio.io": "new", "io.kubernetes.cri-o.PlatformRuntimePath": "old", "other": "none"}
    for name, stored in paths.items():
        place = tmp_path / f"storage/overlay-containers/{stored}/userdata"
        place.mkdir(parents=True)
        (place / "config.json").write_text(json.dumps({"annotations": {name: f"/usr/local/sbin/reassert-{stored}"}}))
    engine = Crio.find()
    counts = [engine.users(engine.read(), f"/usr/local/sbin/reassert-{stored}") for stored in paths.values()]
    assert counts == [1, 1, 0]
