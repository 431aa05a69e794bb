"""Programs in real containers trust the company's server by policy alone, and no CA that a pod or an image brings."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import marks
import pytest
from harness.bundle import Bundle
from harness.container import Running
from harness.node import Node
from harness.paths import REASSERT
from harness.tools import run

from e2e.runtimes import guarded
from e2e.trust.authorities import Authority, serving
from e2e.trust.conftest import Company
from e2e.trust.images import BUNDLE, LAYOUTS, PROGRAMS, READ_THERE, answers, probe
from hook.compile.trust import table

pytestmark = marks.promise(
    "By `trust` in a rule alone, programs in images of six distributions trust the added CA, and no CA that "
    "the pod or the image brings",
    about="Trust store",
)

RUNC = "/usr/sbin/runc"
Image = Callable[[str], Bundle]
YES_NO = {"company": True, "attacker": False}


def tried(container: Running, company: Company, programs: dict[str, str]) -> dict[str, dict[str, bool]]:
    """What programs answer that the container's own process starts."""
    container.bundle.spec["process"]["args"] = ["/bin/sh", "-c", probe(company.ports, programs)]
    container.bundle.save()
    with container:
        for _ in range(1200):
            if "\ndone\n" in container.output():
                break
            time.sleep(0.1)
        found = answers(container.output())
        assert found.keys() == programs.keys(), container.output()
        print(container.output())  # pytest shows it if the test fails
        return found


def test_without_the_policy_no_program_trusts_the_company(image: Image, company: Company) -> None:
    found = tried(Running(RUNC, image("debian")), company, PROGRAMS)
    assert {name: answer["company"] for name, answer in found.items()} == dict.fromkeys(PROGRAMS, False)
    assert found["curl"]["attacker"]  # whose CA is in the image


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_program_trusts_the_company_and_not_the_images_ca(
    layout: str, image: Image, company: Company, node: Node
) -> None:
    node.compile(company.policy())
    found = tried(Running(node.dispatcher(RUNC), image(layout)), company, PROGRAMS)
    assert found == dict.fromkeys(PROGRAMS, YES_NO)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_mounts_alone_are_what_the_distributions_programs_read(
    layout: str, image: Image, company: Company, node: Node
) -> None:
    node.compile(company.policy(trust=", stacks: []"))
    connect = "openssl s_client -connect localhost:{port} -verify_return_error -no-CAstore"
    programs = {}
    for path in READ_THERE[layout]:
        is_file = path.endswith((".crt", ".pem"))
        programs[path] = f"{connect} {'-no-CApath -CAfile' if is_file else '-no-CAfile -CApath'} {path}"
    if layout != "scratch":  # Debian's OpenSSL reads its own directory, which the layout leads to the distribution's
        programs |= {name: PROGRAMS[name] for name in ("openssl", "urllib", "java") if name in PROGRAMS}
    found = tried(Running(node.dispatcher(RUNC), image(layout)), company, programs)
    assert found == dict.fromkeys(programs, YES_NO)


def test_single_files_are_trusted_too(image: Image, company: Company, node: Node) -> None:
    node.compile(company.policy(trust=", mount: Files"))
    found = tried(Running(node.dispatcher(RUNC), image("rhel")), company, PROGRAMS)
    assert {name: answer["company"] for name, answer in found.items()} == dict.fromkeys(PROGRAMS, True)


def test_without_public_roots_only_the_added_ca_is_trusted(image: Image, company: Company, node: Node) -> None:
    """The attacker's CA is one of the system's roots of this store."""
    store = company.directory / "sandboxes"
    sources = ("--system", str(company.attacker.pem), "--add", str(company.authority.pem), "--out", str(store))
    run(str(REASSERT), "trust", "build", *sources)
    made = Company(company.directory, store, company.authority, company.attacker, company.ports)
    programs = {name: PROGRAMS[name] for name in ("openssl", "curl", "requests", "git", "go")}
    bundle = image("rhel")
    node.compile(made.policy())
    found = tried(Running(node.dispatcher(RUNC), bundle), made, programs)
    assert found == {name: {"company": True, "attacker": True} for name in programs}
    node.compile(made.policy(trust=", publicRoots: false"))
    assert tried(Running(node.dispatcher(RUNC), bundle), made, programs) == dict.fromkeys(programs, YES_NO)


if "java" in PROGRAMS:

    def test_java_with_a_store_of_its_own_needs_java_options(image: Image, company: Company, node: Node) -> None:
        """As in Temurin's images: `lib/security/cacerts` is a file of the JDK."""
        bundle = image("debian")
        [cacerts] = (bundle.rootfs / "usr/lib/jvm").glob("java-17-openjdk-*/lib/security/cacerts")
        cacerts.unlink()
        cacerts.write_bytes((company.store / "live/java/cacerts").read_bytes()[:0])
        java = {"java": PROGRAMS["java"]}
        node.compile(company.policy())
        assert tried(Running(node.dispatcher(RUNC), bundle), company, java) == {
            "java": {"company": False, "attacker": False}
        }
        node.compile(company.policy(trust=", stacks: [java-options]"))
        assert tried(Running(node.dispatcher(RUNC), bundle), company, java) == {"java": YES_NO}


# -- a pod that brings its own trust


def own_env(bundle: Bundle) -> None:
    """Every variable of the table, with the attacker's file, and once more after it."""
    names = {name for stack in table()[1].values() for name in [*stack.env, *stack.absent] if stack.default}
    values = [f"{name}={'/evil' if name.endswith(('DIR', 'PATH')) else '/evil/attacker.pem'}" for name in names]
    bundle.spec["process"]["env"] += [*values, *values]


def own_mounts(bundle: Bundle) -> None:
    """A volume at, and files below, the paths that are reserved."""
    for path in ("/etc/ssl/certs", BUNDLE, "/etc/ssl/certs/added.pem", "/etc/pki/tls/certs/ca-bundle.crt"):
        bundle.bind(volume(bundle) / ("attacker.pem" if "." in path else ""), path)


def own_link(bundle: Bundle) -> None:
    """The image leads the directory into one of its own."""
    certs = bundle.rootfs / "etc/ssl/certs"
    (certs / "own.pem").rename(bundle.rootfs / "evil/own.pem")
    run("rm", "-r", str(certs))
    certs.symlink_to("/evil")


def own_openssl(bundle: Bundle) -> None:
    """The image leads the paths that are compiled into OpenSSL into a directory of its own."""
    run("rm", "-r", str(bundle.rootfs / "usr/lib/ssl"))
    (bundle.rootfs / "usr/lib/ssl").mkdir()
    (bundle.rootfs / "usr/lib/ssl/certs").symlink_to("/evil")
    (bundle.rootfs / "usr/lib/ssl/cert.pem").symlink_to("/evil/attacker.pem")


def own_volume_behind_a_link(bundle: Bundle) -> None:
    """The image leads the directory into a volume of the pod, which other containers write to."""
    run("rm", "-r", str(bundle.rootfs / "etc/ssl/certs"))
    (bundle.rootfs / "etc/ssl/certs").symlink_to("/data")
    bundle.bind(volume(bundle), "/data")


def volume(bundle: Bundle) -> Path:
    path = bundle.directory.parent / "volume"
    if not path.exists():
        run("cp", "-r", str(bundle.rootfs / "evil"), str(path))
    return path


@pytest.mark.parametrize(
    ("way", "starts"),
    [(own_env, True), (own_mounts, True), (own_link, True), (own_openssl, True), (own_volume_behind_a_link, False)],
    ids=["env", "mounts", "link", "openssl's directory", "volume behind a link"],
)
def test_pod_that_brings_its_own_trust_has_the_companys(
    way: Callable[[Bundle], None], starts: bool, image: Image, company: Company, node: Node
) -> None:
    node.compile(company.policy())
    bundle = image("debian")
    (bundle.rootfs / "evil").mkdir()
    (bundle.rootfs / "evil/attacker.pem").write_bytes(company.attacker.pem.read_bytes())
    run("openssl", "rehash", str(bundle.rootfs / "evil"))
    way(bundle)
    bundle.save()
    container = Running(node.dispatcher(RUNC), bundle)
    if starts:
        assert tried(container, company, PROGRAMS) == dict.fromkeys(PROGRAMS, YES_NO)
    else:
        assert "is a volume above the reserved mount" in container.refused()


# -- links of images, on every runtime


RHEL_LINKS = ("etc/ssl/certs", "../pki/tls/certs")
SUSE_LINKS = ("etc/ssl/certs", "../../var/lib/ca-certificates/pem")


@pytest.mark.parametrize(("link", "target"), [RHEL_LINKS, SUSE_LINKS], ids=["rhel", "suse"])
def test_two_mounts_that_a_link_leads_to_one_place(
    link: str, target: str, pair: tuple[str, str], company: Company, node: Node, bundle: Bundle
) -> None:
    node.compile(company.policy(trust=", stacks: []"))
    run("rm", "-r", str(bundle.rootfs / link))
    (bundle.rootfs / link).symlink_to(target)
    (bundle.rootfs / link).parent.joinpath(target).resolve().mkdir(parents=True)
    bundle.spec["root"]["readonly"] = True
    with guarded(pair[1], pair[0], node, bundle) as container:
        for path in (BUNDLE, "/etc/pki/tls/certs/ca-bundle.crt", "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem"):
            assert company.authority.pem.read_text().strip() in container.exec("/bin/cat", path), path
    [event] = node.logged()
    assert (event["applied"], event["verified"]) == (True, "container")


# -- rotation


def test_new_generation_reaches_running_containers_within_a_second(
    image: Image, company: Company, node: Node, directory: Path
) -> None:
    """Of directories. A single file is the one of the container's start until it is created again."""
    second = Authority(directory, "second")
    programs = {name: command for name, command in PROGRAMS.items() if name in ("curl", "urllib", "git")}

    def all_say(answer: bool) -> dict[str, dict[str, bool]]:
        return {name: {"second": answer} for name in programs}

    node.compile(company.policy())
    with serving(second) as port, Running(node.dispatcher(RUNC), image("debian")) as container:
        script = probe({"second": port}, programs)
        assert answers(container.exec("/bin/sh", "-c", script)) == all_say(False)
        company.build(company.authority, second)
        seen = container.exec("/bin/cat", "/etc/ssl/certs/added.pem")
        assert second.pem.read_text().strip() in seen
        said = container.exec("/bin/sh", "-c", script)
        assert answers(said) == all_say(True), said
        company.build(company.authority)
        assert answers(container.exec("/bin/sh", "-c", script)) == all_say(False)


# -- a node without the store


def test_container_is_refused_with_the_command_that_builds_the_store(node: Node, bundle: Bundle) -> None:
    store = node.directory / "trust"
    node.compile(Company.policy(Company(node.directory, store, None, None, {})))  # type: ignore[arg-type]  # only the store's path is read
    refused = Running(node.dispatcher(RUNC), bundle).refused()
    assert f"does not exist on this node; run there: reassert trust build --out {store}" in refused


def test_audit_names_the_generation_that_a_container_sees(bundle: Bundle, company: Company, node: Node) -> None:
    """One that mounts a file of the store sees none once the file is another."""
    file = f"    mounts: [{{hostPath: {company.store}/live/ca-certificates.crt, mountPath: /etc/company.crt}}]\n"
    command = [str(REASSERT), "audit", "-o", "json"]
    for policy, sees_a_rotation in ((company.policy(), True), (company.policy(more=file), False)):
        node.compile(policy)
        with Running(node.dispatcher(RUNC), bundle) as container:
            seen = []
            for authorities in ((company.authority, company.attacker), (company.authority,)):
                company.build(*authorities)
                done = run(*command, *node.options()[:4], container.id, check=False)
                seen.append((max((company.store / "generations").iterdir()).name, json.loads(done.stdout)))
            number, audit = seen[-1]
            assert seen[0][0] < number
            assert audit["containers"][0]["trusts"] == (
                [f"{company.store} generation {int(number)}"] if sees_a_rotation else []
            ), audit
