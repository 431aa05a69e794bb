"""Pictures of what commands print on a terminal, for docs/. docs/demo.svg is made of the real demo.

    sudo build/venv-test/bin/python tests/recording.py            writes docs/demo.svg
    sudo build/venv-test/bin/python tests/recording.py --check    fails if the demo prints something else

It needs a build (packaging/build.sh), runc and podman. What differs from run to run is left out: names of temporary
directories, process numbers, ids, hashes and times. e2e/node/test_pictures.py makes those of a node's commands.
"""

from __future__ import annotations

import html
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree  # our own file

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs/demo.svg"
COMMAND = "sudo ./install.sh --demo"

ALIKE = (
    (r"/var/lib/reassert-demo\.\w+", "/var/lib/reassert-demo"),
    (r"\b(plain|guarded)-\d+", r"\1"),
    (r"\d{4}-\d\d-\d\dT[\d:]+Z", "2026-01-31T12:00:00Z"),
    (r"\bhash [0-9a-f]{16}", "hash 49605cdff97b157e"),
    (r"(container\.edited) [0-9a-f]{12}:", r"\1 308a1e66a435:"),
)
"""What differs from run to run, and what is shown for it."""

_WIDTH, _LINE, _TOP, _LEFT = 8.43, 19, 34, 16
"""Pixels of a character and of a line, and of the margins."""
_SECONDS = 1.6
"""After how long the next step appears."""


def printed() -> str:
    """What the demo prints, without what differs from run to run. Raises CalledProcessError."""
    command = [str(ROOT / "packaging/demo.sh")]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for pattern, same in ALIKE:
        text = re.sub(pattern, same, text)
    return text.strip("\n") + "\n"


def drawn(text: str, command: str = COMMAND) -> str:
    """The picture: a terminal with a command, in which each step (`== …`) appears after the one before."""
    lines = [f"$ {command}", "", *text.rstrip("\n").split("\n")]
    wide = round(max(map(len, lines)) * _WIDTH + 2 * _LEFT)
    high = len(lines) * _LINE + _TOP + 14
    steps: list[list[str]] = [[]]
    for number, line in enumerate(lines):
        if line.startswith(("== ", "All results")):
            steps.append([])
        name = "step" if line.startswith("== ") else "command" if number == 0 else ""
        mark = f' class="{name}"' if name else ""
        if line:
            y = _TOP + (number + 1) * _LINE - 5
            steps[-1].append(f'<text{mark} x="{_LEFT}" y="{y}">{html.escape(line, quote=False)}</text>')
    groups = "\n".join(
        f'<g style="animation-delay: {number * _SECONDS:.1f}s">\n' + "\n".join(step) + "\n</g>"
        for number, step in enumerate(steps)
    )
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" width="{wide}" height="{high}"
  role="img" aria-label="What {html.escape(command)} prints">
<style>
text {{ font: 14px ui-monospace, "DejaVu Sans Mono", Menlo, monospace; fill: #d6deeb; white-space: pre; }}
text.step {{ fill: #7fdbca; font-weight: bold; }}
text.command {{ fill: #ecc48d; }}
g + g {{ animation: appear .3s both; }}
@keyframes appear {{ from {{ opacity: 0; }} }}
@media (prefers-reduced-motion: reduce) {{ g + g {{ animation: none; }} }}
</style>
<rect width="{wide}" height="{high}" rx="8" fill="#011627"/>
<circle cx="18" cy="17" r="5" fill="#ff5f57"/><circle cx="36" cy="17" r="5" fill="#febc2e"/>
<circle cx="54" cy="17" r="5" fill="#28c840"/>
{groups}
</svg>
"""


def text_of(picture: str) -> list[str]:
    """The lines of a picture that have text."""
    root = ElementTree.fromstring(picture)
    return [element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}text")]


def main() -> int:
    """Write the picture, or compare; returns 1 if it is not what the demo prints."""
    made = drawn(printed())
    if "--check" not in sys.argv:
        PICTURE.write_text(made)
        return 0
    if text_of(PICTURE.read_text()) == text_of(made):
        return 0
    print(f"{PICTURE.relative_to(ROOT)} is not what the demo prints; run tests/recording.py")
    return 1


if __name__ == "__main__":
    sys.exit(main())
