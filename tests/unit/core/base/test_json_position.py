"""The position of a JSON error, with and without json.decoder: no thread may see another one's stand-in for it."""

from __future__ import annotations

import json.decoder
import sys
import threading

import pytest

from hook.core.base.jsontext import Malformed, parse


def complaint(text: str) -> str:
    with pytest.raises(Malformed) as caught:
        parse(text)
    return str(caught.value)


@pytest.mark.parametrize("text", ['{"a": 1,}', '["\\x"]', "[1" + "0" * 5000 + "]", '{"a" 1}'])
def test_the_same_text_with_and_without_the_module(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with_it = complaint(text)
    monkeypatch.delitem(sys.modules, "json.decoder")
    assert complaint(text) == with_it
    assert "json.decoder" not in sys.modules


def test_threads_leave_the_module_alone() -> None:
    """A process with threads has loaded it (hook.agent.work, hook.nri.service)."""
    seen: set[object] = set()

    def spoil() -> None:
        for _ in range(300):
            complaint("[1" + "0" * 5000 + "]")  # an error without a position, with json.decoder too
            seen.add(sys.modules.get("json.decoder"))

    threads = [threading.Thread(target=spoil) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {json.decoder}
