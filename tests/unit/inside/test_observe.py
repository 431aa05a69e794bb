"""Mounts as a process really has them, in a mount namespace of its own."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hook.core.policy.model import Mount
from hook.inside.observe import mounts
from hook.inside.process import ContainerGone

Look = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def top(root_dir: Path) -> Path:
    """source/ is the policy's, evil/ the pod's, in/etc ssl/ where they are mounted."""
    for path in ("source/sub", "evil/sub", "in/etc ssl"):
        (root_dir / path).mkdir(parents=True)
    return root_dir


@pytest.fixture
def look(top: Path) -> Iterator[Look]:
    """What is seen after some mount commands; `bind A B` and `ro PATH` count from `top`."""
    processes = []

    def run(*commands: str, **reservation: Any) -> list[dict[str, Any]]:
        functions = 'bind() { mount --bind "$1" "$2"; }\nro() { mount -o remount,bind,ro "$1"; }\n'
        script = functions + "\n".join(commands) + "\necho ready; exec sleep 60"
        unshare = ["unshare", "--mount", "--propagation", "private", "sh", "-ec", script]
        process = subprocess.Popen(unshare, cwd=top, stdout=subprocess.PIPE, text=True)
        processes.append(process)
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        reserved = {"source": f"{top}/source", "options": ["rbind", "ro"], **reservation}
        found = mounts(
            process.pid, [Mount(destination=f"{top}/in/etc ssl", allow_below=[], skip_missing=False, **reserved)]
        )
        for mount in found:
            mount["destination"] = str(mount["destination"]).removeprefix(f"{top}/in/")
        return found

    yield run
    for process in processes:
        process.kill()
        process.communicate()


OURS, RO = "bind source 'in/etc ssl'", "ro 'in/etc ssl'"
EVIL = "bind evil 'in/etc ssl'"


def seen(found: list[dict[str, Any]], top: Path) -> list[str]:
    """Whose each mount is: `ours` exactly as reserved."""
    ours = {"type": "bind", "source": f"{top}/source", "options": ["rbind", "ro", "rro"]}
    return [f"{'ours' if ours.items() <= mount.items() else 'foreign'} {mount['destination']}" for mount in found]


@pytest.mark.openat2
@pytest.mark.parametrize(
    ("commands", "expected"),
    [
        ([], []),
        ([OURS, RO], ["ours etc ssl"]),
        ([OURS], ["foreign etc ssl"]),
        ([EVIL, "ro 'in/etc ssl'"], ["foreign etc ssl"]),
        ([EVIL, OURS, RO], ["ours etc ssl"]),
        ([OURS, RO, EVIL], ["foreign etc ssl"]),
        (["bind source/sub 'in/etc ssl'", RO], ["foreign etc ssl"]),
        ([OURS, RO, "bind evil 'in/etc ssl/sub'"], ["foreign etc ssl/sub", "ours etc ssl"]),
        ([OURS, RO, "bind source/sub 'in/etc ssl/sub'"], ["ours etc ssl"]),
        ([EVIL, "bind evil 'in/etc ssl/sub'", OURS, RO], ["ours etc ssl"]),
        ([OURS, RO, "mount -t tmpfs tmpfs in"], []),
        ([OURS, RO, "bind in in"], []),
    ],
    ids=[
        "none",
        "ours",
        "writable",
        "evil",
        "evil-below-ours",
        "evil-over-ours",
        "part",
        "below",
        "its own below",
        "hidden below",
        "hidden",
        "hidden by itself",
    ],
)
def test_what_is_visible_counts(look: Look, top: Path, commands: list[str], expected: list[str]) -> None:
    assert seen(look(*commands), top) == expected


@pytest.mark.openat2
def test_where_nothing_may_be_mounted_everything_is_foreign(look: Look, top: Path) -> None:
    assert seen(look(OURS, RO, "bind source/sub 'in/etc ssl/sub'", source="", options=[]), top) == [
        "foreign etc ssl",
        "foreign etc ssl/sub",
    ]


@pytest.mark.openat2
def test_a_file_is_known_by_itself_not_by_what_it_says(look: Look, top: Path) -> None:
    for name in ("source/ca.pem", "evil/ca.pem"):
        (top / name).write_text("the same\n")
    (top / "in/etc ssl").rmdir()
    (top / "in/etc ssl").touch()
    reserved = {"source": f"{top}/source/ca.pem", "options": []}
    [mount] = look("bind source/ca.pem 'in/etc ssl'", **reserved)
    assert mount["source"] == reserved["source"]
    [mount] = look("bind evil/ca.pem 'in/etc ssl'", **reserved)
    assert mount["source"] != reserved["source"]


def test_a_process_that_ended_has_none() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    with pytest.raises(ContainerGone):
        mounts(process.pid, [])
