"""Views of OCI's mounts and devices: what config.json says of one, in one way for every reader."""

from __future__ import annotations

from typing import Any

import pytest

from hook.core.container import oci
from hook.core.container.oci import Device, Mount


def mount(destination: str = "/m", **more: Any) -> Mount:
    return Mount({"destination": destination, **more})


@pytest.mark.parametrize("written", ["/m/n", "m/n", "/m//n/", "/m/./x/../n", "/../m/n"])
def test_a_path_is_cleaned_and_the_destination_stays_as_it_is_written(written: str) -> None:
    for view in (mount(written), *oci.mounts([{"destination": written}, {"destination": "/a"}])[:1]):
        assert (view.path, view.destination) == ("/m/n", written)


def test_paths_of_many_are_those_of_each() -> None:
    paths = ["/a", "b", "", "/c/..", "/d\0", "/e//f"]
    for some in (paths, paths[:1], []):
        each: list[oci.Json] = [{"destination": path} for path in some]
        assert [view.path for view in oci.mounts(each)] == [Mount(one).path for one in each]


@pytest.mark.parametrize("source", [None, 5, ["/etc"], {"a": 1}])
def test_a_source_that_is_no_text_is_missing(source: object) -> None:
    assert mount(source=source).source == mount().source == ""


@pytest.mark.parametrize("options", [None, "ro", {"ro": 1}, 5])
def test_options_that_are_no_list_are_none(options: object) -> None:
    view = mount(options=options)
    assert (view.options, view.is_read_only, view.is_bind) == ([], False, False)


def test_an_option_that_is_no_text_is_read_as_text() -> None:
    assert mount(options=["ro", 5, None]).options == ["ro", "5", "None"]


@pytest.mark.parametrize(
    ("options", "is_read_only"),
    [
        (["ro"], True),
        (["rbind", "rro", "nosuid"], True),
        (["ro", "rw"], False),
        (["rro", "rrw"], False),
        (["rw", "rro"], True),
        (["RO", "ro=1"], False),
        ([], False),
    ],
)
def test_of_options_that_contradict_each_other_the_last_counts(options: list[str], is_read_only: bool) -> None:
    assert mount(options=options).is_read_only is is_read_only


@pytest.mark.parametrize(
    ("about", "is_bind"),
    [
        ({"type": "bind"}, True),
        ({"type": "none", "options": ["bind"]}, True),
        ({"type": "tmpfs", "options": ["ro", "rbind"]}, True),
        ({"options": ["rbind"]}, True),
        ({"type": "tmpfs", "options": ["nobind"]}, False),
        ({"type": ["bind"]}, False),
        ({}, False),
    ],
)
def test_a_bind_mount_has_the_option_or_the_type(about: dict[str, Any], is_bind: bool) -> None:
    assert mount(**about).is_bind is is_bind


def test_a_type_is_text() -> None:
    assert [mount(type=kind).type for kind in ("tmpfs", None, 5)] == ["tmpfs", "", "5"]
    assert mount().type == ""


def test_an_event_has_no_options_of_a_mount() -> None:
    view = mount("/m/", source="//server/share", options=["password=hunter2"])
    assert view.shown() == {"destination": "/m/", "source": "//server/share"}
    assert mount().shown() == {"destination": "/m", "source": None}


def test_views_are_equal_if_their_objects_are() -> None:
    assert mount(source="/a") == mount(source="/a")
    assert mount(source="/a") != mount(source="/b")
    assert mount("/m") != mount("/m/"), "the text of an object counts, not what it means"
    assert mount() != {"destination": "/m"}
    assert Device({"path": "/d"}) == Device({"path": "/d"})
    assert Device({"path": "/d"}) != Device({"path": "/d", "major": 1})
    assert Device({"destination": "/m"}) != mount()


def test_a_device_has_a_path_as_it_is_written() -> None:
    views = oci.devices([{"path": "/dev//x"}, {"path": 5}, {}])
    assert [(view.path, view.written) for view in views] == [
        ("/dev/x", "/dev//x"),
        ("/5", "5"),
        ("/", ""),
    ]


@pytest.mark.parametrize(
    ("device", "number"),
    [
        ({"type": "c", "major": 1, "minor": 3}, ("c", 1, 3)),
        ({"type": "u", "major": 1, "minor": 3}, ("c", 1, 3)),
        ({"type": "b", "major": 1}, ("b", 1, 0)),
        ({"type": "c", "major": 0x1001, "minor": 0x100003}, ("c", 1, 3)),
        ({"type": "p"}, None),
        ({"type": "c", "major": "1"}, None),
        ({}, None),
    ],
)
def test_a_number_is_what_mknod_makes_of_it(device: dict[str, object], number: oci.Number | None) -> None:
    assert Device(device).number == number
