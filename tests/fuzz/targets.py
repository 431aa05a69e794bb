"""The targets: each takes the bytes of one input and fails if its property does not hold.

A property compares what reassert reads with a second reading that shares no code with it. Refusals count too: what
reassert refuses although the second reading takes it must be one of the refusals that are documented.
"""

from __future__ import annotations

import base64
import ctypes
import json
import os
import re
import struct
import subprocess
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from atheris import FuzzedDataProvider
from fuzz import second
from unit.kubelet import Answer

from hook.core.base.compare import clean
from hook.core.base.errors import ReassertError, TooLarge, Unacceptable, Undecided
from hook.core.base.mountinfo import mount_table_at
from hook.core.container import oci, runtime_records
from hook.core.container.allocation import Allocation, allocations
from hook.core.container.claims import CLAIMS_API, CLAIMS_KIND, claims
from hook.core.container.spec import Spec
from hook.entry.cmdline import EDITING_VERBS, VERBS, Invocation
from hook.entry.hook import State
from hook.entry.process import ProcessFile
from hook.nri import ttrpc
from hook.nri.requested import RequestedContainer
from hook.ops.trust.certificate import certificates
from hook.ops.trust.errors import TrustError
from hook.resident import protobuf

WORK = Path("/nonexistent")
"""An empty directory for files; set by drive.py."""

_STRICTER = (
    "duplicate member|is spelled '|holds a NUL|not UTF-8|nested too deeply|is missing or not an object"
    "|is not an object with a destination|is not a string|is not a list of objects"  # for Go, null is an empty one
    "|more text after the object"  # Go reads the first value alone
)
"""Why reassert refuses a config.json or process file that Go reads: Go and C would read it differently."""


def same(ours: Any, other: Any, what: str) -> None:
    """Fail unless both readings are equal; half a surrogate pair counts as U+FFFD, which Go has in its place."""
    ours, other = (json.loads(second._plain(json.dumps(value, ensure_ascii=False))) for value in (ours, other))
    assert ours == other, f"{what}: reassert reads {ours!r}, the other {other!r}"


def fields(objects: Any, shape: dict[str, Any], name: Callable[[str], str] = str) -> list[dict[str, Any]]:
    """Some members of each object, by lower-case names; what is missing has Go's zero value."""
    return [
        {field.lower(): zero if (value := entry.get(name(field))) is None else value for field, zero in shape.items()}
        for entry in objects or []
    ]


_MOUNT = {"Destination": "", "Type": "", "Source": "", "Options": []}
_DEVICE = {"Path": "", "Type": "", "Major": 0, "Minor": 0}
_RULE = {"Allow": False, "Type": "", "Access": "", "Major": None, "Minor": None}
_HOOK = {"Path": "", "Args": [], "Env": []}
_NAMESPACE = {"Type": "", "Path": ""}


def _values(process: Any, root: Any, name: Callable[[str], str]) -> dict[str, Any]:
    """What a policy is about, from a reading of config.json with member names by `name`."""
    linux = root.get(name("Linux")) or {}
    resources = linux.get(name("Resources")) or {}
    hooks = root.get(name("Hooks")) or {}
    return {
        "env": list(process.get(name("Env")) or []),
        "mounts": fields(root.get(name("Mounts")), _MOUNT, name),
        "annotations": root.get(name("Annotations")) or {},
        "devices": fields(linux.get(name("Devices")), _DEVICE, name),
        "rules": fields(resources.get(name("Devices")), _RULE, name),
        "namespaces": fields(linux.get(name("Namespaces")), _NAMESPACE, name),
        "root": (root.get(name("Root")) or {}).get(name("Path")) or "",
        "hooks": {stage: fields(entries, _HOOK, name) for stage, entries in hooks.items()},
        "admin": "SYS_ADMIN" in repr(process.get(name("Capabilities")) or "SYS_ADMIN").upper(),
    }


def _check_spec(spec: Spec, data: bytes, go: Any) -> None:
    """Fail unless Go and C read these bytes as `spec` has them."""
    linux = {
        "devices": oci.objects(spec.devices),
        "resources": {"devices": oci.objects(spec.device_rules)},
        "namespaces": spec.linux.get("namespaces"),
    }
    root = {"mounts": oci.objects(spec.mounts), "annotations": spec.annotations, "linux": linux, "root": spec.root}
    ours = _values({"env": spec.env}, {**root, "hooks": spec.hooks}, str.lower)
    c = second.in_c(data)
    for reader, reading in (("Go", _values(go["Process"], go, str)), ("C", _values(c["process"], c, str.lower))):
        assert spec.is_admin() or not reading.pop("admin"), f"{reader} reads CAP_SYS_ADMIN"
        reading.pop("admin", None)
        same({name: ours[name] for name in reading}, reading, reader)


def _taken(read: Callable[[], Any], refusable: bool) -> Any:
    """What `read` returns, or None where reassert refuses it; fail unless it is `refusable` or Go and C differ."""
    try:
        return read()
    except TooLarge:
        return None
    except Unacceptable as error:
        assert refusable or re.search(_STRICTER, str(error)), f"Go takes it: {error}"
        return None


def _check_kept(data: bytes, edited: bytes, members: tuple[str, ...]) -> None:
    """Fail unless both have the same value for each member but `members`."""
    before, after = ({k: v for k, v in second.in_c(text).items() if k not in members} for text in (data, edited))
    assert repr(before) == repr(after), "render changed another member"


def config(data: bytes) -> None:
    """config.json: what Go refuses does not matter; of what it takes, Go, C and reassert read the same values, also
    after each of them was replaced. What reassert alone refuses is read differently by Go and C, or no container's."""
    go = second.read("config", data)
    spec = _taken(lambda: Spec(data, "config.json"), go is None or go["Process"] is None)
    if go is None or spec is None:
        return
    _check_spec(spec, data, go)
    spec.env = ["A=1", *list(spec.env)[1:], 'B="\\\u00e4']
    added: oci.Json = {"destination": "/m", "type": "bind", "source": "/s", "options": ["ro"]}
    spec.mounts = [*spec.mounts, oci.Mount(added)]
    spec.annotations = {**spec.annotations, "n": "v"}
    spec.devices = [*spec.devices, oci.Device({"path": "/dev/x", "type": "c", "major": 1, "minor": 2})]
    spec.device_rules = [oci.DeviceRule({"allow": False, "access": "rwm"}), *spec.device_rules]
    try:
        edited = spec.render()
    except ValueError:  # 1e999, in a member that Go does not know
        assert b"e" in data.lower(), "render"
        return
    go = second.read("config", edited)
    assert go is not None, "Go refuses what render returned"
    _check_spec(spec, edited, go)
    if _is_json(edited):  # env_in refuses more text after the object, as crun 1.21 does
        assert list(spec.env_in(edited)) == list(spec.env), "env_in"
    _check_kept(data, edited, ("process", "mounts", "annotations", "linux"))


def _is_json(data: bytes) -> bool:
    try:
        json.loads(data)
    except ValueError:
        return False
    return True


def process(data: bytes) -> None:
    """The process file of exec: as `config`, for its env."""
    go = second.read("process", data)
    file = _taken(lambda: ProcessFile(data, "process.json"), go is None or data.lstrip().startswith(b"null"))
    if go is None or file is None:
        return
    same(list(file.env), go["Env"] or [], "Go")
    same(list(file.env), second.in_c(data).get("env") or [], "C")
    file.env = [*file.env, "A=1"]
    edited = file.render()
    same(list(file.env), second.read("process", edited)["Env"], "Go, edited")
    _check_kept(data, edited, ("env",))


_WORDS = (  # noqa: SIM905  # a list would have a line for each word
    "create run restore exec update state kill delete start --root --root=r1 r0 r1 --bundle --bundle=b1 -b -bb0 -b=b1 "
    "b0 b1 i0 i1 -- - --log l0 --log-format json --debug --systemd-cgroup --no-pivot --pid-file --pid-file=p "
    "--console-socket --preserve-fds 1 --detach -d -db -t -tb --process -p -pp0 -tp p0 --env -e A=1 --bun --pro "
    "--config -f c0 --help -h --version -v --rootless --rootless=true true --cgroup-manager --log-level --unknown -x "
    "-root -bundle --work-path --image-path --resources -r --user -u --cwd --tty --cap -c --platform --criu --keep"
).split()
"""Words of command lines. `spec` writes a config.json, and other verbs start what does not end: these are left out."""


def cmdline(data: bytes) -> None:  # noqa: PLR0912  # the cases of one property
    """Command lines: a real runc, crun and runsc read the config.json, or the container's state, that reassert says
    they do, and none where reassert says that nothing starts. What front passes without a question starts nothing.

    There is one broken config.json or state on the disk: a runtime that reads another one says that it is missing.
    """
    arguments = [_WORDS[byte % len(_WORDS)] for byte in data[:12]]
    invocation = Invocation(arguments)
    doubt, starts_nothing = invocation.doubt(), invocation.starts_nothing()
    if _front().passes("\0".join(arguments).encode() + b"\0\0"):
        printing = {arguments[one.begin] for one in invocation.globals} & {"--help", "--version", "-h", "-v"}
        assert starts_nothing and (printing or not doubt), f"front passes {arguments}, and reassert would not"
    if doubt or (not starts_nothing and invocation.verb not in EDITING_VERBS):
        return
    subprocess.run(["find", str(WORK), "-mindepth", "1", "-delete"], check=True)
    for name in ("r0", "r1", "b0", "b1", "cwd/b0", "cwd/b1", "cwd/r0", "cwd/r1"):
        (WORK / name).mkdir(parents=True)
    cwd = WORK / "cwd"
    bundle = cwd / (invocation.value("bundle") or "")
    given = invocation.value("config")
    broken = []
    if starts_nothing:
        if VERBS.get(invocation.verb) != "":
            broken = [*(cwd / name / "config.json" for name in (".", "b0", "b1"))]
    elif invocation.verb in ("exec", "update"):
        root = invocation.global_value("root")
        if not root or not invocation.container_id or "/" in invocation.container_id:
            return
        state = cwd / root / invocation.container_id
        state.mkdir(parents=True, exist_ok=True)
        broken = [state / "state.json", state / "status"]
    else:
        broken = [cwd / given if given and given != "config.json" else bundle / "config.json"]
    if not starts_nothing and not (broken[0].parent.is_dir() and bundle.is_dir()):
        return  # a bundle that none of the words makes
    for file in broken:
        if file.parent.is_dir() and not file.is_dir():
            file.write_text("{")
    of_state = not starts_nothing and invocation.verb in ("exec", "update")
    for runtime in ("runc", "crun", "runsc"):
        if runtime == "crun" and of_state and invocation.global_value("rootless") is not None:
            continue  # crun 1.8.1 takes the value of --rootless for that of --root
        if runtime == "crun" and any(arguments[one.begin][1:].startswith(one.name) for one in invocation.options):
            continue  # -bundle: a long option for Go's flags, and -b undle for getopt
        said = _said(runtime, tuple(arguments), cwd)
        if starts_nothing:
            assert not (broken and _BROKEN.search(said)), f"{runtime} reads a config.json: {arguments}: {said}"
        elif not (runtime == "runsc" and of_state):
            missing = _MISSING_STATE if of_state else _MISSING_CONFIG
            assert not missing.search(said), f"{runtime} does not read {broken[0]}: {arguments}: {said}"


_BROKEN = re.compile("failed: unexpected EOF|error loading config|cannot parse the data|error unmarshaling spec")
_MISSING_CONFIG = re.compile(
    "config.json not found|realpath .*failed|config.json`: No such|reading spec.*no such|chdir [^ ]*: no"
)
_MISSING_STATE = re.compile("container does not exist|status`: No such")


def _said(runtime: str, arguments: tuple[str, ...], cwd: Path) -> str:
    environment = {"PATH": os.environ["PATH"], "XDG_RUNTIME_DIR": str(WORK)}
    command = [runtime, *arguments]
    done = subprocess.run(command, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    return (done.stdout + done.stderr).decode("utf-8", "replace")


@cache
def _front() -> Any:
    """packaging/front/front.c as a library, with the words that the dispatcher gives it."""
    from hook.entry import dispatcher

    tree = Path(dispatcher.__file__).parents[2]
    source, library = Path(__file__).with_name("front.c"), WORK.parent / "front.so"
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-O1", f'-DFRONT="{tree}/packaging/front/front.c"', "-o", library, source],
        check=True,
    )
    loaded = ctypes.CDLL(str(library))
    words = {
        "decided": EDITING_VERBS,
        "passed": dispatcher._passed(False),
        "values": dispatcher.VALUES,
        "flags": dispatcher.FLAGS,
    }
    loaded.use(*(" ".join(words[name]).encode() for name in ("decided", "passed", "values", "flags")))
    return loaded


@cache
def _whole() -> dict[str, Any]:
    """The classes of NRI's messages with all fields typed, where reassert decodes some of them late."""
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message_factory import GetMessageClass

    text = (Path(ttrpc.__file__).with_name("nri.proto")).read_text("ascii")
    for message, field, kind in (
        ("Container", "mounts = 9", "Mount"),
        ("LinuxContainer", "devices = 2", "LinuxDevice"),
        ("LinuxResources", "devices = 7", "LinuxDeviceCgroup"),
    ):
        head, begin, body = text.partition(f"message {message} {{")
        text = head + begin + body.replace(f"bytes {field}", f"{kind} {field}", 1)
    file = protobuf.describe(text, "whole.proto")
    pool = DescriptorPool()
    pool.Add(file)
    return {
        one.name: GetMessageClass(pool.FindMessageTypeByName(f"{file.package}.{one.name}")) for one in file.message_type
    }


def _frames(data: bytes) -> tuple[list[tuple[int, int, int, bytes]], bool]:
    """The messages in the bytes of a connection, and whether they end in a violation. Read in one piece."""
    streams: dict[int, bytes] = {ttrpc.PLUGIN: b"", ttrpc.RUNTIME: b""}
    at, messages = 0, []
    while at + 8 <= len(data):
        stream, size = struct.unpack_from(">II", data, at)
        if size > ttrpc.INCOMING_LIMIT:
            return messages, True
        if stream in streams:
            streams[stream] += data[at + 8 : at + 8 + size]
        at += 8 + size
        rest = streams.get(stream, b"")
        while len(rest) >= 10:
            length, number, kind = struct.unpack_from(">IIB", rest)
            if length > ttrpc.SKIP_LIMIT or kind not in (1, 2):
                return messages, True
            if len(rest) < 10 + length:
                break
            messages.append((stream, number, kind, rest[10 : 10 + length]))
            rest = rest[10 + length :]
        if stream in streams:
            streams[stream] = rest
    return messages, False


def nri(data: bytes) -> None:
    """NRI: whatever the cuts, the frames hold the messages that a reading of all bytes at once finds. A container's
    env, mounts, devices, rules and annotations are those of protobuf's own reading; a NUL in them is refused."""
    expected, violates = _frames(data)
    for step in (len(data) or 1, 1 + zlib.crc32(data) % 97, 7):
        streams, found, violated = ttrpc.Streams(), [], False
        try:
            for at in range(0, len(data), step):
                found += streams.feed(data[at : at + step])
        except ttrpc.Violation:
            violated = True
        assert violated == violates, f"violation: {violated}, in chunks of {step}"
        got = [(stream, one.stream, one.kind, one.payload) for stream, one in found]
        assert got == expected or (violates and expected[: len(got)] == got), f"in chunks of {step}"
    whole = _whole()
    for stream, number, kind, payload in expected:
        if stream == ttrpc.PLUGIN:
            try:
                request = ttrpc.read_request(ttrpc.Message(number, kind, payload))
            except ttrpc.Violation:
                continue
            if request.method == "CreateContainer":
                _check_container(whole, request.payload)


def _check_container(whole: dict[str, Any], payload: bytes) -> None:
    from google.protobuf.message import DecodeError

    try:
        other = whole["CreateContainerRequest"].FromString(payload)
    except DecodeError:
        return
    # Go's protobuf writes fields in their order and each once: reassert relies on it (_destination).
    request = ttrpc.parse(ttrpc.get("CreateContainerRequest"), other.SerializeToString())
    container, linux = other.container, other.container.linux
    strings = [*container.env, *container.args, *container.annotations, *container.annotations.values()]
    strings += [text for m in container.mounts for text in (m.destination, m.type, m.source, *m.options)]
    try:
        ours = RequestedContainer(request.pod, request.container)
    except Unacceptable as error:
        assert "\0" in "".join(strings), error
        return
    assert "\0" not in "".join(strings), "a NUL"
    same(list(ours.env), list(container.env), "env")
    same(ours.annotations, dict(container.annotations), "annotations")
    mounts = [
        fields([{name.lower(): getattr(m, name.lower()) for name in _MOUNT}], _MOUNT, str.lower)[0]
        for m in container.mounts
    ]
    for mount in mounts:
        mount["options"] = list(mount["options"])
    same([mount.path for mount in ours.mounts], [clean(m["destination"]) for m in mounts], "paths")
    same(oci.objects(ours.mounts), mounts, "mounts")
    devices = [{n: getattr(d, n) for n in ("path", "type", "major", "minor")} for d in linux.devices]
    same(oci.objects(ours.devices), devices, "devices")
    rules = []
    for rule in linux.resources.devices:
        numbers = {n: getattr(rule, n).value for n in ("major", "minor") if rule.HasField(n)}
        rules.append({"allow": rule.allow, "type": rule.type or "a", "access": rule.access, **numbers})
    same(oci.objects(ours.device_rules), rules, "device rules")


def checkpoint(data: bytes) -> None:
    """kubelet's device checkpoint: of a file as kubelet writes it, with any answer of a device plugin and any names,
    reassert finds the entries that a whole reading has, and protobuf reads the same answers. A broken file is
    Undecided."""
    some = FuzzedDataProvider(data)
    if some.ConsumeBool():
        _raises_only(Undecided, lambda: allocations(some.ConsumeBytes(1 << 20), "u", None))
        return
    uids, entries = ["u", "u1", some.ConsumeUnicodeNoSurrogates(8)], []
    for _ in range(some.ConsumeIntInRange(0, 4)):
        answer = base64.b64encode(some.ConsumeBytes(some.ConsumeIntInRange(0, 200))).decode()
        names = [some.ConsumeUnicodeNoSurrogates(12) for _ in range(2)]
        entry = {"PodUID": some.PickValueInList(uids), "ContainerName": some.PickValueInList(["c", names[0]])}
        entries.append({**entry, "ResourceName": names[1], "DeviceIDs": {"-1": names}, "AllocResp": answer})
    document = {"Data": {"PodDeviceEntries": entries, "RegisteredDevices": {some.ConsumeUnicodeNoSurrogates(9): uids}}}
    text = json.dumps({**document, "Checksum": 1}, separators=(",", ":"), ensure_ascii=some.ConsumeBool()).encode()
    go = second.read("checkpoint", text)
    assert go is not None, "Go refuses it"
    for uid in uids:
        for container in ("c", None):
            expected = [
                entry
                for entry in go["Data"]["PodDeviceEntries"] or []
                if entry["PodUID"] == uid and container in (None, entry["ContainerName"])
            ]
            try:
                found = allocations(text, uid, container)
            except Undecided as error:
                assert "the device plugin's answer" in str(error) or "not UTF-8" in str(error), error
                assert any(_refused(base64.b64decode(one["AllocResp"] or "")) for one in expected), error
                continue
            assert len(found) == len(expected), f"{len(found)} entries, Go has {len(expected)}"
            for ours, other in zip(found, expected, strict=True):
                same([ours.resource, ours.device_ids], [other["ResourceName"], other["DeviceIDs"]["-1"]], "entry")
                _check_answer(ours, base64.b64decode(other["AllocResp"] or ""))


def _refused(answer: bytes) -> bool:
    """Whether protobuf refuses the answer, it has what no encoder writes (unknown fields), or a text has a NUL."""
    try:
        parsed = Answer.FromString(answer)
    except Exception:
        return True
    whole = parsed.SerializeToString(deterministic=True)
    parsed.DiscardUnknownFields()
    known = parsed.SerializeToString(deterministic=True)
    return b"\0" in answer or known != whole or len(known) != len(answer)


def _check_answer(ours: Allocation, answer: bytes) -> None:
    from google.protobuf.message import DecodeError

    try:
        other = Answer.FromString(answer)
    except DecodeError as error:  # of a field that is there twice, the first is not UTF-8: no encoder writes that
        assert "UTF-8" in str(error), error
        return
    same(ours.env, dict(other.envs), "env")
    same(ours.annotations, dict(other.annotations), "annotations")
    same(ours.mounts, [(m.host_path, m.container_path, m.read_only) for m in other.mounts], "mounts")
    same(ours.devices, [(d.host_path, d.container_path, d.permissions) for d in other.devices], "devices")
    same(ours.cdi, [device.name for device in other.cdi_devices], "cdi")


def claim_record(data: bytes) -> None:
    """kubelet's record of resource claims: of a file as kubelet writes it, with any names of claims and devices,
    reassert finds the pod's claims that Go finds. A broken file, or one with a wrong checksum, is Undecided."""
    some = FuzzedDataProvider(data)
    names = [some.ConsumeUnicodeNoSurrogates(10) for _ in range(4)]
    if some.ConsumeBool():
        inner = some.ConsumeUnicode(1 << 20).encode("utf-8", "replace").decode()
    else:
        entries = []
        for _ in range(some.ConsumeIntInRange(0, 3)):
            pick = lambda: some.PickValueInList([*names, "u"])  # noqa: E731  # it draws, so it is called often
            devices = [{"RequestNames": [pick()], "CDIDeviceIDs": [pick(), pick()]}, {"RequestNames": None}]
            driver = {pick(): {"Devices": devices[: some.ConsumeIntInRange(0, 2)] or None}}
            who = {pick(): {}, pick(): {}} if some.ConsumeBool() else None
            entries.append({"ClaimName": pick(), "Namespace": pick(), "PodUIDs": who, "DriverState": driver})
        inner = json.dumps(
            {"kind": CLAIMS_KIND, "apiVersion": CLAIMS_API, "ClaimInfoStateList": entries}, ensure_ascii=False
        )
    go = second.read("claims", inner.encode())
    wrong = some.ConsumeProbability() > 0.9
    text = json.dumps({"Data": inner, "Checksum": zlib.crc32(inner.encode()) + wrong}).encode()
    try:
        found = claims(text, "u", "state")
    except Undecided as error:
        expected = go is None or wrong or (go["Kind"], go["apiVersion"]) != (CLAIMS_KIND, CLAIMS_API)
        assert expected or "is not what kubelet writes" in str(error), error
        return
    assert not wrong, "a wrong checksum is accepted"
    if go is None or len(_names_of(inner)) != len({name.casefold() for name in _names_of(inner)}):
        return
    expected = [claim for claim in go["ClaimInfoStateList"] or [] if "u" in (claim["PodUIDs"] or {})]
    for ours, other in zip(found, expected, strict=True):
        devices = [device for driver in (other["DriverState"] or {}).values() for device in driver["Devices"] or []]
        same([ours.namespace, ours.name], [other["Namespace"], other["ClaimName"]], "claim")
        same(sorted(ours.cdi), sorted(name for device in devices for name in device["CDIDeviceIDs"] or []), "CDI")
        same(ours.requests, len({str(device["RequestNames"] or []) for device in devices}), "requests")


def _names_of(text: str) -> list[str]:
    """The names of the outermost members."""
    return [name for name, _ in json.loads(text, object_pairs_hook=list)]


def state(data: bytes) -> None:
    """The OCI state of a hook, and runc's, youki's and crun's records: Python's json has the same bundle, pid and id.
    What is broken is Undecided."""
    try:
        other = json.loads(data.decode(), parse_constant=second._refuse)
    except (ValueError, RecursionError):
        other = None
    other = other if isinstance(other, dict) else {}
    try:
        ours = State(data)
        same(
            [ours.bundle, ours.pid, ours.container_id],
            [other["bundle"], other.get("pid", 0), str(other.get("id", ""))],
            "state",
        )
        assert ours.bundle.startswith("/"), "a relative bundle"
    except (Undecided, TooLarge):
        assert not str(other.get("bundle", "")).startswith("/") or not isinstance(other.get("pid", 0), int)
    (WORK / "state.json").write_bytes(data)
    config_of = other.get("config")
    labels = config_of.get("labels") if isinstance(config_of, dict) else None
    found = (
        [one[7:] for one in labels or [] if isinstance(one, str) and one.startswith("bundle=")]
        if isinstance(labels, list)
        else []
    )
    expected = found or [bundle if isinstance(bundle := other.get("bundle"), str) else ""]
    try:
        same(runtime_records.bundle_from(str(WORK), runtime_records.STATE_JSON), expected[0], "state.json")
        assert len(set(expected)) == 1, "two bundles"
    except (Undecided, TooLarge):
        assert not other or len(set(expected)) > 1


def mountinfo(data: bytes) -> None:
    """mountinfo: a table of mounts, written as proc(5) says and escaped as the kernel does, is read as it was."""
    some = FuzzedDataProvider(data)
    rows: dict[int, Any] = {}
    lines = []
    for number in range(1, some.ConsumeIntInRange(1, 12)):
        root, point, source = (
            b"/" + some.ConsumeBytes(some.ConsumeIntInRange(0, 30)).replace(b"\0", b"") for _ in range(3)
        )
        tags = [tag for tag in (b"shared:7", b"master:3", b"propagate_from:2", b"unbindable") if some.ConsumeBool()]
        kind = some.PickValueInList([b"ext4", b"fuse.-", b"overlay", b"-", b"nfs4"])
        options = some.PickValueInList([b"rw", b"ro,relatime", b"rw,nosuid,nodev"])
        pad = b"x" * (some.ConsumeIntInRange(0, 70_000) if some.ConsumeProbability() > 0.95 else 0)
        parts = [
            b"%d" % number,
            b"%d" % some.ConsumeIntInRange(0, 99),
            b"0:5",
            _escaped(root),
            _escaped(point),
            options,
        ]
        lines.append(
            b" ".join([*parts, *tags, b"-", _escaped(kind), _escaped(source), b"rw,lowerdir=" + pad + b" - /a:/b"])
        )
        rows[number] = [
            int(parts[1]),
            "0:5",
            root,
            point,
            options.split(b","),
            b"shared:7" in tags,
            b"unbindable" in tags,
            kind,
        ]
    fd = os.memfd_create("mountinfo")
    try:
        os.write(fd, b"".join(line + b"\n" for line in lines))
        os.lseek(fd, 0, os.SEEK_SET)
        table = mount_table_at(fd)
    finally:
        os.close(fd)
    assert table.keys() == rows.keys(), "other mounts"
    for number, row in table.items():
        paths = [_bytes(row.root), _bytes(row.point)]
        ours = [
            row.parent,
            row.device,
            *paths,
            [_bytes(one) for one in row.options],
            row.shared,
            row.unbindable,
            _bytes(row.filesystem),
        ]
        assert ours == rows[number], f"{ours} is not {rows[number]}"


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _escaped(text: bytes) -> bytes:
    """As mangle() of the kernel (fs/proc_namespace.c)."""
    return re.sub(rb"[ \t\n\\#]", lambda found: b"\\%03o" % found[0][0], text)


def certificate(data: bytes) -> None:
    """Certificates: each that reassert takes is one for OpenSSL too, with the same name in a hashed directory, and a
    CA for it. From PEM both take the same ones, in the same order, up to the first that OpenSSL
    refuses. What is broken is a TrustError."""
    try:
        ours = certificates(data, "ca.pem", True, 50)
    except TrustError:
        return
    libcrypto = _libcrypto()
    for one in ours:
        content = ctypes.c_char_p(one.content)
        at = ctypes.c_void_p(ctypes.cast(content, ctypes.c_void_p).value)
        parsed = libcrypto.d2i_X509(None, ctypes.byref(at), len(one.content))
        assert parsed, "OpenSSL refuses it"
        try:
            assert at.value == ctypes.cast(content, ctypes.c_void_p).value + len(one.content), "bytes after it"
            assert f"{libcrypto.X509_subject_name_hash(parsed):08x}" == one.hash, "hash"
            if not one.not_a_ca():
                assert libcrypto.X509_check_ca(parsed), "no CA for OpenSSL"
        finally:
            libcrypto.X509_free(parsed)
    if b"-----BEGIN " in data and b"PKCS7" not in data and b"\0" not in data:
        found = _of_pem(libcrypto, data)  # up to the first that OpenSSL refuses, such as one with a space in its base64
        assert [one.content for one in ours][: len(found)] == found, "OpenSSL reads others from the PEM file"


def _of_pem(libcrypto: Any, data: bytes) -> list[bytes]:
    bio = libcrypto.BIO_new_mem_buf(data, len(data))
    found = []
    while parsed := libcrypto.PEM_read_bio_X509(bio, None, None, None):
        out = ctypes.c_void_p(None)
        size = libcrypto.i2d_X509(parsed, ctypes.byref(out))
        found.append(ctypes.string_at(out, size))
        libcrypto.X509_free(parsed)
    libcrypto.ERR_clear_error()
    libcrypto.BIO_free(bio)
    return found


@cache
def _libcrypto() -> Any:
    library = ctypes.CDLL("libcrypto.so.3")
    for name in ("d2i_X509", "PEM_read_bio_X509", "BIO_new_mem_buf"):
        getattr(library, name).restype = ctypes.c_void_p
    library.X509_subject_name_hash.restype = ctypes.c_ulong
    pointer = ctypes.c_void_p
    library.d2i_X509.argtypes = [pointer, pointer, ctypes.c_long]
    library.BIO_new_mem_buf.argtypes = [ctypes.c_char_p, ctypes.c_int]
    library.PEM_read_bio_X509.argtypes = [pointer] * 4
    library.i2d_X509.argtypes = [pointer, pointer]
    for name in ("X509_free", "X509_subject_name_hash", "X509_check_ca", "BIO_free"):
        getattr(library, name).argtypes = [pointer]
    return library


def _raises_only(kind: type[ReassertError], function: Callable[[], object]) -> None:
    try:
        function()
    except kind:
        pass


TARGETS: dict[str, Callable[[bytes], None]] = {
    "config": config,
    "process": process,
    "cmdline": cmdline,
    "nri": nri,
    "checkpoint": checkpoint,
    "claims": claim_record,
    "state": state,
    "mountinfo": mountinfo,
    "certificate": certificate,
}
"""The targets that atheris drives. `front` is front.c."""
