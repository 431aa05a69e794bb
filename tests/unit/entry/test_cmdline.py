"""Command lines of runc and crun are parsed as these runtimes parse them."""

from __future__ import annotations

import marks
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hook.entry.cmdline import EDITING_OPTIONS, EDITING_VERBS, OPTIONS, VERBS, Invocation
from unit.support import ROOT

pytestmark = marks.promise("Command lines are read as runc and crun read them", about="Decision")

CONTAINERD = "--root /run/runc/k8s.io --log /b/log.json --log-format json --systemd-cgroup"
PODMAN = "--log-level=debug --cgroup-manager systemd --root=/run/crun"


def parsed(line: str) -> Invocation:
    return Invocation(line.split())


@pytest.mark.parametrize(
    "line",
    [
        "create --bundle B ID",
        "create --bundle=B ID",
        "create -b B ID",
        "create -bB ID",
        "create -b=B ID",
        "create -bundle B ID",
        "create -bundle=B ID",
        "create --bun B ID",
        "create --bun=B ID",
        "create --b B ID",
        "create --bundle B -- ID",
        "create --bundle A --bundle B ID",
        "create --pid-file P --no-pivot --console-socket S -b B --preserve-fds 2 ID",
        "create --pid-file --bundle -b B ID",
        "create ID --bundle B",
        "create --no-pivot ID --pid-file P -b B",
        "run -db B ID",
        "run --detach --keep --bundle B ID",
        "restore --image-path I --work-path W -b B --tcp-established ID",
    ],
)
@pytest.mark.parametrize("front", ["", CONTAINERD, PODMAN])
def test_every_spelling_of_the_bundle_is_understood(front: str, line: str) -> None:
    invocation = parsed(f"{front} {line}")
    assert invocation.verb == line.partition(" ")[0]
    assert (invocation.value("bundle"), invocation.container_id) == ("B", "ID")


@pytest.mark.parametrize(
    "line",
    ["create ID", "create --no-pivot ID", "create -- ID --bundle B", "create ID -- --bundle B", "create ID -"],
)
def test_bundle_that_is_not_given_is_none(line: str) -> None:
    invocation = parsed(line)
    assert (invocation.value("bundle"), invocation.container_id) == (None, "ID")


@pytest.mark.parametrize(
    ("line", "verb", "container_id"),
    [
        ("--root create start X", "start", "X"),
        ("--root=create state create", "state", "create"),
        ("--log exec --log-format run kill create 9", "kill", "create"),
        ("start create", "start", "create"),
        ("create --pid-file create create", "create", "create"),
        ("create --bundle exec run", "create", "run"),
        ("--debug -- create ID", "create", "ID"),
        ("--rootless true --criu /c delete --force", "delete", "--force"),
    ],
)
def test_value_or_id_that_equals_a_verb_is_none(line: str, verb: str, container_id: str) -> None:
    invocation = parsed(line)
    assert (invocation.verb, invocation.container_id) == (verb, container_id)


@pytest.mark.parametrize("line", ["", "--version", "-v", "--root R", "--log", "create", "exec", "create --bundle"])
def test_incomplete_command_line_is_read_as_far_as_it_goes(line: str) -> None:
    invocation = parsed(line)
    assert invocation.verb == (line.split() or [""])[0].partition("-")[0]
    assert invocation.container_id == ""


def test_global_options_of_containerd() -> None:
    invocation = parsed(f"{CONTAINERD} create --bundle B ID")
    assert [invocation.global_value(name) for name in ("root", "log", "log-format")] == [
        "/run/runc/k8s.io",
        "/b/log.json",
        "json",
    ]


@pytest.mark.parametrize(
    "line",
    [
        "exec --process P ID",
        "exec --process=P ID",
        "exec -p P ID",
        "exec -pP ID",
        "exec -p=P ID",
        "exec -dp P ID",
        "exec -tdpP ID",
        "exec --tty --detach --pid-file F -p P ID",
        "exec -process P ID",
    ],
)
def test_every_spelling_of_the_process_file_is_understood(line: str) -> None:
    invocation = parsed(line)
    assert (invocation.value("process"), invocation.container_id) == ("P", "ID")


def test_beginning_that_two_options_share_is_neither() -> None:
    """getopt refuses it: --process, --process-label."""
    assert parsed("exec --proc P ID").value("process") is None


def test_env_options_of_exec_are_found_where_they_stand() -> None:
    invocation = parsed("--root R exec -e A=1 --env=B=2 -eC=3 -de D=4 --env E ID cmd -e F=6 --env G=7")
    found = [(option.value, option.begin, option.end) for option in invocation.options if option.name == "env"]
    assert found == [("A=1", 3, 5), ("B=2", 5, 6), ("C=3", 6, 7), ("D=4", 7, 9), ("E", 9, 11)]
    assert invocation.container_id == "ID"
    assert invocation.arguments[invocation.operands :] == ["ID", "cmd", "-e", "F=6", "--env", "G=7"]


@pytest.mark.parametrize("line", ["exec -tp P ID", "exec -te A=1 ID", "exec -tde A=1 ID cmd"])
def test_argument_that_crun_takes_for_the_id_and_youki_for_a_value_is_in_doubt(line: str) -> None:
    """crun's `-t` has an optional value that is attached, so it reads `-te` as `--tty=e`."""
    assert "may be a value of the unknown option" in parsed(line).doubt()


def test_operands_of_exec_are_no_options() -> None:
    for line in ("exec ID cmd --process P", "exec -- ID --process P", "exec -t -- ID cmd"):
        invocation = parsed(line)
        assert (invocation.container_id, invocation.value("process")) == ("ID", None)


def test_later_option_counts() -> None:
    assert parsed("exec -p A -p B ID").value("process") == "B"
    assert parsed("--root A --root B state ID").global_value("root") == "B"


@pytest.mark.parametrize(
    "line",
    [
        "",
        "create",
        "create --bundle B",
        "create --help",
        "create --help ID",
        "create ID --help",
        "create -h ID",
        "create -help ID",
        "run -? ID",
        "run --usage ID",
        "--help create ID",
        "--version create ID",
        "-v run ID",
        "exec --help ID cmd",
        "exec -t -h ID",
        "exec",
        "state ID",
    ],
)
def test_command_line_after_which_nothing_starts(line: str) -> None:
    assert parsed(line).starts_nothing()


@pytest.mark.parametrize(
    "line",
    [
        "create ID",
        "create --bundle --help ID",
        "create --bundle -h ID",
        "create --pid-file=--help ID",
        "create --help=false ID",
        "run -h -h=false ID",
        "--help --help=f create ID",
        "--version --version=false run ID",
        "create -- ID --help",
        "create ID -- --help",
        "exec ID --help",
        "exec ID cmd -h",
        "exec -e -h ID cmd",
        "exec -- ID --help",
        "--log --help create ID",
        "--root -v run ID",
        "run -th ID",
    ],
)
def test_help_that_is_a_value_or_an_operand_is_no_help(line: str) -> None:
    """To take one of these for help would be to start it uncorrected."""
    assert not parsed(line).starts_nothing()


def rows_of_the_page() -> list[list[str]]:
    """The rows of the tables in internals/runtime.md, "Verbs": of verbs, and of options, which have one cell more."""
    section = (ROOT / "docs/internals/runtime.md").read_text().partition("## Verbs")[2].partition("\n## ")[0]
    return [[cell.strip() for cell in row.split("|")[1:-1]] for row in section.splitlines() if row.startswith("| `")]


def names(cell: str) -> list[str]:
    return [name.strip(" `-") for name in cell.split(",")]


def test_the_page_has_the_table_of_verbs() -> None:
    rows = [row for row in rows_of_the_page() if len(row) == 3]
    page = {verb: change.replace("nothing", "") for verbs, change, _ in rows for verb in names(verbs)}
    assert page == VERBS
    for verbs, change, result in rows:
        decided = set(EDITING_VERBS) & set(names(verbs))
        assert (result == "refused") == (not decided and change != "nothing")


def test_the_page_has_the_options_that_change_something() -> None:
    rows = [row for row in rows_of_the_page() if len(row) == 4]
    page = [(verb, name, change) for options, of, change, _ in rows for name in names(options) for verb in names(of)]
    assert sorted(page) == sorted(
        (verb, name, change) for verb, options in OPTIONS.items() for name, change in options.items() if change
    )
    refused = {name for options, _, _, does in rows if does == "refused" for name in names(options)}
    assert {name for _, name, _ in page} - refused == set(EDITING_OPTIONS), "the last column says what is done with it"
    assert set(OPTIONS) == set(EDITING_VERBS)


UNLISTED = "no supported runtime has the option {} of {}, so what it changes is unknown"


@pytest.mark.parametrize(
    ("line", "doubt"),
    [
        ("--platform ptrace run ID", ""),
        ("--platform=ptrace --network none state ID", ""),
        ("-s -l /log -r /root state ID", ""),
        ("--unknown run ID", ""),
        ("--unknown state ID", ""),
        ("--unknown=x state run", ""),
        ("--rootless true state run", ""),
        ("--rootless=x state run", ""),
        ("create --unknown ID", UNLISTED.format("--unknown", "create")),
        ("create --mount /a:/b ID", UNLISTED.format("--mount", "create")),
        ("create --mount=/a:/b ID", UNLISTED.format("--mount", "create")),
        ("run ID --mount=/a:/b", UNLISTED.format("--mount", "run")),
        ("exec --env-file=/x ID true", UNLISTED.format("--env-file", "exec")),
        ("update --devices=/x ID", UNLISTED.format("--devices", "update")),
        ("create --root=/r --help ID", ""),  # runc 1.5 takes global options there
        ("exec -td ID", ""),
        ("--unknown x run ID", "run may be the verb or a value of the unknown option --unknown"),
        ("--unknown state run ID", "run may be the verb or a value of the unknown option --unknown"),
        ("--unknown run exec ID", "exec may be the verb or a value of the unknown option --unknown"),
        ("--rootless state run exec", "exec may be the verb or a value of the unknown option --rootless"),
        ("--unknown x ID", "x may be the verb or a value of the unknown option --unknown"),
        ("x ID", "x is not a known verb of an OCI runtime"),
        ("create --unknown -b B ID", "-b may be a value of the unknown option --unknown"),
        ("create -bb0 ID --pid-file", "the option --pid-file has no value"),
        ("create -bb0 --pid-file -- ID", "the option --pid-file has no value"),
        ("create -bb0 --pid-file -", "the option --pid-file has no value"),
        ("create -b=b0 ID", "runtimes read the value of -b= differently: write it without ="),
        ("create -db b0 --pid-file", "the option --pid-file has no value"),
        ("create -t --", "no container id before --"),  # for runc, -t is the id
        ("run -bb0 --", "no container id before --"),
        ("restore --bundle=x --", "no container id before --"),
        ("run -db --", "no container id before --"),
        ("-- create --log-level --", "no container id before --"),
        ("create --", ""),
        ("create -bb0 -- ID", ""),
        ("update --resources - ID", ""),
        ("create -bb0 ID --no-pivot", ""),
        ("exec -p P ID --pid-file", ""),  # of its command
        ("exec --unknown ID", "ID may be a value of the unknown option --unknown"),
    ],
)
def test_doubt_about_a_command_line(line: str, doubt: str) -> None:
    assert parsed(line).doubt() == doubt


@pytest.mark.parametrize("line", ["update -r F ID", "update --resources=F ID", "update ID --res F", "update -rF ID"])
def test_every_spelling_of_the_resources_is_understood(line: str) -> None:
    invocation = parsed(f"{CONTAINERD} {line}")
    assert (invocation.value("resources"), invocation.container_id) == ("F", "ID")


words = st.text("abx", min_size=1, max_size=3)
spellings = st.sampled_from(["--{n} {v}", "--{n}={v}", "-{n} {v}", "-{n}={v}"])
options = st.tuples(st.sampled_from(["bundle", "pid-file", "console-socket"]), words, spellings)


@given(st.sampled_from(EDITING_VERBS[:3]), st.lists(options, max_size=5), st.lists(options, max_size=2), words)
def test_any_order_of_options_gives_the_last_values(
    verb: str, before: list[tuple[str, str, str]], behind: list[tuple[str, str, str]], name: str
) -> None:
    def written(given: list[tuple[str, str, str]]) -> list[str]:
        return " ".join(spelling.format(n=n, v=v) for n, v, spelling in given).split()

    invocation = Invocation([verb, *written(before), name, *written(behind)])
    expected = {option: value for option, value, _ in [*before, *behind]}
    assert {option: invocation.value(option) for option in expected} == expected
    assert invocation.container_id == name
