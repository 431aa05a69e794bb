"""Generations and live files: what a build changes, in which order, and what a killed one leaves."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import marks
import pytest

from hook.core.policy import trust_layout as layout
from hook.ops.trust import source
from hook.ops.trust.build import Sources, build
from hook.ops.trust.errors import TrustError
from hook.ops.trust.generation import Store, read_tree
from unit.ops.trust.authority import DAY, NOW, bundle, ca, key, roots
from unit.ops.trust.conftest import TrustStore
from unit.support import called

pytestmark = marks.promise(
    "A reader finds the CAs of both generations at every moment of a rotation; a build that is killed is "
    "completed by the next"
)

OTHER = ca("Another CA", signer=key(2))
FILES = (
    layout.BUNDLE, layout.ADDED, layout.JAVA, layout.MANIFEST,
    *(f"{layout.CERTS}/{name}" for name in (
        layout.BUNDLE, layout.ADDED, layout.JAVA, layout.CERTS_BUNDLE, layout.CERTS_TRUST)),
    *(f"{layout.EXTRACTED}/{name}" for name in (
        layout.JAVA, *layout.EXTRACTED_BUNDLES, f"{layout.EXTRACTED_HASHED}/{layout.BUNDLE}")),
)  # fmt: skip


def test_a_store_has_every_file_of_the_layout(built: TrustStore) -> None:
    """And once more with the added CAs alone."""
    files = built.files()
    assert set(FILES) <= files.keys()
    assert read_tree(built.live) == read_tree(built.store / "generations/000001")
    alone = {path.removeprefix("alone/"): content for path, content in files.items() if path.startswith("alone/")}
    assert {path for path in FILES if path != layout.MANIFEST} <= alone.keys()
    assert alone[layout.BUNDLE] == alone[f"{layout.CERTS}/{layout.BUNDLE}"] == files[layout.ADDED]
    assert len([path for path in alone if path.startswith(f"{layout.CERTS}/") and path.endswith(".0")]) == 1


def test_a_build_of_the_same_sources_changes_nothing(built: TrustStore) -> None:
    before = {path: path.stat() for path in built.live.rglob("*")}
    again = built.build()
    assert (again.number, again.is_new, again.repaired) == (1, False, False)
    for path, status in before.items():
        assert (path.stat().st_ino, path.stat().st_mtime_ns) == (status.st_ino, status.st_mtime_ns)


def test_a_live_file_that_somebody_changed_is_repaired(built: TrustStore) -> None:
    before = built.files()
    (built.live / "certs/ca-certificates.crt").unlink()
    (built.live / "certs/ca-certificates.crt").write_text("mine")
    (built.live / "certs/ffffffff.0").write_text("mine")
    (built.live / "extracted/java/cacerts").unlink()
    again = built.build()
    assert (again.number, again.is_new, again.repaired) == (1, False, True)
    assert built.files() == before


@pytest.mark.parametrize("name", ["live/ca-certificates.crt", "generations/000001/java/cacerts", "live/java/cacerts"])
def test_a_generation_that_somebody_changed_is_built_again(built: TrustStore, name: str) -> None:
    """In place, which changes live and the generation."""
    before = built.files()
    (built.store / name).write_text("mine")
    assert built.build().number == 2
    after = built.files()
    for path in before.keys() - {"manifest.json"}:
        assert after[path] == before[path] or path.endswith("java/cacerts")
        assert after[path] != b"mine"


def test_directories_of_live_keep_their_inodes(built: TrustStore) -> None:
    """A container has them mounted: another inode would stay invisible to it."""
    before = {path: path.stat().st_ino for path in built.live.rglob("*") if path.is_dir()}
    unchanged = (built.live / f"certs/{ca_file(built, 'System_Root_0')}").stat().st_ino
    built.add("another.pem", OTHER)
    assert built.build().number == 2
    assert {path: path.stat().st_ino for path in built.live.rglob("*") if path.is_dir()} == before
    assert (built.live / f"certs/{ca_file(built, 'System_Root_0')}").stat().st_ino == unchanged
    assert OTHER.pem in (built.live / "certs/ca-certificates.crt").read_bytes()


def ca_file(trust: TrustStore, start: str) -> str:
    [path] = [path.name for path in (trust.live / "certs").iterdir() if path.name.startswith(start)]
    return path


@pytest.mark.slow
def test_a_reader_beside_rotations_gets_whole_bundles_only(built: TrustStore) -> None:
    bundle_file, hashed = built.live / "certs/ca-certificates.crt", built.live / "certs"
    seen: set[bytes] = set()
    missing: list[str] = []
    name = next(path.name for path in hashed.glob("*.0") if path.read_bytes() == roots()[0].pem)
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            seen.add(bundle_file.read_bytes())
            if roots()[0].pem != (hashed / name).read_bytes():
                missing.append(name)

    reader = threading.Thread(target=read)
    reader.start()
    expected = {bundle_file.read_bytes()}
    try:
        for number in range(10):
            built.add("another.pem", ca(f"CA {number}", signer=key(number)))
            built.build(allow_removal=True)
            expected.add(bundle_file.read_bytes())
    finally:
        stop.set()
        reader.join()
    assert seen <= expected
    assert not missing


def killed_at(step: int, trust: TrustStore) -> bool:
    """A build in a child process that is killed before its rename or removal of this number. Whether it was."""
    pid = os.fork()
    if not pid:
        count = 0

        def counted(real: Callable[..., object]) -> Callable[..., object]:
            def call(*arguments: object, **options: object) -> object:
                nonlocal count
                count += 1
                if count == step:
                    os._exit(9)
                return real(*arguments, **options)

            return call

        Path.rename = counted(Path.rename)  # type: ignore[assignment,method-assign]  # counts calls
        Path.unlink = counted(Path.unlink)  # type: ignore[assignment,method-assign]  # counts calls
        try:
            trust.build(allow_removal=True)
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9


@pytest.mark.slow
def test_a_build_that_is_killed_at_any_step_is_completed_by_the_next(built: TrustStore, tmp_path: Path) -> None:
    company = ca_file(built, "System_Root_1")
    step, killed, sources = 0, True, (OTHER, ca("Company CA"))
    while killed:
        step += 2
        made = sources[step // 2 % 2]
        before = built.files()
        built.add("company.pem", made)
        killed = killed_at(step, built)
        after = built.files()
        assert (built.live / f"certs/{company}").read_bytes() == roots()[1].pem
        for one in roots():
            assert one.pem in after["ca-certificates.crt"]
            assert one.pem in [
                content for path, content in after.items() if path.startswith("certs/") and path.endswith(".0")
            ]
        built.build(allow_removal=True)
        newest = Store(str(built.store))
        assert built.files() == read_tree(newest.path(newest.numbers()[-1]))
        assert made.pem in built.files()["added.pem"]
        assert {path.name for path in built.store.iterdir()} == {"generations", "live", "lock"}
        assert not killed or step < 3 or before != built.files()
    assert step > 20


@pytest.mark.parametrize("step", [2, 3, 5, 8])
def test_a_disk_that_is_full_at_the_first_renames_leaves_the_old_generation(
    built: TrustStore, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """The first rename is the generation's. A directory may have to grow for a new name."""
    before, rename, count = built.files(), Path.rename, 0

    def full(path: Path, target: Path) -> Path:
        nonlocal count
        count += 1
        if count == step:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return rename(path, target)

    built.add("more.pem", *(ca(f"CA {number}", signer=key(number)) for number in range(3)))
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", full)
        with pytest.raises(TrustError, match="No space left on device"):
            built.build()
    assert built.files() == before
    assert [path.name for path in (built.store / "generations").iterdir()] == ["000001"]
    assert built.build().number == 2


def test_two_builds_at_once_are_one_after_the_other(built: TrustStore) -> None:
    """20 processes, half of which add one CA and half another; each generation is whole."""
    context = multiprocessing.get_context("fork")
    sources = [built.directory / "a", built.directory / "b"]
    for path, made in zip(sources, (OTHER, ca("Third CA", signer=key(3))), strict=True):
        path.mkdir()
        made.at(path / "one.pem")
    given = [Sources([str(sources[n % 2])], str(built.system), allow_removal=True) for n in range(8)]
    children = [context.Process(target=build, args=(str(built.store), one)) for one in given]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0] * 8
    store = Store(str(built.store))
    assert built.files() == read_tree(store.path(store.numbers()[-1]))


def rotate(trust: TrustStore, times: int) -> None:
    for number in range(times):
        trust.add("another.pem", ca(f"CA {number}", signer=key(number)))
        trust.build(allow_removal=True)


@pytest.mark.root
def test_a_generation_stays_while_a_process_has_a_mount_of_it(built: TrustStore) -> None:
    point = built.directory / "point"
    point.touch()
    file = built.store / "generations/000001/ca-certificates.crt"
    command = f"mount --bind {file} {point} && echo mounted && read line"
    holder = subprocess.Popen(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout
        assert holder.stdout.readline() == "mounted\n"
        rotate(built, 5)
        names = sorted(path.name for path in (built.store / "generations").iterdir())
        assert names == ["000001", "000004", "000005", "000006"]
    finally:
        holder.communicate("\n")
    built.build()
    assert not (built.store / "generations/000001").exists()


@pytest.mark.root
def test_the_sources_are_a_directory_that_only_root_can_write(trust: TrustStore, root_dir: Path) -> None:
    OTHER.at(root_dir / "company.pem")
    sources = Sources(None, str(trust.system), directory=str(root_dir))
    assert [one["subject"] for one in build(str(trust.store), sources).added] == ["Another CA"]
    (root_dir / "company.pem").chmod(0o666)
    with pytest.raises(TrustError, match="writable by others"):
        build(str(trust.store), sources)


@pytest.mark.root
def test_without_sources_there_are_the_systems_roots(trust: TrustStore, root_dir: Path) -> None:
    built = build(str(trust.store), Sources(None, str(trust.system), directory=str(root_dir)))
    assert (len(built.certificates), built.added) == (3, [])
    assert (trust.live / "added.pem").read_bytes() == b""
    assert not (trust.live / "alone").exists()
    assert any("warning: no CA was added: " in line for line in built.warnings)
    with pytest.raises(TrustError, match=r"no certificate: .* Name the CA's certificate with --add FILE"):
        build(str(trust.directory / "empty"), Sources(None, None, no_system=True, directory=str(root_dir)))


def test_the_nodes_own_roots_are_found(trust: TrustStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "SYSTEM", (str(trust.directory / "nowhere"), str(trust.system)))
    add = [trust.add("company.pem", OTHER)]
    assert len(build(str(trust.store), Sources(add)).certificates) == 4
    build(str(trust.directory / "without"), Sources(add, no_system=True))
    alone = [trust.directory / f"without/live/{name}" for name in ("ca-certificates.crt", "added.pem")]
    assert alone[0].read_bytes() == alone[1].read_bytes()
    monkeypatch.setattr(source, "SYSTEM", (str(trust.directory / "nowhere"),))
    with pytest.raises(TrustError, match=r"no system roots on this node: none of .* exists\. Install ca-certificates"):
        build(str(trust.store), Sources(add))


def test_system_roots_may_be_a_directory_as_debian_has_it(trust: TrustStore) -> None:
    directory = trust.directory / "certs"
    directory.mkdir()
    for number, made in enumerate(roots()):
        made.at(trust.directory / f"{number}.crt")
        (directory / f"{number}.pem").symlink_to(trust.directory / f"{number}.crt")
        (directory / f"0000000{number}.0").symlink_to(f"{number}.pem")
    (directory / "ca-certificates.crt").write_bytes(bundle(*roots()))
    built = build(str(trust.store), Sources([trust.add("company.pem", OTHER)], str(directory)))
    assert len(built.certificates) == 4
    assert not [line for line in built.warnings if "writable by others" not in line]


def command(trust: TrustStore, *arguments: str) -> subprocess.CompletedProcess[str]:
    return called("trust", "build", "--out", str(trust.store), "--system", str(trust.system), *arguments)


def test_the_command_says_what_it_made_what_is_doubtful_and_what_stays_in_force(trust: TrustStore) -> None:
    old = trust.add("old.pem", ca("Old CA", begins=NOW - 9 * DAY, ends=NOW - DAY))
    good = trust.add("company.pem", ca("Company CA"))
    result = command(trust, "--add", good, old)
    said = f"{trust.store}: generation 1 (new): 4 certificates, 3 system roots and 1 added\n"
    assert (result.returncode, result.stdout) == (0, said)
    assert f"{old}: entry 1 (line 1): left out: Old CA: expired on " in result.stderr
    assert "generation 1 (unchanged): " in command(trust, "--add", good, "--add", old).stdout
    result = command(trust, "--add", str(trust.directory / "gone.pem"))
    assert (result.returncode, result.stdout) == (1, "")
    first, second = result.stderr.splitlines()
    assert first.startswith(f"reassert: {trust.directory}/gone.pem: No such file or directory; correct that, or name ")
    assert second == "generation 1 stays in force"


def test_the_operation_log_has_it_too_if_it_is_asked_for(trust: TrustStore, capfd: pytest.CaptureFixture[str]) -> None:
    old = trust.add("old.pem", ca("Old CA", begins=NOW - 9 * DAY, ends=NOW - DAY))
    good = trust.add("company.pem", ca("Company CA"))
    result = command(trust, "--log-format", "json", "--add", good, old)
    assert result.stdout.startswith(f"{trust.store}: generation 1 (new): 4 certificates")
    assert result.stderr == "", "the warning is not said twice"
    said = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    warned = [line for line in said if line["event"] == "trust.warning"]
    assert "left out: Old CA" in warned[0]["warning"]
    assert warned[0]["level"] == "warning"
    [built] = [line for line in said if line["event"] == "trust.built"]
    assert {key: built[key] for key in ("store", "generation", "certificates", "added", "new")} == {
        "store": str(trust.store),
        "generation": 1,
        "certificates": 4,
        "added": 1,
        "new": True,
    }


@pytest.mark.parametrize(
    ("name", "status", "says"),
    [
        ("../x", 2, "NAME ../x: a name, not a path; a path is for --out\n"),
        ("no-such-store", 1, "trust.d/no-such-store is not a directory; put the store's CAs there"),
    ],
)
def test_a_store_with_a_name_needs_its_own_sources(name: str, status: int, says: str) -> None:
    result = called("trust", "build", name)
    assert (result.returncode, says in result.stderr) == (status, True)


@pytest.mark.root
def test_a_store_that_others_can_write_to_is_a_warning(trust: TrustStore, root_dir: Path) -> None:
    add = trust.add("company.pem", OTHER)
    (root_dir / "store").mkdir(mode=0o777)
    (root_dir / "store").chmod(0o777)
    built = build(str(root_dir / "store"), Sources([add], str(trust.system)))
    assert any(f"{root_dir}/store is writable by others" in line for line in built.warnings)
