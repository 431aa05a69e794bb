"""What is read from `containerd config dump`. Real ones are in tests/e2e/node."""

from __future__ import annotations

import pytest

from hook.node.engines.containerd.settings import not_wrapped, path_of_shim


@pytest.mark.parametrize(
    ("kind", "is_by_path"),
    [
        ("/usr/bin/containerd-shim-runc-v2", True),
        ("/opt/v1.7/containerd-shim-runc-v10", True),
        ("io.containerd.runc.v2", False),
        ("containerd-shim-runc-v2", False),
        ("/usr/bin/containerd-shim-kata-v2", False),
        ("/usr/bin/containerd-shim-runc-v2/other", False),
        ("", False),
    ],
)
def test_runcs_shim_named_by_its_path(kind: str, is_by_path: bool) -> None:
    table = {"runtime_type": kind}
    assert path_of_shim(table) == (kind if is_by_path else "")
    assert path_of_shim({}) == ""
    assert not is_by_path or f'runtime_path = "{kind}"' in not_wrapped(table)
