"""What a test holds: marks for tests, of which tests/pages.py makes pages.

    @marks.claim("env", "runtime", "hook")    a row of docs/security.md, by adapter
    @marks.promise("…", about="Policy")       a line of tests/promises.md; of a whole file as its `pytestmark`
    @marks.hole("…", since="0.3.0", …)        an entry of docs/project/track-record.md: the test was red before the fix
    @marks.cve("CVE-2025-23266")              a row of docs/security.md

A promise or a hole that several tests hold has its data at one of them. The others repeat its text.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest


class Claim(NamedTuple):
    """A row of the table "What is guaranteed".

    `runtime`, `nri`, `hook`: how the claim is limited there; where no test holds it, what is said in place
    of "no".
    """

    text: str
    runtime: str = ""
    nri: str = ""
    hook: str = ""


class Cve(NamedTuple):
    """What others' CVE is here: what happens; "guarded", "unaffected" or "the engine's"; and why."""

    what: str
    here: str
    why: str


def claim(name: str, *adapters: str) -> pytest.MarkDecorator:
    """The test holds a claim of CLAIMS through these adapters.

    `ADAPTER@CASE`: only the cases of which a parameter is CASE, or a pair of a runtime and CASE.
    """
    return pytest.mark.claim(name, *adapters)


def promise(text: str, *, about: str = "") -> pytest.MarkDecorator:
    """The test, or the file, holds a promise. `about`: the part of the page, one of ABOUT."""
    return pytest.mark.promise(text, about=about)


def hole(
    gave: str, *, since: str = "", fixed: str = "", severity: str = "", found: str = "review", command: str = ""
) -> pytest.MarkDecorator:
    """The test was red before a hole was closed.

    `gave`: what an attacker had by it. `since`: the first version with it. `fixed`: the first version without it; the
    same as `since` if it was in development only. `severity`: high, medium or low, as project/track-record.md defines
    them. `found`: by review, fuzz or user. `command`: what tries it, if it is not these tests alone.
    """
    return pytest.mark.hole(gave, since=since, fixed=fixed, severity=severity, found=found, command=command)


def cve(number: str) -> pytest.MarkDecorator:
    """The test shows what a CVE of CVES is here."""
    return pytest.mark.cve(number)


class Removed(NamedTuple):
    """A hole without a test: what had it is removed since. The other fields are those of `hole`."""

    gave: str
    since: str
    fixed: str
    severity: str
    what: str


REMOVED = (
    Removed(
        "With `node install --prefix DIR`, a writable volume of DIR/sbin or of DIR/reassert/start was executed as"
        " root of the node at the next start",
        since="0.1.0",
        fixed="0.4.0",
        severity="high",
        what="the option `--prefix`",
    ),
)
"""The holes of what is removed. Those of high severity stay a reason to upgrade."""

PARAMETERS = {
    "real=runc": "runc 1.1.5",
    "each=runc": "runc 1.1.5",
    "which=runc": "runc 1.1.5",
    "runtime=runc": "runc 1.1.5",
    "real=/usr/sbin/runc": "runc 1.1.5",
    "way=runc": "runc 1.1.5",
    "pair=runc": "runc 1.1.5",
    "way=runc-trixie": "runc 1.1.15",
    "pair=runc-trixie": "runc 1.1.15",
    "each=runc-trixie": "runc 1.1.15",
    "way=runc-forky": "runc 1.3.6",
    "pair=runc-forky": "runc 1.3.6",
    "each=runc-forky": "runc 1.3.6",
    "real=crun": "crun 1.8.1",
    "each=crun": "crun 1.8.1",
    "which=crun": "crun 1.8.1",
    "runtime=crun": "crun 1.8.1",
    "real=/usr/bin/crun": "crun 1.8.1",
    "way=crun": "crun 1.8.1",
    "pair=crun": "crun 1.8.1",
    "way=crun-trixie": "crun 1.21",
    "pair=crun-trixie": "crun 1.21",
    "each=crun-trixie": "crun 1.21",
    "way=crun-forky": "crun 1.28",
    "pair=crun-forky": "crun 1.28",
    "each=crun-forky": "crun 1.28",
    "containerd=1.6": "containerd 1.6",
    "booted=bookworm": "containerd 1.6",
    "containerd=1.7": "containerd 1.7",
    "booted=trixie": "containerd 1.7",
    "containerd=2.1": "containerd 2.1",
    "booted=forky": "containerd 2.1",
    "today=docker": "docker 28.5",
    "today=podman": "podman 5.8",
    "runtime=runsc": "runsc 20240729",
    "real=2024": "runsc 20240729",
}
"""What a test is tried with, by a fixture or parameter and its value, in the order of the table."""

TODAY = {
    "buildah": "1.43",
    "containerd": "2.1",
    "criu": "4.2",
    "crun": "1.28",
    "docker-buildx": "0.29",
    "docker.io": "28.5",
    "podman": "5.8",
    "runc": "1.3",
    "runsc": "0.0~20240729",
}
"""The versions of Debian's newest suite with which e2e/node/test_today.py was green: how they begin, by package."""

FIXED = {
    "e2e/test_podman.py::test_podman": "podman 4.3",
    "e2e/test_podman.py::test_annotations_of_podmans": "podman 4.3",
    "e2e/test_bounds.py": "called directly",
    "e2e/test_devices.py::test_the_hook_refuses": "called directly",
    "e2e/node/test_podman.py": "podman 4.3",
    "e2e/test_gvisor.py": "runsc 20221219",
    "e2e/node/test_gvisor.py": "runsc 20221219",
}
"""The same of tests without such a parameter, by the start of their name."""

ABOUT = (
    "Decision",
    "Policy",
    "Trust store",
    "NRI",
    "Events and metrics",
    "In force",
    "Agent",
    "Node",
    "Packages and cluster",
    "Trials",
)
"""The parts of tests/promises.md."""

CLAIMS = {
    "env": Claim(
        "The first process has each reserved env name once, with the policy's value",
        nri="yes, or refused",
        hook="refused otherwise",
    ),
    "absent-env": Claim(
        "The first process does not have an env name that must be absent",
        nri="yes, or refused",
        hook="refused otherwise",
    ),
    "allowed-env": Claim(
        "The first process has one of the values that the policy allows for an env name, what `else` gives in place of "
        "another, or none",
        nri="yes, or refused",
        hook="refused otherwise",
    ),
    "exec": Claim("A process of `exec` has the same env entries"),
    "verbs": Claim(
        "No verb of a runtime bypasses the policy; an unknown verb, an option of it that no runtime has, and "
        "an option that hides the verb, is refused",
        nri="not needed",
        hook="not needed",
    ),
    "update": Claim(
        "An update of resources gives no device back that `exclusive` took",
        nri="not needed: such a container is refused",
    ),
    "restore": Claim(
        "A checkpoint is not restored where the policy reserves anything for the container",
        hook="under runc; crun calls no hook",
    ),
    "exec-of-unknown": Claim(
        "An `exec` whose container cannot be found, or is found twice, is refused",
        nri="not needed: the stored spec is corrected",
    ),
    "mounts": Claim(
        "A reserved mount is the last one at its path; no pod's mount lies on it or below it, unless "
        "`allowBelow` says so",
        nri="yes, or refused",
    ),
    "links": Claim(
        "No symbolic link, device, console or masked path of an image or a volume takes the place of a "
        "reserved mount, or leads it to the node's files",
        nri="by the hook; of devices see below",
        hook="yes; of devices see below",
    ),
    "volumes-above": Claim(
        "A volume above a reserved mount, or on the way that a link leads, refuses the container without "
        "`volumesAbove: Allow`",
        nri="the volume by its path; links by the hook",
    ),
    "remount": Claim(
        "A container with CAP_SYS_ADMIN writes nothing through a rule's read-only mount after "
        "`remount,bind,rw`, where it [can be idmapped](internals/hook.md#a-container-that-can-remount)",
        nri="by the hook",
    ),
    "shared-processes": Claim(
        "With `sharedProcesses: Refuse` no container starts that joins a PID namespace or has the node's",
    ),
    "shared-proc-volumes": Claim(
        "With `sharedProcesses: Refuse` no container starts with a volume of the node's /proc/PID, such as "
        "its root or fd",
        nri="hostPaths of / and /proc; others by the hook, untested",
    ),
    "read-only-below": Claim(
        "`readOnly: true` holds for what the node has mounted below the hostPath", nri="by the hook, untested"
    ),
    "allocation": Claim(
        "A process gets the device plugin's value, mounts and devices; without an allocation the policy's default",
        nri="yes, or refused",
        hook="refused otherwise",
    ),
    "exclusive": Claim(
        "With `exclusive`, a process opens no device that was not allocated: privileged, block volumes, "
        "hostPath of /dev, other hooks",
        nri="refused for a device or cgroup rule; NRI alone does not look into the container",
        hook="refused otherwise",
    ),
    "exclusive-claims": Claim(
        "With `exclusive`, a container has the CDI devices of its own resource claims and no others; what is "
        "missing of them is restored",
        nri="yes, or refused; before containerd 2.3 a claim with several requests counts as a whole",
        hook="untested",
    ),
    "trusted": Claim(
        "With `trusted`, env names only devices that a reserving pod holds, in the namespaces that the policy names",
        hook="untested",
    ),
    "other-plugins": Claim(
        "A pod whose annotations ask another NRI plugin for devices, against a rule, is refused",
        runtime="no: only NRI sees them",
        hook="no",
    ),
    "own-files": Claim(
        "No container writes to reassert's own files by a volume, also by a link or subPath, unless the "
        "policy excepts it: it is refused, or they are read-only in it",
        nri="the hook behind it refuses; alone no",
    ),
    "later-plugins": Claim(
        "What a later NRI plugin changes keeps what is reserved (NRI 0.10)",
        runtime="yes: NRI comes before it; see the rows above",
        hook="refused otherwise; see the rows above",
    ),
    "exclusion": Claim(
        "No annotation, label, cgroup parent or name that a pod, an image or a user of podman or docker can "
        "write excludes a container",
        hook="untested",
    ),
    "ambiguous-json": Claim(
        "A config.json or process file that Go and C read differently (a NUL, a member in another spelling) is refused",
        nri="by the hook, untested",
        hook="untested",
    ),
    "failure-policy": Claim("`failurePolicy: Ignore` lets through nothing that a pod, an image or a user caused"),
    "decision-annotation": Claim(
        "A pod that writes the annotation `reassert/decision` gains nothing by it",
        nri="not used",
        hook="read only if reassert wrote it",
    ),
    "last-good-policy": Claim(
        "A broken, missing or foreign policy file leaves the last good policy in force; without one only "
        "kube-system starts",
        hook="untested",
    ),
    "outage": Claim(
        "While reassert's own program or process is away, no container starts uncorrected",
        nri="with the hook as second line; alone no",
        hook="no test: the runtime refuses",
    ),
    "bounded": Claim("The CPU time and memory of a decision are bounded; a container that is too large is refused"),
    "pod-selector": Claim(
        "A rule with a `podSelector` applies to pods with these labels alone",
        runtime="yes, if the engine answers over CRI; else `ifUnknown`",
        hook="untested",
    ),
    "empty-dir": Claim(
        "An `emptyDir` of a rule belongs to one pod, and is removed with it",
        runtime="yes, with kubelet's directory of the pod",
        nri="as `runtime`; with `medium: Memory`, `failurePolicy` decides",
        hook="untested",
    ),
    "container-types": Claim(
        "kubelet alone tells app containers and sidecars from init and ephemeral ones, for `containerTypes` "
        "and `exclude`",
        runtime="yes, if its PodResources answers; else the type is unknown",
        nri="as `runtime`",
        hook="untested",
    ),
    "vm-runtimes": Claim(
        "The config.json and the processes of `exec` that containerd hands to the shim of a VM runtime (kata) have the"
        " policy's env and mounts, or the container is refused. What the shim makes of them is not tried",
        runtime="no: such a shim calls no OCI runtime",
        hook="no",
    ),
    "unsafe-annotations": Claim(
        "No annotation of a pod, an image or a user tells a runtime where hooks write, which program to "
        "start, or which config.json `exec` reads",
        hook="refused otherwise; crun then leaves an empty file",
    ),
}
"""The rows of the table, in its order."""

CVES = {
    "CVE-2025-23266": Cve(
        "NVIDIA's toolkit: its createContainer hook has no env, and runc before 1.3 gives it the container's."
        " LD_PRELOAD of an image then runs on the node",
        "guarded",
        "A rule with `LD_PRELOAD` and `LD_AUDIT` absent "
        "([config/examples/loader.yaml](../config/examples/loader.yaml)). Each of reassert's hooks has an env",
    ),
    "CVE-2026-57231": Cve(
        "podman up to 5.8.3: an entry of the image's ENV without `=`, or with `*`, is filled in from podman's own env",
        "guarded",
        "A rule with these names absent, such as `HF_*`",
    ),
    "CVE-2026-53492": Cve(
        "containerd: a checkpoint brings CDI annotations of its author",
        "guarded",
        "A checkpoint is not restored where the policy reserves anything",
    ),
    "CVE-2026-50195": Cve(
        "containerd: the import of a checkpoint gives another image a local tag",
        "guarded",
        "With NRI 0.13, `images` as NAME@DIGEST. A tag alone proves nothing",
    ),
    "CVE-2025-24965": Cve(
        "crun with libkrun: an annotation makes it read `.krun_config.json` outside of the container's root",
        "guarded",
        "`krun.*` and `run.oci.*` are removed where a rule applies",
    ),
    "CVE-2025-47291": Cve(
        "containerd 2.0: a container with a user namespace is outside of its pod's cgroup, without the pod's limits",
        "guarded",
        "Limits are not reserved. `exclusive` closes the devices in the cgroup that the runtime makes, wherever it is",
    ),
    "CVE-2026-53488": Cve(
        "containerd: a LABEL of an image becomes a command of root",
        "unaffected",
        "No label of an image decides anything, and nothing of one reaches a command line",
    ),
    "CVE-2024-40635, CVE-2026-46680": Cve(
        "containerd: a USER of an image that is too large a number becomes root",
        "unaffected",
        "reassert reads the capabilities of config.json, and neither the user nor the image's USER",
    ),
    "CVE-2025-64329, CVE-2026-47262, CVE-2025-4437": Cve(
        "containerd, CRI-O: files of an image, or attached streams, take the engine's memory",
        "unaffected",
        "What a container can make long is [bounded](internals/runtime.md#environment-and-files)",
    ),
    "CVE-2025-31133, CVE-2025-52565, CVE-2025-52881, CVE-2026-41579, CVE-2026-47766": Cve(
        "runc, crun: a link or a race at a masked path, the console or a device leads a mount or a write to "
        "the node's /proc",
        "unaffected",
        "reassert opens the node's /proc before it enters a container's namespace, and resolves paths by "
        "openat2. A masked path, console or device that would lie on a reserved mount refuses the container. "
        "The escape itself is the runtime's: update it",
    ),
    "CVE-2026-30892": Cve(
        "crun: `exec --user` is read wrongly",
        "unaffected",
        "The user is not reserved; the env of the `exec` is corrected whatever the user",
    ),
    "CVE-2026-41567, CVE-2026-41568, CVE-2026-42306": Cve(
        "docker: `docker cp` runs a program of the container as root of the node, or follows its links",
        "unaffected",
        "`audit` and `doctor` run nothing of a container. They did in 0.3 ([track record](project/track-record.md))",
    ),
    "CVE-2026-34040": Cve(
        "docker: a large request passes the authorization plugin unseen",
        "unaffected",
        "reassert is behind the API, and judges the config.json that comes of it. One that is too large is refused",
    ),
    "CVE-2026-25996": Cve(
        "Inspektor Gadget: text of a container controls the terminal",
        "unaffected",
        "Text of a container is escaped on terminals and in logs",
    ),
    "CVE-2025-4563, CVE-2025-5187, CVE-2025-13281": Cve(
        "Kubernetes: what a node's credentials can do at the API server",
        "unaffected",
        "reassert on a node has no credentials. The chart's token can write about [its own node](kubernetes.md) alone",
    ),
    "CVE-2025-23267, CVE-2025-23359, CVE-2026-24260": Cve(
        "NVIDIA's toolkit: its hooks follow links of the image",
        "the engine's",
        "They run on the node, and reassert does not change them. `NVIDIA_VISIBLE_DEVICES: void` keeps "
        "them from containers without an allocation: seen with toolkit 1.20 on a GPU, by hand",
    ),
    "CVE-2026-15809": Cve(
        "CRI-O: a newline in HOME adds a line to the container's /etc/passwd",
        "the engine's",
        "It is written before reassert is called",
    ),
    "CVE-2026-53489": Cve(
        "containerd: a restore reads a file of the node through a link of the checkpoint",
        "the engine's",
        "The engine unpacks a checkpoint before it calls the runtime",
    ),
    "CVE-2026-44210, CVE-2026-24834, CVE-2026-47243, CVE-2026-41326": Cve(
        "Kata: arguments of virtiofsd by annotations, ways from the guest to the node, the agent's policy",
        "the engine's",
        "Kata takes annotations of the sandbox, about which nobody asks reassert. Set `enable_annotations` in"
        " Kata's configuration",
    ),
    "CVE-2025-9566, CVE-2025-4953, CVE-2026-55686, CVE-2024-11218, CVE-2026-44517": Cve(
        "podman, buildah: `kube play`, WORKDIR, mounts of a build write to the node",
        "the engine's",
        "They act as root of the node, or in a build, before a container starts",
    ),
    "CVE-2026-33747, CVE-2026-33748, GHSA-7236-3392-c5c6, CVE-2026-15788 to -15793": Cve(
        "BuildKit: a frontend writes files of the node, or switches seccomp off",
        "the engine's",
        "They act in BuildKit, before a RUN step starts. seccomp is not reserved",
    ),
    "CVE-2025-46599, CVE-2026-54250": Cve(
        "k3s: kubelet's read-only port is open; a snapshot holds secrets",
        "the engine's",
        "Nothing of a container's start",
    ),
}
"""The CVEs of docs/security.md, in the order of its table."""
