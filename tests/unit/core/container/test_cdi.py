"""The env that CDI specs set for devices, and which files of specs are trusted."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import marks
import pytest
from ruamel.yaml import YAML

from hook.core.base.errors import Undecided
from hook.core.base.system import own_command
from hook.core.container.cdi import CDI_DIRECTORIES, CONVERTED, convert_all, edits_of_devices, env_of
from hook.inside.workers import apart

pytestmark = marks.promise("Values come from files that only root can write")

GPU = "vendor.example/gpu"


def spec(kind: str = GPU, env: list[str] | None = None, **devices: list[str]) -> dict[str, object]:
    """A CDI spec: env for all its devices, and for each device."""
    return {
        "cdiVersion": "0.6.0",
        "kind": kind,
        "containerEdits": {"env": env or [], "hooks": [{"hookName": "createContainer", "path": "/bin/true"}]},
        "devices": [{"name": name, "containerEdits": {"env": entries}} for name, entries in devices.items()],
    }


def write(directory: Path, name: str, data: dict[str, object]) -> Path:
    """Write a spec file, in the format of its extension."""
    directory.mkdir(exist_ok=True)
    path = directory / name
    if name.endswith(".json"):
        path.write_text(json.dumps(data))
    else:
        YAML(typ="safe").dump(data, path)
    return path


def env(root_dir: Path, *devices: str, dirs: tuple[str, ...] = ("run", "etc")) -> dict[str, list[str]]:
    """The env of devices of the kind GPU."""
    directories = tuple(f"{root_dir}/{name}" for name in dirs)
    return env_of(edits_of_devices([f"{GPU}={device}" for device in devices], directories))


@pytest.mark.parametrize("name", ["gpu.json", "gpu.yaml"])
def test_env_of_the_spec_and_of_the_device_in_json_and_in_yaml(root_dir: Path, name: str) -> None:
    write(root_dir / "etc", name, spec(env=["VISIBLE=void", "E=", "EQ=a=b"], a=["A=é"], b=["B=2"]))
    assert env(root_dir, "a") == {"VISIBLE": ["void"], "E": [""], "EQ": ["a=b"], "A": ["é"]}
    assert env(root_dir, "a", "b") == {
        "VISIBLE": ["void", "void"],
        "E": ["", ""],
        "EQ": ["a=b", "a=b"],
        "A": ["é"],
        "B": ["2"],
    }


@pytest.mark.root
def test_a_process_that_may_start_no_other_reads_yaml_that_was_converted_before(root_dir: Path) -> None:
    path = write(root_dir / "etc", "gpu.yaml", spec(a=["A=1"]))
    write(root_dir / "etc", "other.json", spec("other.example/nic"))
    write(root_dir / "etc", "foreign.yaml", spec("other.example/gpu")).chmod(0o666)
    for convert, wanted in ((False, None), (True, {"A": ["1"]})):
        if convert:
            convert_all((f"{root_dir}/etc",))
        assert apart(lambda: None, lambda _: env(root_dir, "a")) == wanted
    write(root_dir / "etc", "gpu.yaml", spec(a=["A=changed"]))
    assert env(root_dir, "a") == {"A": ["changed"]}, "another text is another spec"
    (root_dir / "etc" / "broken.yaml").write_bytes(b"\xff")
    convert_all((f"{root_dir}/etc",))
    assert list(CONVERTED) == [path.read_text()], "`audit --watch` does not keep every spec that there ever was"
    CONVERTED.clear()


def test_files_that_cdis_library_leaves_out_are_no_specs(root_dir: Path) -> None:
    for name in ("gpu.yml", "gpu.YAML", "gpu"):
        path = write(root_dir / "etc", "gpu.json", spec(a=["A=1"]))
        path.rename(path.with_name(name))
    assert env(root_dir, "a") == {}


HEAD = f'cdiVersion: "0.6.0"\nkind: {GPU}\ndevices:\n- name: '
REST = "\n  containerEdits:\n    env: [A=1]\n"


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("0", "0"),
        ("010", "8"),
        ("0x1f", "31"),
        ("0o17", "15"),
        ("0b11", "3"),
        ("1_000", "1000"),
        ("08", "8"),
        ("1.10", "1.1"),
        ("1.0", "1"),
        ("1e2", "100"),
        ("1e6", "1e+06"),
        ("0.00001", "1e-05"),
        ("123456789.5", "1.234567895e+08"),
        ("-2.5", "-2.5"),
        ("yes", "true"),
        ("Off", "false"),
        ("true", "true"),
        ("2026-01-02", "2026-01-02"),
        ("1:30", "1:30"),
        ("a-0", "a-0"),
        ('"010"', "010"),
        ("'yes'", "yes"),
        ("!!str 10", "10"),
        ("mig1:0", "mig1:0"),
    ],
)
def test_a_name_is_the_text_that_cdis_library_makes_of_it(root_dir: Path, written: str, name: str) -> None:
    """What sigs.k8s.io/yaml makes of a scalar where Go has a string; in a file of either extension."""
    (root_dir / "etc").mkdir()
    for extension in ("yaml", "json"):
        path = root_dir / "etc" / f"gpu.{extension}"
        path.write_text(HEAD + written + REST)
        assert env(root_dir, name) == {"A": ["1"]}
        path.unlink()


@pytest.mark.parametrize(
    "text",
    [
        HEAD + "a" + REST + "---\n",
        HEAD + "a" + REST + "---\nkind: other.example/nic\n",
        HEAD + "a" + REST + "...\n---\n]",
        "---\n# a comment\n" + HEAD + "a" + REST,
        "%YAML 1.1\n---\n" + HEAD + "a" + REST,
        f'{{"kind": "{GPU}", "devices": [{{"name": "a", "containerEdits": {{"env": ["A=1"],}}}}]}} # and a comment',
        f"{{kind: {GPU}, devices: [{{name: a, containerEdits: {{env: [A=1]}}}}]}}",
        f"x: &edits {{env: [A=1]}}\nkind: {GPU}\ndevices:\n- {{name: a, containerEdits: *edits}}\n",
        f"x: &edits {{env: [A=1]}}\nkind: {GPU}\ndevices:\n- {{name: a, containerEdits: {{<<: *edits, hooks: []}}}}\n",
        f"kind: {GPU}\ndevices:\n- name: |-\n    a\n  containerEdits: {{env: ['A=1']}}\n",
    ],
)
def test_specs_are_yaml_whose_first_document_counts(root_dir: Path, text: str) -> None:
    (root_dir / "etc").mkdir()
    for extension in ("yaml", "json"):
        path = root_dir / "etc" / f"gpu.{extension}"
        path.write_text(text)
        assert env(root_dir, "a") == {"A": ["1"]}
        path.unlink()


def test_device_that_no_spec_has_sets_nothing(root_dir: Path) -> None:
    assert env(root_dir, "a") == {}
    write(root_dir / "etc", "gpu.json", spec(env=["VISIBLE=void"], b=[]))
    assert env(root_dir, "a") == {}
    assert edits_of_devices([]) == []
    assert edits_of_devices(["no-equals-sign"], (f"{root_dir}/etc",)) == []


def test_spec_in_var_run_goes_before_one_in_etc_for_each_device(root_dir: Path) -> None:
    assert CDI_DIRECTORIES == ("/var/run/cdi", "/etc/cdi")
    write(root_dir / "etc", "gpu.json", spec(a=["A=etc"], b=["B=etc"]))
    write(root_dir / "run", "gpu.yaml", spec(a=["A=run"]))
    assert env(root_dir, "a", "b") == {"A": ["run"], "B": ["etc"]}


def test_each_device_may_stand_in_a_file_of_its_own(root_dir: Path) -> None:
    write(root_dir / "etc", "1.json", spec(env=["S=1"], a=[]))
    write(root_dir / "etc", "2.json", spec(env=["S=2"], b=[]))
    assert env(root_dir, "a", "b") == {"S": ["1", "2"]}


def test_device_of_the_same_name_but_another_kind_is_another(root_dir: Path) -> None:
    write(root_dir / "etc", "gpu.json", spec("other.example/gpu", ["S=other"], a=[]))
    write(root_dir / "etc", "mig.json", spec(GPU + "-mig", ["S=mig"], a=[]))
    assert env(root_dir, "a") == {}


def test_what_is_not_about_the_devices_is_ignored_however_broken(root_dir: Path) -> None:
    etc = root_dir / "etc"
    write(etc, "gpu.json", spec(a=["A=1"]))
    (etc / "broken.json").write_text('{"kind": "other.example/nic", ')
    (etc / "broken.yaml").write_text("kind: other.example/nic\n\t- [")
    (etc / f"{GPU.partition('/')[2]}.json.tmp").write_text(f'{{"kind": "{GPU}"')
    (etc / "README").write_text(GPU)
    (etc / "gone.json").symlink_to("nowhere")
    foreign = write(etc, "foreign.json", spec("other.example/nic"))
    foreign.chmod(0o666)
    assert env(root_dir, "a") == {"A": ["1"]}


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda path: path.chmod(0o666), "is writable by others"),
        pytest.param(lambda path: os.chown(path, 1000, 0), "belongs to uid 1000", marks=pytest.mark.users),
        (lambda path: path.parent.chmod(0o777), "is writable by others"),
        (lambda path: path.write_text(f'{{"kind": "{GPU}", "devices": ['), "neither YAML nor JSON: "),
        (lambda path: path.write_bytes(f'{{"kind": "{GPU}"'.encode() + b"\xff}"), "not UTF-8"),
        (lambda path: (path.unlink(), path.mkdir()), "is not a regular file"),
        (lambda path: (path.unlink(), path.symlink_to(path.name)), "Too many levels of symbolic links"),
    ],
    ids=["mode", "owner", "directory-mode", "json", "utf-8", "directory", "loop"],
)
def test_spec_of_the_devices_that_cannot_be_believed_is_undecided(
    root_dir: Path, spoil: Callable[[Path], object], complaint: str
) -> None:
    path = write(root_dir / "etc", "gpu.json", spec(a=["A=1"]))
    spoil(path)
    with pytest.raises(Undecided, match=complaint) as caught:
        env(root_dir, "a")
    assert str(caught.value).startswith(f"CDI spec {path}: ")


def test_yaml_that_cannot_be_read_is_undecided(root_dir: Path) -> None:
    path = write(root_dir / "etc", "gpu.yaml", spec(a=["A=1"]))
    path.write_text(f"kind: {GPU}\ndevices: [")
    with pytest.raises(Undecided, match=r"CDI spec .*/gpu.yaml: "):
        env(root_dir, "a")


BOMB = "a: [&a [x]" + "".join(f", &{b} [{f'*{a}, ' * 20}]" for a, b in pairwise("abcdefghijk")) + "]"


@marks.hole(
    "Under a policy with allocations, a CDI spec in YAML with aliases in aliases held each start that read it for 20 s,"
    " and then refused it",
    since="0.4.0",
    fixed="0.4.0",
    severity="low",
)
@pytest.mark.parametrize("text", ["[", "a: 1\na: 2", "{[b]: a}", "&a [*a]", "9" * 5000, "[" * 2000, BOMB])
def test_yaml_that_cannot_be_converted_is_told_in_one_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "gpu.yaml").write_text(text)
    command = [*own_command(), "cdi", "convert", str(tmp_path / "gpu.yaml")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"reassert: {tmp_path}/gpu.yaml: ")


@pytest.mark.parametrize(
    "data",
    [
        [GPU],
        {"kind": GPU},
        {"kind": GPU, "devices": {}},
        {"kind": GPU, "devices": [3, {"name": "a"}]},
        {"kind": GPU, "containerEdits": [], "devices": [{"name": "a", "containerEdits": {"env": "A=1"}}]},
        {"kind": GPU, "devices": [{"name": "a", "containerEdits": {"env": [1, None]}}]},
    ],
)
def test_spec_of_an_odd_shape_sets_nothing(root_dir: Path, data: object) -> None:
    (root_dir / "etc").mkdir()
    (root_dir / "etc" / "gpu.json").write_text(json.dumps(data))
    assert env(root_dir, "a") == {}
