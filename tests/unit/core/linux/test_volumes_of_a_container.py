"""Which mount of config.json a container's mount is of, and what is hidden: by tables of mounts, with no mount made."""

from __future__ import annotations

import pytest

from hook.core.base.mountinfo import Row
from hook.core.container.start import Start
from hook.core.linux.look_node_paths import Volumes
from unit.support import bind


def row(number: int, parent: int, point: str) -> Row:
    return Row(f"{number} {parent} 0:{number} / {point} rw - tmpfs t rw")


ROOT = row(1, 0, "/")
VOLUME = row(2, 1, "/volume")
BELOW = row(3, 2, "/volume/below")
OVER = row(4, 2, "/volume")
"""Over the root of VOLUME: a mount that came with it, or one that the container's runtime made later."""
OTHER = row(5, 1, "/other")


def volumes(*mounts: Row, links: dict[str, int] | None = None) -> Volumes:
    """Of a container whose config.json mounts /volume read-only, and /link and /alike writable."""
    listed = [{**bind("/volume", "/node"), "options": ["rbind", "ro"]}, bind("/link", "/node"), bind("/alike", "/node")]
    by_path = {"/alike": 5, **(links or {})}
    return Volumes(Start([], listed), [(each.point, each) for each in mounts], lambda path: by_path.get(path, -1))


@pytest.mark.parametrize(
    ("mounts", "of", "expected"),
    [
        ([ROOT, VOLUME], VOLUME, ("/volume", True, True)),
        ([ROOT, VOLUME, BELOW], BELOW, ("/volume", True, False)),
        ([ROOT, VOLUME, OVER], OVER, ("/volume", True, True)),
        ([ROOT, VOLUME, OVER], VOLUME, ("", False, False)),
        ([ROOT, VOLUME], ROOT, ("", False, False)),
        ([ROOT, VOLUME, OTHER], OTHER, ("/alike", False, True)),
    ],
    ids=["itself", "below", "over its root", "hidden", "no volume", "where a link leads"],
)
def test_the_mount_of_config_json_that_a_mount_is_of(
    mounts: list[Row], of: Row, expected: tuple[str, bool, bool]
) -> None:
    assert volumes(*mounts).of(of) == expected


@pytest.mark.parametrize(
    ("mounts", "hidden"),
    [
        ([ROOT, VOLUME, BELOW], []),
        ([ROOT, VOLUME, OVER], [VOLUME]),
        ([ROOT, VOLUME, BELOW, OVER], [VOLUME, BELOW]),
        ([ROOT, VOLUME, OVER, row(6, 4, "/volume/below")], [VOLUME]),
    ],
)
def test_what_another_mount_hides(mounts: list[Row], hidden: list[Row]) -> None:
    seen = volumes(*mounts)
    assert [each.id for each in mounts if seen.is_covered(each)] == [each.id for each in hidden]
