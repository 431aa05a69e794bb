"""trust-stacks.json: what a release says of TLS stacks to others, with a version of its own."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from typing import Any

import marks
import pytest

from hook.compile.trust import table
from unit.support import ROOT

pytestmark = marks.promise(
    "`trust-stacks.json` has each row of stacks.toml, and another version when it has another content", about="Policy"
)

CONTENT_OF = {"1.0": "e5851948691bf35622f75d701115c35e4dcd793b51f0ca1943ba6d9275072a0c"}
"""By version, the SHA-256 of the file without it. A change of the table gets a new version and a new line here."""


@pytest.fixture(scope="module")
def data() -> Any:
    """The file as release.sh makes it, in an interpreter that knows nothing of the checkout."""
    program = ROOT / "packaging/release/trust_stacks.py"
    done = subprocess.run([sys.executable, "-I", "-B", program], capture_output=True, cwd="/", timeout=600)
    assert (done.returncode, done.stderr) == (0, b"")
    return json.loads(done.stdout)


def test_another_content_has_another_version(data: Any) -> None:
    version = data.pop("version")
    digest = hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
    assert list(CONTENT_OF)[-1] == version, "stacks.toml has another version"
    assert CONTENT_OF[version] == digest, (
        "the table was changed: give stacks.toml a new version, and this test its line"
    )


def test_every_row_of_the_table_is_there(data: Any) -> None:
    layouts, stacks = table()
    assert [each["id"] for each in data["layouts"]] == list(layouts)
    assert [each["id"] for each in data["stacks"]] == list(stacks)
    for made in data["stacks"]:
        stack = stacks[made["id"]]
        assert {each["name"]: each["value"] for each in made["variables"]} == stack.env
        assert (made["proof"] == "container", made["default"], made["unset"]) == (
            stack.tested,
            stack.default,
            stack.absent,
        )


def test_each_variable_says_what_it_takes_and_whether_it_replaces(data: Any) -> None:
    found = {each["name"]: each for stack in data["stacks"] for each in stack["variables"]}
    told = {name: (each["takes"], each["effect"], each["contents"]) for name, each in found.items()}
    assert told["SSL_CERT_FILE"] == ("file", "replaces", "ca-certificates.crt")
    assert told["SSL_CERT_DIR"] == ("directory", "replaces", "certs")
    assert told["NODE_EXTRA_CA_CERTS"] == told["DENO_CERT"] == ("file", "adds", "added.pem")
    assert told["JAVA_TOOL_OPTIONS"] == ("option", "replaces", "java/cacerts")
    assert told["NODE_OPTIONS"] == ("option", "replaces", "")
    places = [place for layout in data["layouts"] for place in layout["directories"] + layout["files"]]
    used = {each["contents"] for each in [*found.values(), *places]} - {""}
    assert used == set(data["contents"])


def test_the_page_names_each_field(data: Any) -> None:
    """Of the file, of a layout, of a stack and of a variable; and its example names fields that there are."""
    page = (ROOT / "docs/trust-stacks.md").read_text()
    objects = [data, data["layouts"][0], data["stacks"][0], data["stacks"][0]["variables"][0]]
    fields = {field for each in objects for field in each} - {"name", "layouts", "stacks"}
    assert {field for field in fields if not re.search(rf"[`.]{field}\b", page)} == set()
