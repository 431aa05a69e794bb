"""`trust` in a rule becomes env and mounts of the rule when the policy is compiled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import marks
import pytest

from hook.compile.check import schema
from hook.compile.compiler import rule_to_line
from hook.compile.in_force import refresh
from hook.compile.trust import ASIDE, DEFAULTS, DIRECTORIES, FILES, TRADE_OFFS, chosen, entries, table, trade_off
from hook.core.facts import Facts
from hook.core.plan import plan
from hook.core.policy import trust_layout as layout
from hook.core.policy.model import Rule
from hook.core.policy.trust_layout import build_command
from hook.node.sources import look_at
from hook.ops.policy.show import effective, show
from unit.support import container, document, lines, policy, rule

pytestmark = marks.promise(
    "`trust` in a rule is the env and mounts of the table of stacks; the rule's own entries replace them",
    about="Policy",
)

BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
COMPANY = {"bundle": "company"}
HEAD = "apiVersion: reassert/v1\nkind: NodePolicy\nspec:\n  rules:\n  - name: r\n"


def trusting(trust: dict[str, Any] = COMPANY, **more: Any) -> Rule:
    return rule(**{"trust": trust, "env": [], **more})


def env_of(one: Rule) -> dict[str, str | None]:
    return {env.name: env.constant for env in one.env}


def mounts_of(one: Rule) -> dict[str, str]:
    return {mount.destination: mount.source for mount in one.mounts}


def test_rule_with_trust_reserves_the_mounts_of_every_distribution_and_the_env_of_the_stacks() -> None:
    made = trusting()
    live = "/var/lib/reassert/trust/company/live"
    assert mounts_of(made) == {
        "/etc/ssl/certs": f"{live}/certs",
        "/etc/pki/tls/certs": f"{live}/certs",
        "/etc/pki/ca-trust/extracted": f"{live}/extracted",
    }
    assert all("ro" in mount.options for mount in made.mounts)
    env = env_of(made)
    assert (env["SSL_CERT_FILE"], env["REQUESTS_CA_BUNDLE"]) == (BUNDLE, BUNDLE)
    assert env["NODE_EXTRA_CA_CERTS"] == "/etc/ssl/certs/added.pem"
    assert env["GIT_SSL_CAPATH"] is None
    assert not {"JAVA_TOOL_OPTIONS", "NODE_OPTIONS"} & env.keys()
    assert not made.raw  # a usual start loads no module for what `raw` has


def test_stacks_select_the_env_and_defaults_stands_for_all_without_a_tradeoff() -> None:
    assert set(env_of(trusting({**COMPANY, "stacks": ["curl"]}))) == {"CURL_CA_BUNDLE"}
    assert env_of(trusting({**COMPANY, "stacks": []})) == {}
    made = env_of(trusting({**COMPANY, "stacks": [DEFAULTS, "java-options"]}))
    assert made.keys() == {*env_of(trusting()), "JAVA_TOOL_OPTIONS"}


@pytest.mark.parametrize("bundle", ["company", "/srv/trust/", "/srv//trust"])
def test_bundle_is_a_name_or_the_path_of_a_store(bundle: str) -> None:
    store = "/srv/trust" if bundle.startswith("/") else "/var/lib/reassert/trust/company"
    assert mounts_of(trusting({"bundle": bundle}))["/etc/ssl/certs"] == f"{store}/live/certs"


def test_files_are_mounted_where_the_rule_asks_for_files() -> None:
    made = mounts_of(trusting({**COMPANY, "mount": "Files"}))
    assert "/etc/ssl/certs" not in made
    assert made[BUNDLE] == made["/etc/ssl/ca-bundle.pem"] == made["/etc/pki/tls/certs/ca-bundle.crt"]
    assert made[BUNDLE] == "/var/lib/reassert/trust/company/live/ca-certificates.crt"


@pytest.mark.parametrize("mount", ["Directories", "Files"])
def test_without_public_roots_all_that_is_mounted_has_the_added_cas_alone(mount: str) -> None:
    usual = mounts_of(trusting({**COMPANY, "mount": mount}))
    live = "/var/lib/reassert/trust/company/live"
    alone = {path: source.replace(live, f"{live}/alone") for path, source in usual.items()}
    assert mounts_of(trusting({**COMPANY, "mount": mount, "publicRoots": False})) == alone
    assert mounts_of(trusting({**COMPANY, "mount": mount, "publicRoots": True})) == usual


def test_aside_mounts_the_store_at_one_path_that_no_image_has_and_points_the_variables_there() -> None:
    made = trusting({**COMPANY, "mount": "Aside", "stacks": [DEFAULTS, "java-options"]})
    assert mounts_of(made) == {"/.reassert-trust": "/var/lib/reassert/trust/company/live/certs"}
    assert made.mounts[0].around == {"/", "/.reassert-trust"}  # no volume can be above it
    usual = env_of(trusting({**COMPANY, "stacks": [DEFAULTS, "java-options"]}))
    env = env_of(made)
    assert env.keys() == usual.keys()
    assert env == {name: value and value.replace("/etc/ssl/certs", "/.reassert-trust") for name, value in usual.items()}
    assert env["SSL_CERT_DIR"] == "/.reassert-trust"
    assert "-Djavax.net.ssl.trustStore=/.reassert-trust/java/cacerts " in str(env["JAVA_TOOL_OPTIONS"])
    alone = mounts_of(trusting({**COMPANY, "mount": "Aside", "publicRoots": False}))
    assert alone == {"/.reassert-trust": "/var/lib/reassert/trust/company/live/alone/certs"}


def test_volumes_above_are_allowed_where_the_rule_says_so() -> None:
    assert not any(mount.volumes_above for mount in trusting().mounts)
    assert all(mount.volumes_above for mount in trusting({**COMPANY, "volumesAbove": "Allow"}).mounts)


def test_own_entry_of_the_rule_replaces_the_one_of_trust() -> None:
    own = [{"name": "SSL_CERT_FILE", "value": "/own"}, {"name": "PIP_*", "absent": True}]
    made = trusting(env=own, mounts=[{"hostPath": "/own", "mountPath": "/etc/ssl/certs/"}])
    assert [env.constant for env in made.env if env.name == "SSL_CERT_FILE"] == ["/own"]
    assert env_of(made)["PIP_CERT"] == BUNDLE  # an exact name has precedence over a pattern
    assert mounts_of(made)["/etc/ssl/certs"] == "/own"
    assert len(made.mounts) == 3


def test_entry_names_every_stack_that_wants_it() -> None:
    wanting = [stack.id for stack in chosen(COMPANY) if "SSL_CERT_FILE" in stack.env]
    assert len(wanting) > 1
    assert entries(COMPANY)[0]["SSL_CERT_FILE"][1] == ", ".join(wanting)


def test_container_gets_the_entries() -> None:
    decided = plan(policy({"name": "r", "trust": COMPANY}), container(["SSL_CERT_FILE=/mine"]))
    assert decided.env.values["SSL_CERT_FILE"] == BUNDLE
    assert [edit.name for edit in decided.mounts] == [
        "/etc/ssl/certs",
        "/etc/pki/ca-trust/extracted",
        "/etc/pki/tls/certs",
    ]


# -- messages


@pytest.mark.parametrize(
    ("trust", "complaint"),
    [
        ("{}", "6:12: error: bundle is missing"),
        ("{bundle: Company}", "6:21: error: bundle: 'Company' is not allowed; it takes the name of a trust store"),
        ("{bundle: a/b}", "6:21: error: bundle: 'a/b' is not allowed; it takes the name of a trust store"),
        ("{bundle: /a/../b}", "6:21: error: bundle '/a/../b' has a '..' in it; write /b"),
        ("{bundle: /a/live}", "6:21: error: bundle '/a/live': write the directory above: /a"),
        ("{bundle: c, stacks: [curl, opensll]}", "6:39: error: unknown stack 'opensll'; did you mean openssl?"),
        ("{bundle: c, stacks: [zzz]}", "6:33: error: unknown stack 'zzz'; the stacks are defaults, openssl, curl"),
        ("{bundle: c, mount: File}", "6:31: error: mount: 'File' is not one of Directories, Files, Aside"),
        (
            "{bundle: c, mount: Aside, volumesAbove: Allow}",
            "6:38: error: volumesAbove has no effect with mount: Aside, above which is no volume",
        ),
        ("{bundle: c, stack: []}", "6:24: error: unknown field 'stack'; did you mean stacks?"),
        ("company", '6:12: error: trust: "company" is not a mapping'),
    ],
)
def test_errors_have_line_and_column(trust: str, complaint: str) -> None:
    found = lines(f"{HEAD}    trust: {trust}\n")
    assert [line.startswith(f"policy.yaml:{complaint}") for line in found] == [True], found


def test_two_rules_with_two_stores_are_one_contradiction() -> None:
    text = f"{HEAD}    trust: {{bundle: a}}\n  - name: s\n    trust: {{bundle: b}}\n"
    want = "8:12: error: rules r and s want different things for trust, and match the same containers (see line 6)"
    assert lines(text) == [f"policy.yaml:{want}"]


def test_two_rules_that_mount_one_store_in_two_ways_contradict_in_the_variables() -> None:
    text = f"{HEAD}    trust: {{bundle: a}}\n  - name: s\n    trust: {{bundle: a, mount: Aside}}\n"
    want = "8:12: error: rules r and s want different things for trust, and match the same containers (see line 6)"
    assert lines(text) == [f"policy.yaml:{want}"]


def test_two_rules_with_one_store_do_not_contradict() -> None:
    assert (
        lines(f"{HEAD}    trust: {{bundle: a}}\n  - name: s\n    trust: {{bundle: a, stacks: [java-options]}}\n") == []
    )


def test_another_rules_own_entry_contradicts_and_the_place_of_trust_is_named() -> None:
    text = f"{HEAD}    env: [{{name: SSL_CERT_FILE, value: /x}}]\n  - name: s\n    trust: {{bundle: b}}\n"
    want = "rules r and s want different things for env SSL_CERT_FILE, and match the same containers (see line 6)"
    assert lines(text) == [f"policy.yaml:8:12: error: {want}"]


def test_missing_store_is_named_with_the_command_that_makes_it() -> None:
    rules = policy({"name": "r", "trust": COMPANY})
    assert [finding.remedy for _, finding in look_at(rules)] == ["reassert trust build"] * 2  # certs is mounted twice
    live = "/var/lib/reassert/trust/company/live"
    facts = Facts()
    facts.absent_sources.add(f"{live}/certs")
    refusal = plan(rules, container(facts=facts)).refusal()
    assert f"hostPath {live}/certs for mount /etc/ssl/certs does not exist on this node; run there: reassert" in refusal


@pytest.mark.parametrize(
    ("path", "command"),
    [
        (f"{layout.live()}/certs", "reassert trust build"),
        (f"{layout.live('other')}/java/cacerts", "reassert trust build other"),
        (f"{layout.live()}/alone/certs", "reassert trust build"),
        ("/srv/trust/live/extracted", "reassert trust build --out /srv/trust"),
        ("/srv/live/music", ""),
        ("/etc/ssl/certs", ""),
    ],
)
def test_command_that_makes_a_path(path: str, command: str) -> None:
    assert build_command(path) == command


def test_the_default_store_is_made_of_the_directory_and_another_of_its_own_subdirectory() -> None:
    assert (layout.sources(layout.DEFAULT), layout.sources("other")) == (None, "/etc/reassert/trust.d/other")


# -- policy show


def test_policy_show_says_which_entries_are_of_trust(root_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = root_dir / "policy.yaml"
    own = [{"name": "PIP_CERT", "value": "/own"}]
    source.write_text(document({"name": "r", "trust": {**COMPANY, "stacks": ["pip", "git", "go"]}, "env": own}))
    refresh(str(source), str(root_dir))
    assert show(str(source), str(root_dir), "yaml") == 0
    text = capsys.readouterr().out
    assert "    trust:\n      bundle: company\n" in text
    assert "    - name: PIP_CERT\n" in text
    assert "    - name: SSL_CERT_FILE  # from trust: go\n" in text
    assert "      mountPath: /etc/pki/tls/certs  # from trust: rhel\n" in text
    assert show(str(source), str(root_dir), "json") == 0
    [shown] = json.loads(capsys.readouterr().out)["policy"]["spec"]["rules"]
    assert (shown["trust"]["bundle"], shown["env"][0]) == ("company", own[0])


def test_shown_policy_means_the_same() -> None:
    original = policy({"name": "r", "trust": COMPANY, "env": [{"name": "A", "value": "1"}]})
    again = policy(*effective(original, {"r": COMPANY})["spec"]["rules"])
    assert list(map(rule_to_line, again.candidates(None))) == list(map(rule_to_line, original.candidates(None)))


# -- the table


def test_table_is_complete() -> None:
    layouts, stacks = table()
    parts = {layout.CERTS, layout.EXTRACTED, layout.BUNDLE, layout.ADDED, layout.JAVA}
    for entry in layouts.values():
        assert {*entry.directories.values(), *entry.files.values()} <= parts, entry.id
        assert entry.source.startswith("https://"), entry.id
    values: dict[str, str] = {}
    for stack in stacks.values():
        assert stack.source.startswith("https://"), stack.id
        assert bool(stack.tradeoff) != stack.default, stack.id
        assert stack.alone or stack.needs, stack.id
        assert bool(stack.env) == bool(stack.needs), stack.id
        assert stack.env or not stack.aside, stack.id
        for name, value in stack.env.items():
            assert values.setdefault(name, value) == value, (stack.id, name)
        assert not set(stack.absent) & values.keys()
    assert DEFAULTS not in stacks
    assert [stack.id for stack in chosen(COMPANY)] == [stack.id for stack in stacks.values() if stack.default]
    assert "trust" in schema()["$defs"]["rule"]["properties"]


def test_every_choice_of_mount_has_its_trade_off() -> None:
    assert list(TRADE_OFFS) == schema()["$defs"]["rule"]["properties"]["trust"]["properties"]["mount"]["enum"]
    assert "Not reached: java, gnutls, openssl (programs with libcurl" in trade_off(ASIDE)
    assert "update-ca-certificates" in trade_off(FILES) and "update-ca-trust" in trade_off(DIRECTORIES)


def test_env_of_the_table_is_in_a_directory_that_is_always_mounted() -> None:
    """A variable that named a file outside of the mounts would break a program instead of helping it."""
    for stack in table()[1].values():
        for name, value in stack.env.items():
            path = value.removeprefix("-Djavax.net.ssl.trustStore=").partition(" ")[0]
            assert value == "--use-openssl-ca" or path.startswith("/etc/ssl/certs"), (stack.id, name)
