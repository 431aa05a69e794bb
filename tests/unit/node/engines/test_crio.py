"""CRI-O's files, and what CRI-O 1.31.0 itself made of them (tests/fixtures/crio)."""

from __future__ import annotations

import json
import shutil
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hook.node import systemd
from hook.node.artifacts import dispatchers
from hook.node.engines import crio
from hook.node.engines.base import HOOK, NRI, RUNTIME, Choice, Wiring
from hook.node.engines.crio import HOOKS, Crio
from hook.node.errors import NodeError
from unit.support import FIXTURES, policy

RECORDED = FIXTURES / "crio"
PROGRAM = "/opt/reassert/reassert"
RULE = {"name": "ca", "env": [{"name": "A", "value": "1"}]}


@pytest.fixture
def drop_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """crio.conf.d with an administrator's file. `crio config` says `shown`, a recorded answer."""
    directory = tmp_path / "crio.conf.d"
    directory.mkdir()
    shutil.copy(RECORDED / "10-crio.conf", directory)
    monkeypatch.setattr(crio, "_DROP_INS", str(directory))
    monkeypatch.setattr(crio, "_CONFIG", str(tmp_path / "crio.conf"))
    monkeypatch.setattr(dispatchers, "DIRECTORY", str(tmp_path / "sbin"))
    answers(monkeypatch)
    return directory


def answers(monkeypatch: pytest.MonkeyPatch, shown: str = "default.toml", error: str = "") -> None:
    """What the recorded crio says to `crio config`."""
    said = {"--version": "crio version 1.31.0\n", "--default": (RECORDED / "default.toml").read_text()}

    def command(arguments: list[str], seconds: float = 0) -> subprocess.CompletedProcess[str]:
        text = said.get(arguments[-1]) or (RECORDED / shown).read_text()
        return subprocess.CompletedProcess(arguments, 1 if error else 0, text, error)

    monkeypatch.setattr(systemd, "command", command)


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


def test_tables_are_repeated_whole_with_the_dispatcher_in_them(drop_ins: Path, tmp_path: Path) -> None:
    _, wiring = wire(RUNTIME)
    assert drop_in(wiring)["crio"]["runtime"]["runtimes"] == {
        "crun": {
            "runtime_path": f"{tmp_path}/sbin/reassert-crun",
            "runtime_root": "/run/crun",
            "monitor_path": "/usr/libexec/crio/conmon",
            "allowed_annotations": ["io.containers.trace-syscall"],
        },
        "runc": {"runtime_path": f"{tmp_path}/sbin/reassert-runc", "runtime_root": "/run/runc"},
    }
    assert [path for path, _ in wiring.artifacts] == [f"{tmp_path}/sbin/reassert-{name}" for name in ("crun", "runc")]
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
    assert [path for path, _ in wiring.artifacts] == [f"{HOOKS}/reassert.json"]


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
    assert (others.units, len(others.artifacts)) == ([], 1)
    assert "something else runs the NRI plugin" in engine.handlers(engine.read(), others.notes)[0].note


def test_named_handler_only(drop_ins: Path, tmp_path: Path) -> None:
    assert list(drop_in(wire(RUNTIME, runtime_class="runc")[1])["crio"]["runtime"]["runtimes"]) == ["runc"]
    made = drop_in(wire(RUNTIME, runtime_class="held")[1])["crio"]["runtime"]["runtimes"]["held"]
    assert (made["runtime_path"], made["runtime_root"]) == (f"{tmp_path}/sbin/reassert-crun", "/run/crun")
    inherited = drop_in(wire(RUNTIME, runtime_class="same")[1])["crio"]["runtime"]["runtimes"]["same"]
    assert inherited == {
        "runtime_path": f"{tmp_path}/sbin/reassert-crun",
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


def recorded_wiring(drop_ins: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Crio, Wiring]:
    monkeypatch.setattr(dispatchers, "DIRECTORY", "/usr/local/sbin")
    return wire(RUNTIME, HOOK)


def test_crio_read_it_as_it_was_meant(drop_ins: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, wiring = recorded_wiring(drop_ins, monkeypatch)
    answers(monkeypatch, "wired.toml")
    engine.check(engine.read(), wiring)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda text: text.replace("reassert-runc", "runc"), "runtimes.runc.runtime_path as '/usr/local/sbin/runc'"),
        (lambda text: text.replace(f'\t"{HOOKS}",\n', ""), "hooks_dir as ['/etc/containers/oci/hooks.d'], not as"),
    ],
)
def test_what_crio_reads_otherwise_is_said(
    change: Callable[[str], str], complaint: str, drop_ins: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    engine, wiring = recorded_wiring(drop_ins, monkeypatch)
    (tmp_path / "shown.toml").write_text(change((RECORDED / "wired.toml").read_text()))
    answers(monkeypatch, str(tmp_path / "shown.toml"))
    with pytest.raises(NodeError) as error:
        engine.check(engine.read(), wiring)
    assert complaint in str(error.value)


def test_settings_that_a_drop_in_lost_are_noticed(drop_ins: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What becomes of a handler whose table in a later file has a runtime_path and nothing else."""
    monkeypatch.setattr(dispatchers, "DIRECTORY", "/usr/local/sbin")
    engine, wiring = wire(RUNTIME, runtime_class="crun")
    answers(monkeypatch, "path-only.toml")
    with pytest.raises(NodeError, match=r"crun.runtime_root as '', not as '/run/crun'"):
        engine.check(engine.read(), wiring)


def test_what_crio_does_not_accept_is_said_in_its_words(drop_ins: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, wiring = recorded_wiring(drop_ins, monkeypatch)
    answers(monkeypatch, error='level=info msg=reading\nlevel=fatal msg="unable to decode configuration x.conf"\n')
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


def runs(monkeypatch: pytest.MonkeyPatch, *arguments: str, environment: tuple[str, ...] = ()) -> list[list[str]]:
    """crio runs, with these arguments and variables. Returns the commands that are called from now on."""
    called: list[list[str]] = []
    answer = systemd.command

    def command(words: list[str], seconds: float = 0) -> subprocess.CompletedProcess[str]:
        called.append(words)
        return answer(words, seconds)

    monkeypatch.setattr(systemd, "main_pid", lambda unit: 7)
    monkeypatch.setattr(crio, "arguments_of", lambda pid: ["/usr/bin/crio", *arguments, ""])
    monkeypatch.setattr(crio, "environment_of", lambda pid: list(environment))
    monkeypatch.setattr(systemd, "command", command)
    return called


def shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[str], str], of: str = "wired.toml"
) -> None:
    (tmp_path / "shown.toml").write_text(change((RECORDED / of).read_text()))
    answers(monkeypatch, str(tmp_path / "shown.toml"))


def test_what_the_running_crio_was_told_counts_and_not_the_files_alone(
    drop_ins: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With --hooks-dir and --listen: the hook of our drop-in is not called, and the socket is another one."""
    _, wiring = wire(HOOK)
    [(path, state)] = wiring.references
    assert state is not None
    Path(path).write_bytes(state.content)
    assert HOOK in Crio.find().handlers(Crio.find().read(), {})[0].wired
    options = ["--hooks-dir", "/etc/mine", "--listen=/run/mine.sock"]
    listen = 'listen = "/var/run/crio/crio.sock"'
    shown(
        tmp_path,
        monkeypatch,
        lambda text: text.replace(f'\t"{HOOKS}",\n', "").replace(
            "[crio.api]", "[crio.api]\n" + listen.replace("crio/crio", "mine")
        ),
    )
    called = runs(monkeypatch, *options, environment=("CONTAINER_STREAM_PORT=1",))
    engine = Crio.find()
    now = engine.read()
    assert ["env", "-i", "CONTAINER_STREAM_PORT=1", "crio", *options, "config"] in called
    assert HOOK not in engine.handlers(now, {})[0].wired
    assert now.effective(with_ours=True)["crio"]["api"]["listen"] == "/var/run/mine.sock"
    choice = Choice((HOOK,), None, PROGRAM, policy(RULE))
    with pytest.raises(NodeError, match=r"an option or variable for hooks_dir, which overrides .*, or set it to "):
        engine.wire(now, choice, lambda path: None, {})


def test_files_that_a_variable_names_are_read(drop_ins: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "other.conf.d"
    runs(monkeypatch, environment=(f"CONTAINER_CONFIG_DIR={other}",))
    _, wiring = wire(HOOK)
    assert wiring.references[0][0] == f"{other}/99-reassert.conf"


def test_deprecated_settings_of_the_monitor_are_every_handlers(
    drop_ins: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No file has a table of a handler, and CRI-O shows the setting in the built-in ones."""
    (drop_ins / "10-crio.conf").write_text('[crio.runtime]\nconmon_cgroup = "pod"\n')
    engine, wiring = wire(RUNTIME)
    table = drop_in(wiring)["crio"]["runtime"]["runtimes"]["crun"]
    assert table["monitor_cgroup"] == "pod"
    shown(
        tmp_path,
        monkeypatch,
        lambda text: text.replace('monitor_cgroup = "system.slice"', 'monitor_cgroup = "pod"'),
        "default.toml",
    )
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
