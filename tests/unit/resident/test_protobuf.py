"""Message classes are made of reassert's own .proto files at run time."""

from __future__ import annotations

from pathlib import Path

import pytest

from hook.resident.protobuf import describe, load
from unit.support import ROOT


def test_a_field_that_is_not_understood_is_no_silent_loss() -> None:
    with pytest.raises(ValueError, match=r"x\.proto: message A has a field that is not understood"):
        describe("package x;\nmessage A {\n  oneof b = 1;\n  string c {};\n}\n", "x.proto")


@pytest.mark.parametrize("path", ["nri/nri.proto", "node/probe/cri.proto"])
def test_every_message_is_a_class(path: str) -> None:
    text = (ROOT / "hook" / path).read_text()
    classes = load(ROOT / "hook" / path)
    assert len(classes) == text.count("\nmessage ")


def test_what_one_writes_another_reads(tmp_path: Path) -> None:
    proto = tmp_path / "x.proto"
    proto.write_text(
        "package x.v1;\nmessage A {\n  repeated B b = 3;\n  map<string, string> two_words = 4;\n}\n"
        "message B {\n  string c = 1;\n  int64 d = 15;\n}\n"
    )
    classes = load(proto)
    data = classes["A"](b=[{"c": "é"}, {"d": -1}], two_words={"k": "v"}).SerializeToString()
    assert data == b"\x1a\x04\x0a\x02\xc3\xa9\x1a\x0b\x78" + b"\xff" * 9 + b"\x01\x22\x06\x0a\x01k\x12\x01v"
    read = classes["A"].FromString(data)
    assert [(b.c, b.d) for b in read.b] == [("é", 0), ("", -1)]
    assert dict(read.two_words) == {"k": "v"}
