"""The runtime wrapper in front of the real runc and crun: what the process itself sees."""

from __future__ import annotations

from e2e.support import Bundle, Node, Running


def test_a_pods_override_is_undone_in_the_process_and_in_exec(runtime: str, node: Node, bundle: Bundle) -> None:
    evil = bundle.directory / "evil"
    evil.mkdir()
    (evil / "evil.crt").write_text("evil\n")
    bundle.spec["process"]["env"] += ["REQUESTS_CA_BUNDLE=/tmp/evil", "PYTHONHTTPSVERIFY=0", "OTHER=stays"]
    bundle.bind(evil, "/etc/ssl/certs", "ro")
    bundle.pod()
    bundle.save()
    with Running(runtime, bundle) as container:
        for env in (container.environ(), container.exec("/bin/env").split("\n")):
            assert "REQUESTS_CA_BUNDLE=/etc/ssl/certs/ca-certificates.crt" in env
            assert "OTHER=stays" in env
            assert not [entry for entry in env if entry.startswith("PYTHONHTTPSVERIFY")]
        assert container.exec("/bin/ls", "/etc/ssl/certs").split() == ["company.crt"]
        [(root, point, options)] = container.mounts("/etc/ssl")
        assert (root.endswith("/ca"), point, options.split(",")[0]) == (True, "/etc/ssl", "ro")
    [event] = node.logged()
    assert event["event"] == "container.edited"
    assert event["container"]["namespace"] == "default"
    assert [edit["name"] for edit in event["edits"]] == ["REQUESTS_CA_BUNDLE", "PYTHONHTTPSVERIFY", "/etc/ssl"]


def test_env_on_the_exec_command_line_cannot_bring_a_reserved_name_back(runtime: str, bundle: Bundle) -> None:
    bundle.pod()
    bundle.save()
    with Running(runtime, bundle) as container:
        for spelling in (["-e", "REQUESTS_CA_BUNDLE=x", "-e", "A=1"], ["--env=REQUESTS_CA_BUNDLE=x", "--env=A=1"]):
            env = container.exec("/bin/env", options=(*spelling, "--cwd", "/")).split("\n")
            assert "REQUESTS_CA_BUNDLE=/etc/ssl/certs/ca-certificates.crt" in env
            assert "REQUESTS_CA_BUNDLE=x" not in env
            assert "A=1" in env
