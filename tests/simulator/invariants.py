"""What must hold in the simulated node, by policy.md and internals/agent.md, and the policies and containers to try.

`Rules.wants` is the oracle. It is written from the documentation and shares nothing with hook/.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from collections.abc import Callable
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

from world import Socket, Violation, World

if TYPE_CHECKING:
    from world import Inode, Process, SystemCalls

POLICY = "/etc/reassert/policy.yaml"
EVENTS, LOST = "/var/log/reassert/events.jsonl", "/run/reassert/lost-events"
COMPILED = "/var/lib/reassert/etc-reassert-policy.yaml.10.json"
LOG_LIMIT = 1 << 20
VALUE, ABSENT, GPU = "COMPANY_VALUE", "FORBIDDEN", "NVIDIA_VISIBLE_DEVICES"
MOUNT, SOURCE, SCRATCH = "/etc/ssl", "/etc/company", "/scratch"

PAUSE = 2_500_000_000
"""The longest time that a thread of the agent stands still, in nanoseconds."""

_LINE = 64 << 10
"""The most bytes of a line of the event log."""

Pairs = list[str]


class Rules:
    """A random policy: its text, and what it wants of a container. Each has a value of its own, so an old one shows."""

    def __init__(self, number: int, chance: Random) -> None:
        self.number = number
        self.value = f"policy-{number}"
        self.is_audit = chance.random() < 0.2
        self.ignores = chance.random() < 0.2
        self.denies = chance.random() < 0.25
        self.only_team = chance.random() < 0.3
        self.absent, self.gpu = chance.random() < 0.5, chance.random() < 0.6
        self.mount, self.scratch = chance.random() < 0.5, chance.random() < 0.15
        env: list[dict[str, Any]] = [{"name": VALUE, "value": self.value}]
        if self.absent:
            env.append({"name": ABSENT, "absent": True})
        if self.gpu:
            env.append({"name": GPU, "valueFrom": {"deviceAllocation": {"default": "void"}}})
        mounts: list[dict[str, Any]] = [{"hostPath": SOURCE, "mountPath": MOUNT}] if self.mount else []
        if self.scratch:
            mounts.append({"emptyDir": {"medium": "Memory"}, "mountPath": SCRATCH})
        rule: dict[str, Any] = {"name": "one", "env": env, "onConflict": "Deny" if self.denies else "Override"}
        if mounts:
            rule["mounts"] = mounts
        if self.only_team or self.scratch:
            rule["match"] = {"namespaces": ["team-*"]}
        spec = {
            "mode": "Audit" if self.is_audit else "Enforce",
            "failurePolicy": "Ignore" if self.ignores else "Fail",
            "exclude": {"namespaces": ["kube-system"]},
            "eventLog": {"maxSizeMiB": LOG_LIMIT >> 20, "keep": 2},
            "rules": [rule],
        }
        notes = "# a note that takes a second write(2) where it is long\n" * int(chance.random() ** 4 * 200)
        self.text = f"apiVersion: reassert/v1\nkind: NodePolicy\nspec: {json.dumps(spec)}\n{notes}"

    def applies(self, start: Start) -> bool:
        """Whether the rule is for the container's namespace."""
        if start.namespace == "kube-system":
            return False
        return start.namespace.startswith("team-") or not (self.only_team or self.scratch)

    def wants(self, start: Start) -> dict[str, str | None]:
        """The values that the reserved names must have; None: the name must be absent."""
        wanted: dict[str, str | None] = {VALUE: self.value}
        if self.absent:
            wanted[ABSENT] = None
        if self.gpu:
            wanted[GPU] = start.allocation or "void"
        return wanted

    def is_as_wanted(self, start: Start, env: Pairs) -> bool:
        """Whether env has exactly one entry of each reserved name with its value, or none where it must be absent."""
        for name, value in self.wants(start).items():
            if _of(name, env) != ([] if value is None else [f"{name}={value}"]):
                return False
        return True

    def refuses(self, start: Start) -> bool:
        """Whether `onConflict: Deny` refuses the container: it asked for something else than what is reserved."""
        if not (self.denies and self.applies(start)):
            return False
        wanted = self.wants(start)
        other = any(
            name in wanted and value != wanted[name] for name, _, value in (entry.partition("=") for entry in start.env)
        )
        return other or (self.mount and any(mount["destination"] == MOUNT for mount in start.mounts))


class Start:
    """One container: what the engine asked for, what was done to it, and what it started with."""

    def __init__(self, number: int, is_crio: bool, chance: Random) -> None:
        self.number, self.is_crio = number, is_crio
        self.id, self.uid = f"{number:064x}", f"uid-{number}"
        self.namespace = chance.choice(("team-a", "team-b", "other", "kube-system"))
        self.bundle = f"/run/{'crio' if is_crio else 'containerd'}/{self.id}"
        self.allocation = f"GPU-{number}" if chance.random() < 0.4 else ""
        self.beside = chance.choice(("", "", "init", "sidecar"))
        """Another container of the pod with a device of its own: its entry comes before this one's, or after it."""
        self.env = ["PATH=/bin"]
        if self.allocation:
            self.env.append(f"{GPU}={self.allocation}")
        for name, value in ((VALUE, "mine"), (ABSENT, "1"), (GPU, "all")):
            if chance.random() < 0.3:
                self.env.append(f"{name}={value}")
        self.mounts = [{"destination": "/proc", "type": "proc", "source": "proc"}]
        volume = f"/var/lib/kubelet/pods/{self.uid}/volumes/kubernetes.io~empty-dir/v"
        if chance.random() < 0.15:
            self.mounts.append({"destination": MOUNT, "type": "bind", "source": volume, "options": ["rbind"]})
        self.is_odd = chance.random() < 0.04
        self.has_link = chance.random() < 0.3
        self.status: int | None = None
        self.phase = "create"
        self.config = self.seen = b""
        self.directory: Inode | None = None
        """The bundle, when the engine has written its config.json."""
        self.table: dict[str, list[str]] = {}
        self.table_at_start: dict[str, list[str]] = {}
        self.env_at_start: Pairs = []
        self.faults: set[str] = set()
        self.stalled = 0
        self.began = self.odd_events = self.lost = 0
        self.admissible: list[Rules] = []
        self.stored: Rules | None = None
        self.unlogged: list[Rules] = []
        """The policies by which it may have started, if its event is still to come."""

    def spec(self) -> dict[str, Any]:
        """The config.json that the engine writes."""
        if self.is_crio:
            cgroup = f"kubepods-x.slice:crio:{self.id}"
            annotations = {
                "io.kubernetes.cri-o.ContainerType": "container",
                "io.kubernetes.pod.namespace": self.namespace,
                "io.kubernetes.pod.name": f"pod-{self.number}",
                "io.kubernetes.pod.uid": self.uid,
                "io.kubernetes.container.name": "app",
            }
        else:
            cgroup = f"kubepods-x.slice:cri-containerd:{self.id}"
            cri = "io.kubernetes.cri."
            annotations = {
                f"{cri}container-type": "container",
                f"{cri}container-name": "app",
                f"{cri}sandbox-namespace": self.namespace,
                f"{cri}sandbox-name": f"pod-{self.number}",
                f"{cri}sandbox-uid": self.uid,
            }
        return {
            "ociVersion": "1.0.2",
            "process": {"env": self.env, "args": ["sh"], "cwd": "/", "capabilities": {"bounding": ["CAP_KILL"]}},
            "root": {"path": "rootfs"},
            "mounts": self.mounts,
            "annotations": annotations,
            "linux": {"cgroupsPath": cgroup, "namespaces": [{"type": "pid"}, {"type": "mount"}]},
        }

    def allocated(self) -> str:
        """The pod's entries of kubelet's checkpoint."""
        own = [("app", self.allocation)] if self.allocation else []
        other = [(self.beside, f"GPU-{self.number}-{self.beside}")] if self.beside else []
        return ",".join(self._entry(*each) for each in (other + own if self.beside == "init" else own + other))

    def _entry(self, container: str, device: str) -> str:
        """One entry: the plugin's answer sets GPU (v1beta1 ContainerAllocateResponse)."""
        pair = b"".join(bytes([tag, len(text)]) + text.encode() for tag, text in ((10, GPU), (18, device)))
        answer = base64.b64encode(bytes([10, len(pair)]) + pair).decode()
        entry = {
            "PodUID": self.uid,
            "ContainerName": container,
            "ResourceName": "nvidia.com/gpu",
            "DeviceIDs": {"-1": [device]},
            "AllocResp": answer,
        }
        return json.dumps(entry, separators=(",", ":"))


def _of(name: str, env: Pairs) -> Pairs:
    """The entries of a name."""
    return [entry for entry in env if entry.partition("=")[0] == name]


class Watch:
    """Looks at what happens, and raises Violation."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.engines = 0
        self.current: Rules = None  # type: ignore[assignment]  # until the first policy is there
        self._next: Rules = None  # type: ignore[assignment]  # until the first draft is there
        self._is_broken = False
        self._underway: list[Start] = []
        self._events: dict[str, list[dict[str, Any]]] = {}
        self._drafts: dict[str, Rules] = {}
        self._stale: list[Rules] = []
        self._last_fault = -1
        self._edited_at = 0
        self.started_count = self.refused_count = self.failed_count = self.warm = self.cold = 0
        self.torn = 0
        self._compiled = b""
        self.agent: Process | None = None

    # What the administrator does.

    def _stored(self) -> Rules | None:
        """The policy whose compiled form is in the store."""
        node = self._world.find(COMPILED)[2]
        found = re.search(rb'"sha256":"([0-9a-f]+)"', node.data) if node else None
        return self._drafts.get(found[1].decode()) if found else None

    def is_compiled(self) -> bool:
        """Whether the store has the policy of the last edit, so that it stays in force after an edit with an error, and
        the file that is there was looked at: only then can an interrupted copy over it be known for one."""
        store, policy = self._world.find(COMPILED)[2], self._world.node(POLICY)
        inodes = re.findall(rb'"(?:key|heldKey)":\[(\d+),', store.data) if store else []
        return self._stored() is self.current and b"%d" % policy.ino in inodes

    def draft(self, rules: Rules) -> None:
        """The policy that is about to be written."""
        self._next, self._is_broken = rules, False
        self._drafts[hashlib.sha256(rules.text.encode()).hexdigest()] = rules

    def broken(self) -> None:
        """It has an error, or its writer will die."""
        self._is_broken = True

    def about_to_edit(self) -> None:
        """From now on the new policy may be in force."""
        if not self._is_broken:
            for start in self._underway:
                start.admissible.append(self._next)
            self._coming = self._next

    _coming: Rules | None = None

    def edited(self) -> None:
        """From now on the new policy is in force; one with an error never is."""
        if not self._is_broken:
            if self.current is not None:
                self._stale.append(self.current)
            self.current, self._coming = self._next, None
            self._edited_at = self._world.steps
            if self._last_fault < 0:
                self._stale.clear()

    # What happens.

    def fault(self, kind: str) -> None:
        """Something failed from outside: every container that is being started may be refused, or lose its event."""
        for start in self._underway:
            start.faults.add(kind)
        self._last_fault = self._world.steps

    def short_write(self) -> None:
        """A process wrote a part of its bytes, perhaps to the log, and may be killed before it takes them back."""
        self.torn += 1

    def new_log(self) -> Callable[[bytes], None]:
        """A new file of the event log: what is told of its bytes."""
        return partial(self._log, bytearray())

    def closed(self, data: bytearray) -> None:
        """A process that lives, and was the last to write to a file of the log, has closed it."""
        if data and not data.endswith(b"\n"):
            raise self._wrong(None, f"half a line stays in the event log: {data[-100:]!r}")

    def _log(self, rest: bytearray, data: bytes) -> None:
        """Bytes that were appended to the event log; after a NUL, how many were taken back. `rest`: half a line."""
        world = self._world
        world.trace = hash((world.trace, zlib.crc32(data)))
        if data[:1] == b"\0":
            taken = int.from_bytes(data[1:], "little")
            del rest[max(0, len(rest) - taken) :]  # README.md: also a line that another process has just appended
            return
        rest += data
        *lines, after = rest.split(b"\n")
        rest[:] = after
        for line in lines:
            try:
                event = json.loads(line)
            except ValueError:
                self.torn -= 1  # another process appended to half a line: the disk was full
                if self.torn >= 0:
                    continue
                raise self._wrong(None, f"a line of the event log is no JSON: {line[:200]!r}") from None
            if "id" in event:
                self._events.setdefault(event["id"], []).append(event)
                kind = event.get("start")
                self.warm += kind == "warm"
                self.cold += kind == "cold"

    def changed(self) -> None:
        """After each step that changed a file: no container start ever finds half a config.json or half a store."""
        rotated = self._world.find(f"{EVENTS}.1")[2]
        if rotated is not None and len(rotated.data) < LOG_LIMIT - _LINE:
            raise self._wrong(None, f"the event log was rotated with {len(rotated.data)} bytes")
        store = self._world.find(COMPILED)[2]
        if store is not None and store.data != self._compiled:
            self._compiled = bytes(store.data)
            rules = re.search(rb'"rules":(\d+)', self._compiled)
            if not rules or not self._compiled.endswith(b"\n") or int(rules[1]) != self._compiled.count(b"\n") - 1:
                raise self._wrong(None, f"the store is not whole: {self._compiled!r}")
            if self._stored() is None and b'"sha256":""' not in self._compiled:
                raise self._wrong(None, f"the store has a policy that the file never was: {self._compiled!r}")
        for start in self._underway:
            config = start.directory and start.directory.entries.get("config.json")
            if start.directory is None or (config and config.data == start.seen):
                continue
            start.seen = bytes(config.data) if config else b""
            if start.config and start.seen != start.config:
                raise self._wrong(start, "config.json was changed after the runtime had read it")
            try:
                json.loads(start.seen)
            except ValueError:
                raise self._wrong(start, f"config.json is not whole: {start.seen!r}") from None

    def mounted(self, start: Start, path: str, source: str) -> None:
        """A hook mounted something in a container."""
        start.table.setdefault(path, []).append(source)
        if self._world.current.process.is_agent:
            raise self._wrong(
                start, f"a late mount is possible: the agent mounted {path} (docs/internals/agent.md: it never mounts)"
            )
        if start.phase != "hooks":
            raise self._wrong(start, f"a late mount: {path} was mounted when the container's hooks had ended")

    def begins(self, start: Start) -> None:
        """The engine is about to start a container."""
        start.began = self._world.steps
        start.stored, start.lost = self._stored(), self._lost()
        start.odd_events = len(self._events.get("create", ()))
        start.admissible = [self.current, *([self._coming] if self._coming else [])]
        self._underway.append(start)
        world = self._world
        start.faults |= {kind for kind, there in (("full", world.full), ("descriptors", world.no_descriptor)) if there}

    def leaves(self, start: Start) -> None:
        """The container is gone."""
        self._underway.remove(start)
        self._events.pop(start.id, None)

    def started(self, start: Start) -> None:
        """The runtime starts the container's process."""
        for path, sources in start.table.items():
            if sources.count(SOURCE) > 1:
                raise self._wrong(start, f"{path} is mounted {len(sources)} times: {sources}")

    def ends(self, start: Start) -> None:
        """The runtime, or what stood in its place, has ended: the container runs, or was refused."""
        if start.status is None:
            raise self._wrong(start, "it hangs: no end within two minutes")
        if start.stalled > 8_000_000_000:
            start.faults.add("stalled")
        policies = [*start.admissible, *self._older(start)]
        events = self._events_of(start)
        if start.phase == "started":
            self.started_count += 1
            self._was_started(start, policies, events)
        else:
            self.refused_count += 1
            self._was_refused(start, policies, events)

    def _events_of(self, start: Start) -> list[dict[str, Any]]:
        events = self._events.get(start.id, [])
        if start.is_odd:  # reassert cannot know the id, and takes the next word for it
            return events + self._events.get("create", [])[start.odd_events :]
        return events

    def _older(self, start: Start) -> list[Rules]:
        """Policies that may still be in force, because a compile failed or was killed since the last edit."""
        if not start.faults and self._last_fault < self._edited_at:
            return []
        return [*self._stale[-6:], *[rules for rules in (start.stored, self._stored()) if rules]]

    def _was_started(self, start: Start, policies: list[Rules], events: list[dict[str, Any]]) -> None:
        excluded = start.namespace == "kube-system"
        if excluded:
            if start.env_at_start != start.env:
                raise self._wrong(start, "a container of an excluded namespace was changed")
            return
        if any(self._may_start(start, rules, policies, self._is_logged(start)) for rules in policies):
            return
        if any(self._may_start(start, rules, policies, is_logged=True) for rules in policies):
            start.unlogged = policies  # docs/internals/agent.md: the event of a late agent may follow the start
            return
        raise self._wrong_start(start, policies, events)

    def _wrong_start(self, start: Start, policies: list[Rules], events: list[dict[str, Any]]) -> Violation:
        return self._wrong(
            start,
            f"started with {start.env_at_start}, mounts {start.table_at_start}; events {events}; the policies in "
            f"force: {[rules.text for rules in policies]}",
        )

    def _is_logged(self, start: Start) -> bool:
        """Whether it has an event, or lost it as the documents allow: for a full disk, which is counted, or too few
        descriptors, because the agent ended (internals/agent.md, "What happens if the agent dies"), or because its own
        process was killed."""
        is_counted = "full" in start.faults and self._lost() > start.lost
        return bool(self._events_of(start)) or is_counted or bool(start.faults & {"descriptors", "agent", "kill"})

    def _lost(self) -> int:
        """How many lines the event log did not take (docs/events.md, "A log that cannot be written")."""
        node = self._world.find(LOST)[2]
        return len(node.data) if node else 0

    def _await_event(self, start: Start) -> None:
        """A thread of the agent may stand still more than once before it writes; a lost event never comes."""
        policies, until = start.unlogged, self._world.now + 3 * PAUSE
        while not any(self._may_start(start, rules, policies, self._is_logged(start)) for rules in policies):
            if self._world.now > until:
                raise self._wrong_start(start, policies, self._events_of(start))
            self._world.sleep(PAUSE)

    def _may_start(self, start: Start, rules: Rules, policies: list[Rules], is_logged: bool) -> bool:
        """Whether a container may start as it did under a policy. `is_logged`: it has an event, or needs none."""
        if not rules.applies(start):
            return start.env_at_start == start.env and not (start.is_odd and not rules.is_audit)
        if rules.is_audit:
            needs_event = start.is_odd or rules.refuses(start) or not rules.is_as_wanted(start, start.env)
            return start.env_at_start == start.env and (is_logged or not needs_event)
        if start.env_at_start == start.env and not rules.is_as_wanted(start, start.env):
            return rules.ignores and bool(start.faults) and is_logged  # the node failed, and the policy says: start
        if rules.refuses(start) or start.is_odd or not rules.is_as_wanted(start, start.env_at_start):
            return False
        was_changed = is_logged and any(other.is_audit or not other.mount for other in policies)  # before the look
        if rules.mount and start.table_at_start.get(MOUNT) != [SOURCE] and not was_changed:
            return False
        if rules.scratch and SCRATCH not in start.table_at_start:
            return False
        return is_logged or (rules.is_as_wanted(start, start.env) and not rules.mount)

    def _was_refused(self, start: Start, policies: list[Rules], events: list[dict[str, Any]]) -> None:
        if start.faults - {"agent"}:
            self.failed_count += 1
            return
        if start.is_odd or len({rules.number for rules in policies}) > 1:
            may = True  # the policy was changed between the create and the hook
        else:
            may = any(rules.refuses(start) and not rules.is_audit for rules in policies)
        if not may:
            raise self._wrong(
                start, f"was refused with status {start.status}; events {events}; in force: {policies[0].text}"
            )
        if not [event for event in events if event["event"] in ("container.denied", "container.error")]:
            raise self._wrong(start, f"was refused without an event; events {events}")

    def after(self, start: Start, calls: SystemCalls) -> None:
        """Some time later: nothing has changed, nothing is left, and a late event has come."""
        if start.unlogged:
            self._await_event(start)
        self._check_events(start)
        self._await_close(start)
        names = set(self._world.node(start.bundle).entries) - {"config.json", "log.json", "pid"}
        if names and not start.faults & {"kill"}:
            raise self._wrong(start, f"left behind in the bundle: {sorted(names)}")
        if start.phase == "started" and start.table != start.table_at_start:
            raise self._wrong(start, f"the mounts were changed after the start: {start.table}")

    def _check_events(self, start: Start) -> None:
        """What the events say is so: whose they are, by which policy, and what each edit did; and they say all.

        Not where the policy was changed meanwhile: the draft of a late agent's event is then
        replaced (internals/agent.md).
        """
        if start.is_odd:
            return
        until = self._world.now + 3 * PAUSE
        is_whole = start.phase == "started" and len(start.admissible) == 1
        while is_whole and not start.faults and (untold := self._changed(start) - self._told(start)):
            if self._world.now > until:
                raise self._wrong(start, f"no event says that it was changed: {sorted(untold)}")
            self._world.sleep(PAUSE // 10)
        for event in self._events.get(start.id, ()):
            whose, policy = event["container"], event["policy"]
            if whose and (whose["uid"], whose["namespace"]) != (start.uid, start.namespace):
                raise self._wrong(start, f"its event is about another container: {event}")
            if policy.get("sha256") and policy["sha256"] not in self._drafts:
                raise self._wrong(start, f"its event names a policy that there never was: {event}")
            others = [edit for other in self._events[start.id] if other is not event for edit in other.get("edits", ())]
            if start.phase != "started" or start.faults:
                continue
            for edit in event.get("edits", ()):
                # A cold start by another policy may have replaced what a late agent has decided and told.
                is_last = not [
                    other for other in others if (other["kind"], other["name"]) == (edit["kind"], edit["name"])
                ]
                if is_last and edit["applied"] != self._is_so(start, edit, event["verified"]):
                    raise self._wrong(start, f"started with {start.env_at_start}, which is not what it says: {event}")

    @staticmethod
    def _changed(start: Start) -> set[tuple[str, str]]:
        """What a container that was started did not ask for so."""
        names = {name for name in (VALUE, ABSENT, GPU) if _of(name, start.env) != _of(name, start.env_at_start)}
        mounts = {
            path
            for path in (MOUNT, SCRATCH)
            if start.table_at_start.get(path) and path not in [mount["destination"] for mount in start.mounts]
        }
        return {("env", name) for name in names} | {("mount", path) for path in mounts}

    def _told(self, start: Start) -> set[tuple[str, str]]:
        edits = [edit for event in self._events.get(start.id, ()) for edit in event.get("edits", ())]
        return {(edit["kind"], edit["name"]) for edit in edits}

    @staticmethod
    def _is_so(start: Start, edit: dict[str, Any], verified: str) -> bool:
        """Whether a container that was started has what an edit says; for a mount, where it was verified."""
        if edit["kind"] == "env":
            entries = [] if edit["after"] is None else [f"{edit['name']}={edit['after']}"]
            return _of(edit["name"], start.env_at_start) == entries
        path = "/astray" if verified == "config.json" and start.has_link and edit["name"] == MOUNT else edit["name"]
        there = start.table_at_start.get(path, [])
        return bool(there) and edit["after"].get("source", there[-1]) == there[-1]

    def _await_close(self, start: Start) -> None:
        """The agent gives back what it has of a container: its files, and the connections of its processes."""
        until = self._world.now + 3 * PAUSE
        while held := self._held(start):
            if self._world.now > until:
                raise self._wrong(start, f"the agent keeps open: {held}")
            self._world.sleep(PAUSE // 10)

    def _held(self, start: Start) -> list[str]:
        if self.agent is None or self.agent.status is not None:
            return []
        return [
            each.path or "a connection"
            for each in self.agent.files.values()
            if each.path.startswith((start.bundle, f"/memfd:{start.id}"))
            or (isinstance(each.target, Socket) and each.target.peer and each.target.peer.owner.case is start)
        ]

    def _wrong(self, start: Start | None, text: str) -> Violation:
        about = (
            f"container {start.number} in {start.namespace} (faults {sorted(start.faults)}, odd {start.is_odd}): "
            if start
            else ""
        )
        error = Violation(about + text)
        self._world.fail(error)
        return error
