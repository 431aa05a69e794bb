"""The demo, and its picture in the documentation."""

from __future__ import annotations

import shutil

import marks
import recording
from harness.paths import TOP
from harness.tools import need, run


@marks.promise("The picture of the demo has what the demo prints", about="Packages and cluster")
def test_picture_has_what_the_demo_prints() -> None:
    need(shutil.which("podman") is not None, "podman")
    assert recording.text_of(recording.PICTURE.read_text()) == recording.text_of(recording.drawn(recording.printed()))


def test_demo_shows_it_under_crun() -> None:
    done = run(str(TOP / "packaging/demo.sh"), "--runtime", "crun")
    assert "All results are as expected." in done.stdout
    assert "HF_TOKEN                   token-of-the-node                unset" in done.stdout
