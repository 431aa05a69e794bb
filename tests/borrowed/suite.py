"""runc's own bats suite, out of a source tree that the user gives."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import uuid
from pathlib import Path

from borrowed import isolate
from borrowed.tap import Results, parse

TESTS = Path("tests/integration")
BUSYBOX = Path("/bin/busybox")

_IMAGES = """#!/bin/sh
# In place of the suite's own script, which downloads.
echo BUSYBOX_IMAGE={busybox}
echo DEBIAN_IMAGE={debian}
"""
_PASSWD = "root:x:0:0:root:/root:/bin/sh\nbin:x:2:2::/bin:/bin/false\nnobody:x:65534:65534::/:/bin/false\n"
_GROUP = "root:x:0:\nbin:x:2:\nnobody:x:65534:\n"
_DIRECTORIES = ("bin", "dev", "etc", "home", "proc", "root", "sys", "tmp", "usr/bin", "usr/sbin", "var/tmp")


class Missing(Exception):
    """Something that the suite cannot do without is not there."""


class Suite:
    """A copy of the suite below `scratch`, so that the source tree stays as it is.

    `notes`: what it has to do without.
    """

    def __init__(self, source: Path, scratch: Path) -> None:
        if not (source / TESTS / "helpers.bash").is_file():
            raise Missing(f"{source} is no source tree of runc: it has no {TESTS}/helpers.bash")
        self._scratch = scratch
        self._temporary = scratch / "tmp"
        self._temporary.mkdir(mode=0o1777)
        self._temporary.chmod(0o1777)
        self.notes: list[str] = []
        self.source = scratch / "source"
        shutil.copytree(source, self.source, symlinks=True, ignore=shutil.ignore_patterns(".git"))
        self._build_helpers()
        self._place_images()

    def files(self, wanted: list[str]) -> list[str]:
        """The names of the test files, or those of them that are wanted."""
        there = sorted(path.name for path in (self.source / TESTS).glob("*.bats"))
        if unknown := [name for name in wanted if name not in there]:
            raise Missing(f"no {', '.join(unknown)} in {TESTS}")
        return wanted or there

    def run(self, file: str, runtime: Path, limit: float, name: str = "") -> Results:
        """Run one test file, or one test in it, with a runtime."""
        command = ["bats", "--tap"]
        if name:
            command += ["--filter", f"^{_quoted(name)}$"]
        output = self._scratch / "tap"
        with output.open("wb") as tap, (self._scratch / "stderr").open("wb") as stderr:
            finished = isolate.run(
                [*command, file],
                f"reassert-borrowed-{uuid.uuid4().hex[:12]}",
                limit,
                cwd=self.source / TESTS,
                env=self._environment(runtime),
                stdout=tap,
                stderr=stderr,
            )
        results = parse(output.read_text(errors="replace"))
        if not finished:
            results.bailed = f"killed after {limit:.0f} s"
        for left in self._temporary.iterdir():
            shutil.rmtree(left, ignore_errors=True) if left.is_dir() else left.unlink()
        return results

    def _environment(self, runtime: Path) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "TERM") if name in os.environ}
        return {**kept, "HOME": "/root", "TMPDIR": str(self._temporary), "RUNC": str(runtime)}

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
        data = self.source / TESTS / "testdata"
        busybox, debian = (next(iter(sorted(data.glob(f"{name}-*.tar*"))), None) for name in ("busybox", "debian"))
        if busybox is None:
            busybox = self._stand_in()
            self.notes.append(f"no testdata/busybox-*.tar.xz: an image made of {BUSYBOX} stands in for it")
        if debian is None:
            debian = Path("/nonexistent/debian.tar.xz")
            self.notes.append("no testdata/debian-*.tar.xz: tests that need it fail in all runs")
        script = self.source / TESTS / "get-images.sh"
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


def _quoted(name: str) -> str:
    """A name as an extended regular expression that matches it alone."""
    return re.sub(r"([\\.\[\]{}()*+?^$|])", r"\\\1", name)
