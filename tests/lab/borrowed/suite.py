"""The suites of runc (bats) and crun (Python), out of a source tree that the user gives."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import uuid
from pathlib import Path

from lab.borrowed import isolate
from lab.borrowed.compare import States, parse

BUSYBOX = Path("/bin/busybox")

_IMAGES = """#!/bin/sh
# In place of the suite's own script, which downloads.
echo BUSYBOX_IMAGE={busybox}
echo DEBIAN_IMAGE={debian}
"""
_PASSWD = "root:x:0:0:root:/root:/bin/sh\nbin:x:2:2::/bin:/bin/false\nnobody:x:65534:65534::/:/bin/false\n"
_GROUP = "root:x:0:\nbin:x:2:\nnobody:x:65534:\n"
_DIRECTORIES = (
    "bin",
    "dev",
    "etc",
    "home",
    "proc",
    "root",
    "sys",
    "tmp",
    "usr/bin",
    "usr/sbin",
    "var/spool",
    "var/tmp",
)


class Missing(Exception):
    """Something that the suite cannot do without is not there."""


class Suite:
    """A copy of the suite below `scratch`, so that the source tree stays as it is.

    `notes`: what it has to do without.
    """

    tests = Path()
    """Where the test files are."""
    pattern = ""
    mark = ""
    """A file that tells such a source tree from others."""
    hybrid = True
    """As `isolate.run` takes it."""

    def __init__(self, source: Path, scratch: Path) -> None:
        if not (source / self.tests / self.mark).is_file():
            raise Missing(f"{source} is not the source tree wanted: it has no {self.tests / self.mark}")
        self._scratch = scratch
        self._temporary = scratch / "tmp"
        self._temporary.mkdir()
        self._temporary.chmod(0o1777)
        self.notes: list[str] = []
        self.source = scratch / "source"
        shutil.copytree(source, self.source, symlinks=True, ignore=shutil.ignore_patterns(".git"))
        self._prepare()

    def files(self, wanted: list[str]) -> list[str]:
        """The names of the test files, or those of them that are wanted."""
        there = sorted(path.name for path in (self.source / self.tests).glob(self.pattern))
        if unknown := [name for name in wanted if name not in there]:
            raise Missing(f"no {', '.join(unknown)} in {self.tests}")
        return wanted or there

    def run(self, file: str, runtime: Path, limit: float, name: str = "") -> States:
        """Run one test file, or one test in it, with a runtime. What did not end in time has no state."""
        command, directory, environment = self._command(file, runtime, name)
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "TERM") if name in os.environ}
        output = self._scratch / "tap"
        with output.open("wb") as tap, (self._scratch / "stderr").open("wb") as stderr:
            finished = isolate.run(
                command,
                f"reassert-borrowed-{uuid.uuid4().hex[:12]}",
                limit,
                self.hybrid,
                cwd=directory,
                env={**kept, "HOME": "/root", "TMPDIR": str(self._temporary), **environment},
                stdout=tap,
                stderr=stderr,
            )
        if not finished:
            print(f"  {file}: killed after {limit:.0f} s", flush=True)
        for left in self._temporary.iterdir():
            shutil.rmtree(left, ignore_errors=True) if left.is_dir() else left.unlink()
        return parse(output.read_text(errors="replace"))

    def _prepare(self) -> None:
        """Make in the copy what the suite needs built."""
        raise NotImplementedError

    def _command(self, file: str, runtime: Path, name: str) -> tuple[list[str], Path, dict[str, str]]:
        """How to run one file, or one test in it: command, directory, environment."""
        raise NotImplementedError


class Crun(Suite):
    """tests/test_*.py of crun. Its own reports have no line numbers."""

    tests = Path("tests")
    pattern = "test_*.py"
    mark = "tests_utils.py"
    hybrid = False

    def _prepare(self) -> None:
        (self._scratch / "config.h").touch()  # tests/init.c includes what configure writes, and needs nothing of it
        build = ["gcc", "-static", "-I", str(self._scratch), "-o", "tests/init", "tests/init.c"]
        if not shutil.which("gcc"):
            raise Missing("no gcc, which builds the suite's tests/init.c: apt-get install gcc libc6-dev")
        made = subprocess.run(build, cwd=self.source, text=True, capture_output=True)
        if made.returncode:
            raise Missing(f"tests/init.c of the suite cannot be built: {made.stderr.strip()}")

    def _command(self, file: str, runtime: Path, name: str) -> tuple[list[str], Path, dict[str, str]]:
        environment = {"OCI_RUNTIME": str(runtime), "INIT": str(self.source / "tests/init")}
        if name and not re.search(r"\s", name):  # names are given in a list with spaces between
            environment["RUN_TESTS"] = name
        return [sys.executable, str(self.tests / file)], self.source, environment


class Runc(Suite):
    """tests/integration/*.bats of runc."""

    tests = Path("tests/integration")
    pattern = "*.bats"
    mark = "helpers.bash"

    def _prepare(self) -> None:
        self._build_helpers()
        self._place_images()

    def _command(self, file: str, runtime: Path, name: str) -> tuple[list[str], Path, dict[str, str]]:
        only = ["--filter", f"^{_quoted(name)}$"] if name else []
        return ["bats", "--tap", *only, file], self.source / self.tests, {"RUNC": str(runtime)}

    def _build_helpers(self) -> None:
        makefile = (self.source / "Makefile").read_text()
        if "TESTBINDIR" in makefile:  # since runc 1.2
            targets, there = ["test-binaries"], self.source / "tests/cmd/_bin"
        else:
            targets, there = ["recvtty", "sd-helper", "seccompagent"], self.source / "contrib/cmd/recvtty/recvtty"
        if there.exists():
            return
        if not shutil.which("go") or not shutil.which("make"):
            self.notes.append("no go or make: tests that need recvtty, sd-helper or seccompagent fail in all runs")
            return
        made = subprocess.run(
            ["make", "--keep-going", "COMMIT=", *targets],
            cwd=self.source,
            env={
                **{name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
                "GOFLAGS": "-mod=vendor",
                "GOPROXY": "off",
                "GOTOOLCHAIN": "local",
                "GOCACHE": str(self._scratch / "gocache"),
                "TMPDIR": str(self._temporary),
            },
            text=True,
            capture_output=True,
        )
        shutil.rmtree(self._scratch / "gocache", ignore_errors=True)
        if made.returncode:
            last = (made.stderr.strip().splitlines() or [""])[-1]
            self.notes.append(f"make {' '.join(targets)} failed; tests that need them fail in all runs: {last}")

    def _place_images(self) -> None:
        data = self.source / self.tests / "testdata"
        busybox, debian = (next(iter(sorted(data.glob(f"{name}-*.tar*"))), None) for name in ("busybox", "debian"))
        if busybox is None:
            busybox = self._stand_in()
            self.notes.append(f"no testdata/busybox-*.tar.xz: an image made of {BUSYBOX} stands in for it")
        if debian is None:
            debian = Path("/nonexistent/debian.tar.xz")
            self.notes.append("no testdata/debian-*.tar.xz: tests that need it fail in all runs")
        script = self.source / self.tests / "get-images.sh"
        script.write_text(_IMAGES.format(busybox=busybox, debian=debian))
        script.chmod(0o755)

    def _stand_in(self) -> Path:
        if not os.access(BUSYBOX, os.X_OK):
            raise Missing(
                f"no testdata/busybox-*.tar.xz, and no {BUSYBOX} to make one of: apt-get install busybox-static"
            )
        root = self._scratch / "busybox"
        for name in _DIRECTORIES:
            (root / name).mkdir(parents=True)
        (root / "tmp").chmod(0o1777)
        (root / "root").chmod(0o700)
        (root / "etc/passwd").write_text(_PASSWD)
        (root / "etc/group").write_text(_GROUP)
        (root / "etc/resolv.conf").write_text("")
        shutil.copy(BUSYBOX, root / "bin/busybox")
        listed = subprocess.run([str(BUSYBOX), "--list"], text=True, capture_output=True, check=True).stdout.split()
        for applet in listed:
            if applet != "busybox":
                (root / "bin" / applet).hardlink_to(root / "bin/busybox")
        (root / "usr/bin/env").symlink_to("../../bin/env")
        image = self._scratch / "busybox.tar"
        subprocess.run(["tar", "-C", str(root), "-cf", str(image), "."], check=True)
        return image


SUITES: dict[str, type[Suite]] = {"runc": Runc, "crun": Crun}


def _quoted(name: str) -> str:
    """A name as an extended regular expression that matches it alone."""
    return re.sub(r"([\\.\[\]{}()*+?^$|])", r"\\\1", name)
