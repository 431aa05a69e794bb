"""The /opt of a machine of the test's own, for programs that consist of next to nothing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hook.node.change import program as programs
from hook.node.change import tree
from hook.node.change.files import put


class Opt:
    """`place`: /opt/reassert."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Nothing is there yet. `directory`: where the program that runs was built."""
        self.place = Path(tree.PLACE)
        self._frozen = directory / "dist"
        monkeypatch.setattr(sys, "_MEIPASS", "", raising=False)
        monkeypatch.setattr(sys, "executable", str(self._frozen / "reassert"))

    def frozen(self, text: str) -> Path:
        """The frozen program that runs, with this text in a file of its own."""
        (self._frozen / "lib").mkdir(parents=True, exist_ok=True)
        (self._frozen / "lib/code").write_text(text)
        (self._frozen / "reassert").write_text("a program\n")
        (self._frozen / "reassert").chmod(0o755)
        return self._frozen

    def install(self, text: str) -> None:
        """Put it in place as the installer does."""
        self.frozen(text)
        self.place.mkdir(exist_ok=True)
        for path, state in programs.program():
            put(path, state)

    def in_place(self) -> str:
        """The text of the program that the link leads to, and `start` too."""
        real = (self.place / "reassert").resolve()
        assert f"reassert={real}\n" in (self.place / "start").read_text()
        return (real.parent / "lib/code").read_text()

    def names(self) -> set[str]:
        """What lies in `place`, without the link's target."""
        return {path.name for path in self.place.iterdir()} - {(self.place / "reassert").resolve().parent.name}
