"""Whether a start broke a promise."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from reality.bundle import fifo_in_image
from reality.look import View, host
from reality.node import SCRATCH, WatchedNode
from reality.reading import (
    Case,
    clean,
    features,
    forbidden_above,
    innocent,
    innocent_entry,
    is_innocent_update,
    is_left_alone,
    is_odd,
    is_odd_exec,
    keeps_all,
    may_be_gone,
    read,
    within,
)
from reality.start import BARE, Outcome, Start
from reality.watch import DEVICE


@dataclass(frozen=True)
class Violation:
    """A promise that was broken. `kind` is what it is counted by; `detail` says what was there."""

    kind: str
    detail: str


LATER = " after the sidecar"

MOST_CPU, MOST_PEAK = 1.0, 200 * 1024
"""Seconds of CPU and KiB of memory that a start may take beside those of the runtime alone."""

RESTRICTING = ("nosuid", "nodev", "noexec")
"""Options of a rule's mount that take something from the container, beside `ro`."""

EXECS = ("runtime", "both")
"""Adapters that promise something about the env of `exec`."""


class AuditedRules:
    """One case on one node."""

    def __init__(self, node: WatchedNode, case: Case, runtime: str) -> None:
        self.node = node
        self.case = case
        self.runtime = runtime
        self.reserved = read(case)
        self.innocent = innocent(case)
        self.keeps_all = keeps_all(case, self.reserved)
        self._bare: Outcome | None = None

    def through(self, adapter: str, name: str) -> tuple[str, list[Violation]]:
        """Start it through an adapter: what came of it, and the promises broken."""
        try:
            return self._through(adapter, name)
        finally:
            self.node.restore()

    def _through(self, adapter: str, name: str) -> tuple[str, list[Violation]]:
        compiled = self.node.use(self.case["policy"])
        if compiled.status:
            return "invalid policy", [Violation("policy refused", compiled.output)]
        start = Start(self.node, self.case, self.runtime, adapter, name)
        outcome = start.run(self._paths(), self._remounted())
        found = self._crashes(outcome) + self._errors(outcome)
        if outcome.ran:
            found.append(Violation("ran a file of the image", ", ".join(outcome.ran)))
        if outcome.leaked and self.reserved.mounts:
            found.append(Violation("mounted on the node", ", ".join(outcome.leaked)))
        changed = [one for one in self.node.changed() if one.endswith(DEVICE) or not self._is_writable(one)]
        changed = self._not_the_runtimes(changed + outcome.elsewhere, adapter, name)
        if changed:
            found.append(Violation("node changed", ", ".join(changed)))
        found += self._costs(outcome, adapter, name)
        if self.node.agents:
            found += self._unlike_cold(start, adapter, name)
        if outcome.started:
            assert outcome.view
            found += self._wrong(outcome.view, "")
            if outcome.later:
                found += self._wrong_mounts(outcome.later, LATER)
            if adapter in EXECS:
                found += self._wrong_execs(outcome, name)
                found += self._wrong_verbs(outcome, name)
            found += self._wrong_devices(outcome, adapter)
            found += self._ignored_denials()
            found += self._should_not_run(outcome, adapter)
            found += self._changed(outcome, adapter, name)
            claims = self._false_claims(outcome)
            if found and claims:  # one find, not two
                found = [Violation(one.kind, f"{one.detail}; the log says {claims[0].detail}") for one in found]
            return ("innocent started" if self.innocent else "started"), found or claims
        if not self._starts_alone(name):
            return "runtime refuses", found
        needless = self._needless_refusal(outcome)
        if needless and Start(self.node, self.case, self.runtime, adapter, name + "-again").run([]).started:
            needless = []  # a busy machine's accident
        found += needless
        if outcome.ours and any(event.get("applied") for event in outcome.events):
            found.append(
                Violation("claims what never started", f"applied: true in the log; refused: {outcome.output[-300:]}")
            )
        return ("innocent refused" if self.innocent else "refused"), found

    def _unlike_cold(self, start: Start, adapter: str, name: str) -> list[Violation]:
        """What a cold start says or writes otherwise."""
        if features(self.case, "flip", "caller") or fifo_in_image(self.case):  # timing decides, or who else called
            return []
        if adapter not in EXECS and features(self.case, "global"):  # the runtime alone has these: its `delete` may fail
            return []
        cold = Start(self.node, self.case, self.runtime, adapter, name, warm=False)
        cold.run([])
        self.node.changed()
        difference = start.record.difference(cold.record)
        return [Violation("warm is not cold", difference)] if difference else []

    def _is_writable(self, name: str) -> bool:
        """Whether a file of the node is in what the policy lends the container for writing."""
        name = name.rpartition(" (")[0]
        lent = [self.node.placed(one["hostPath"]) for one in self.reserved.mounts if one.get("readOnly") is False]
        return any(within(str(self.node.files / name), os.path.realpath(source)) for source in lent)

    def _paths(self) -> list[str]:
        paths = []
        for mount in self.reserved.mounts:
            paths.append(mount["mountPath"])
            if "hostPath" in mount:
                paths += [f"{mount['mountPath'].rstrip('/')}/{name}" for name in self._names(mount)]
        return paths

    def _names(self, mount: dict[str, Any]) -> list[str]:
        """Relative names below a reserved directory that the container must see as the node does."""
        top = mount["mountPath"].rstrip("/")
        others = [
            one for one in self.reserved.mounts if one is not mount and within(clean(one["mountPath"]), clean(top))
        ]
        allowed = [clean(path) for path in mount.get("allowBelow", [])] + [clean(one["mountPath"]) for one in others]
        recursive = "bind" not in mount.get("options", [])
        names = below(self.node.placed(mount["hostPath"]), recursive)
        return [name for name in names if not any(within(f"{clean(top)}/{name}", path) for path in allowed)]

    def _starts_alone(self, name: str) -> bool:
        """Whether the real runtime starts it without us."""
        if self._bare is None:
            self._bare = Start(self.node, self.case, self.runtime, BARE, name + "-bare").run(self._paths())
        return self._bare.started

    def _remounted(self) -> list[str]:
        """The reserved mounts that stay read-only whatever CAP_SYS_ADMIN does; a privileged container's need not."""
        if not features(self.case, "sysadmin") or features(self.case, "privileged", "userns"):
            return []
        return [one["mountPath"] for one in self.reserved.mounts if "hostPath" in one and one.get("readOnly", True)]

    def _not_the_runtimes(self, changed: list[str], adapter: str, name: str) -> list[str]:
        """Of files that changed, those that the runtime alone, with another hook if the engine has one, does not."""
        if not changed:
            return []
        self.node.restore()  # what is there already is not made again
        has = adapter == "hook" or (adapter == "both" and is_left_alone(self.case, self.reserved))
        hook = {"path": "/bin/true", "args": ["true"], "env": ["PATH=/bin"]} if has else None
        alone = Start(self.node, self.case, self.runtime, BARE, name + "-alone").run([], hook=hook)
        theirs = alone.elsewhere + self.node.changed()
        return [one for one in changed if one not in theirs]

    def _costs(self, outcome: Outcome, adapter: str, name: str) -> list[Violation]:
        if outcome.cpu < MOST_CPU and outcome.peak < MOST_PEAK:
            return []
        # runc itself takes long to take a container away that a hook refuses; the wrapper adds one
        path = "/bin/true" if outcome.started else "/bin/false"
        has = adapter in ("hook", "both") or (not outcome.started and " hook" in outcome.output)
        hook = {"path": path, "args": [path], "env": ["PATH=/bin"]} if has else None
        alone = Start(self.node, self.case, self.runtime, BARE, name + "-alone").run([], hook=hook)
        cpu, peak = outcome.cpu - alone.cpu, outcome.peak - alone.peak
        found = [Violation("CPU", f"{outcome.cpu:.1f} s, the runtime alone {alone.cpu:.1f} s")] * (cpu > MOST_CPU)
        kib = f"{outcome.peak} KiB, the runtime alone {alone.peak} KiB"
        return found + [Violation("memory", kib)] * (peak > MOST_PEAK)

    def _crashes(self, outcome: Outcome) -> list[Violation]:
        texts = [outcome.output, str(outcome.events), *(one.output for one in outcome.execs)]
        for text in texts:
            for mark in ("Traceback (most recent", "internal error", "Segmentation fault"):
                if mark in text:
                    return [Violation("crash", text[-600:])]
        is_ours = (
            outcome.timed_out and not features(self.case, "many", "chain", "rules") and not fifo_in_image(self.case)
        )
        return [Violation("hangs", outcome.output[-300:])] if is_ours else []

    def _errors(self, outcome: Outcome) -> list[Violation]:
        """What `failurePolicy` would decide about, though the node has all that the policy names."""
        said = [event["errors"] for event in outcome.events if event.get("event") == "container.error"]
        return [Violation("error", str(said[0])[:600])] if said and not self.reserved.undecidable else []

    def _must(self) -> bool:
        """Whether what is reserved has to be there in a container that runs."""
        if not self.reserved.enforced:
            return False
        ignore = self.case["policy"]["spec"].get("failurePolicy") == "Ignore"
        return not (ignore and self.reserved.undecidable)

    def _wrong(self, view: View, when: str) -> list[Violation]:
        return self._wrong_env(view.env, "env") + self._wrong_choices(view.env) + self._wrong_mounts(view, when)

    def _wrong_choices(self, env: list[bytes]) -> list[Violation]:
        """Names with allowed values that have another one than asked for, or than what it gets in place of that."""
        if not self._must() or is_odd(self.case):
            return []
        asked = [feature["entry"] for feature in features(self.case, "env")]
        found = []
        for name in self.reserved.allowed:
            has = [entry.partition(b"=")[2].decode() for entry in env if entry.startswith(f"{name}=".encode())]
            wanted = self.reserved.chosen(name, asked)
            if has != [wanted] * (wanted is not None):
                found.append(Violation("env wrong", f"{name}: chosen {asked}, wanted {wanted!r}, has {has}"))
        return found

    def _wrong_env(self, env: list[bytes], what: str) -> list[Violation]:
        if not self._must():
            return []
        found = []
        for name, value in self.reserved.env.items():
            has = [entry for entry in env if entry.partition(b"=")[0] == name.encode()]
            if has != ([] if value is None else [f"{name}={value}".encode()]):
                found.append(Violation(f"{what} wrong", f"{name}: wanted {value!r}, has {has}"))
        for name in self.reserved.allowed:
            has = [entry for entry in env if entry.partition(b"=")[0] == name.encode()]
            values = [entry.decode(errors="replace").partition("=") for entry in has]
            if len(has) > 1 or not all(equals and self.reserved.may_choose(name, value) for _, equals, value in values):
                found.append(Violation(f"{what} wrong", f"{name}: wanted an allowed value, has {has}"))
        for entry in env:
            name = entry.partition(b"=")[0].decode(errors="replace")
            if name not in self.reserved.env and self.reserved.wanted(name)[0]:
                found.append(Violation(f"{what} wrong", f"{name}: must be absent, has {entry!r}"))
        return found

    def _wrong_mounts(self, view: View, when: str) -> list[Violation]:
        if not self._must():
            return []
        found = []
        for mount in self.reserved.mounts:
            if may_be_gone(self.case, mount, bool(when)):
                continue
            if "hostPath" in mount:
                found += self._wrong_mount(mount, view, when)
            else:
                found += self._mounted_though_absent(mount, view, when)
        return found

    def _wrong_mount(self, mount: dict[str, Any], view: View, when: str) -> list[Violation]:
        top, source = mount["mountPath"].rstrip("/"), Path(self.node.placed(mount["hostPath"]))
        checks = [(mount["mountPath"], source), *((f"{top}/{name}", source / name) for name in self._names(mount))]
        found = []
        for path, original in checks:
            true, seen = host(original), view.paths[path]
            if true.error:
                return [Violation("mount wrong" + when, f"{path}: the node has no {original}, and it runs")]
            if (seen.device, seen.inode) != (true.device, true.inode) or seen.error or seen.content != true.content:
                found.append(Violation("mount wrong" + when, f"{path}: wanted {true}, has {seen}"))
                break
        there = [one.options for one in view.mounts if one.id == view.paths[mount["mountPath"]].mount]
        wanted = [option for option in mount.get("options", []) if option in RESTRICTING]
        if not found and any(option not in options for option in wanted for options in there):
            return [Violation("option lost" + when, f"{mount['mountPath']}: wanted {wanted}, has {there}")]
        if found or not mount.get("readOnly", True):
            return found
        if not when and any(path in view.loose for path, _ in checks):
            return [Violation("writable after a remount", ", ".join(view.loose))]
        loose = [path for path, _ in checks if view.paths[path].writable and path == mount["mountPath"]]
        if loose:
            return [Violation("writable" + when, loose[0])]
        loose = [path for path, _ in checks if view.paths[path].writable]
        loose += [one.point for one in self._others_below(mount, view) if "ro" not in one.options]
        return [Violation("writable below" + when, ", ".join(loose))] if loose else []

    def _others_below(self, mount: dict[str, Any], view: View) -> list[Any]:
        """Mounts below a reserved one which nobody allowed."""
        allowed = [clean(path) for path in mount.get("allowBelow", [])]
        allowed += [clean(one["mountPath"]) for one in self.reserved.mounts if one is not mount]
        others = [view.paths.get(one["mountPath"]) for one in self.reserved.mounts if one is not mount]
        led = {other.mount for other in others if other}  # by a link of the image, to where no path above says
        family = [one for one in view.below(mount["mountPath"]) if one.id not in led]
        top, found = clean(mount["mountPath"]), view.paths[mount["mountPath"]]
        real = [
            one.point for one in family if one.id == found.mount
        ]  # where a link of the image leads the reserved path
        allowed += [point + path[len(top) :] for point in real for path in allowed if path and within(path, top)]
        return [one for one in family if not any(within(clean(one.point), path) for path in allowed if path)]

    def _mounted_though_absent(self, mount: dict[str, Any], view: View, when: str) -> list[Violation]:
        path = clean(mount["mountPath"])
        others = [one["mountPath"] for one in self.reserved.mounts if "hostPath" in one]
        led = {view.paths[other].mount for other in others}  # by a link of the image, to where no path says
        there = [one.point for one in view.mounts if within(clean(one.point), path) and one.id not in led]
        there = [point for point in there if not any(within(clean(point), clean(other)) for other in others)]
        return [Violation("mounted though absent" + when, ", ".join(there))] if there else []

    def _wrong_execs(self, outcome: Outcome, name: str) -> list[Violation]:
        found = []
        for number, done in enumerate(outcome.execs):
            if done.status == 0 and done.env:
                found += self._wrong_env(done.env, "exec env")
            clear = all(innocent_entry(entry, self.reserved) for entry in done.feature["env"])
            wanted = self.innocent and clear and not done.feature.get("members")
            if (
                done.status
                and wanted
                and self._starts_alone(name)
                and self._bare
                and self._bare.execs[number].status == 0
            ):
                found.append(Violation("innocent exec refused", f"{done.status}: {done.output[-300:]}"))
        return found

    def _wrong_verbs(self, outcome: Outcome, name: str) -> list[Violation]:
        found = []
        may_restore = self.keeps_all and not (self.reserved.enforced and self.reserved.applies)
        for number, done in enumerate(outcome.verbs):
            verb, refused = done.feature["verb"], done.status and not done.asked
            if verb != "update" and done.asked and self._must() and not self.reserved.is_empty():
                found.append(Violation(f"{verb} let through", f"{done.status}: {done.output[-300:]}"))
            elif refused and (may_restore if verb == "restore" else is_innocent_update(done.feature)):
                alone = self._starts_alone(name) and self._bare and self._bare.verbs[number]
                if alone and not alone.status:
                    found.append(Violation(f"innocent {verb} refused", f"{done.status}: {done.output[-300:]}"))
        return found

    def _wrong_devices(self, outcome: Outcome, adapter: str) -> list[Violation]:
        """Devices that only an allocation gives, and the container may open them. Nothing is allocated."""
        if not self._must():
            return []
        wrong = [one for one in outcome.opened if one in self.reserved.devices]
        if wrong:
            return [Violation("device open", ", ".join(wrong))]
        later = [one for one in outcome.opened_later if one in self.reserved.devices and adapter in EXECS]
        return [Violation("device open after an update", ", ".join(later))] if later else []

    def _ignored_denials(self) -> list[Violation]:
        """A plain conflict with a rule whose onConflict is Deny, and it runs."""
        if not self._must():
            return []
        for feature in features(self.case, "env"):
            name, equals, value = feature["entry"].partition("=")
            if not equals or "\0" in name or name not in self.reserved.deny:
                continue
            if name in self.reserved.env and self.reserved.env[name] != value:
                return [Violation("denial ignored", f"{feature['entry']} was set, {name} is reserved with Deny")]
        entries = [feature["entry"] for feature in features(self.case, "env")]
        for name in self.reserved.deny & {*self.reserved.allowed}:
            last = [entry for entry in entries if entry.partition("=")[0] == name][-1:]
            if any("=" in entry and not self.reserved.may_choose(name, entry.partition("=")[2]) for entry in last):
                return [Violation("denial ignored", f"{last[0]} was set, which a rule does not allow")]
        return []

    def _should_not_run(self, outcome: Outcome, adapter: str) -> list[Violation]:
        """What has to be refused in Enforce mode, whatever comes of it, and runs."""
        if not self.reserved.enforced:
            return []
        found = []
        if is_odd(self.case):
            found.append(Violation("odd config.json started", str(features(self.case, "member", "env"))))
        above = forbidden_above(self.case, self.reserved)
        if above and self._must():
            found.append(Violation("volume above started", above))
        keeps = adapter in EXECS and self.reserved.has_env()
        execs = outcome.execs if keeps else []
        odd = [one.feature for one in execs if one.status == 0 and is_odd_exec(one.feature)]
        return found + [Violation("odd exec started", str(one)) for one in odd]

    def _changed(self, outcome: Outcome, adapter: str, name: str) -> list[Violation]:
        """Differences from the runtime alone, where nothing may be changed."""
        if not self.keeps_all or features(self.case, "flip"):
            return []
        is_alone = self._starts_alone(name)
        assert self._bare
        if self._bare.timed_out:
            return []
        if not is_alone:
            return [Violation("changed", "the runtime alone does not start it")]
        assert self._bare.view
        assert outcome.view
        ours, alone = _comparable(outcome.view), _comparable(self._bare.view)
        found = [f"{key}: {alone[key]}, now {ours[key]}" for key in alone if ours[key] != alone[key]]
        for with_us, without in zip(outcome.execs, self._bare.execs, strict=True):
            refusable = self.reserved.enforced and is_odd_exec(with_us.feature)
            if not refusable and (with_us.status, with_us.env) != (without.status, without.env):
                found.append(f"exec: {without.status} {without.env}, now {with_us.status} {with_us.env}")
        if any(event.get("applied") for event in outcome.events):
            found.append("the log says applied: true")
        return [Violation("changed", "; ".join(found))] if found else []

    def _false_claims(self, outcome: Outcome) -> list[Violation]:
        """`applied: true` for an edit that the process does not have."""
        found = []
        assert outcome.view
        view = outcome.later or outcome.view
        wrong = [one.detail.partition(":")[0] for one in self._wrong(view, LATER if outcome.later else "")]
        for event in outcome.events:
            for edit in event.get("edits", []) if event.get("applied") else []:
                name = edit["name"]
                if edit["kind"] == "env":
                    has = [entry for entry in outcome.view.env if entry.partition(b"=")[0] == name.encode()]
                    untrue = has != ([] if edit["after"] is None else [f"{name}={edit['after']}".encode()])
                else:
                    untrue = any(within(clean(one), clean(name)) for one in wrong if one.startswith("/"))
                if untrue:
                    found.append(Violation("false claim", f"{edit['kind']} {name}: applied: true"))
        return found[:1]

    def _needless_refusal(self, outcome: Outcome) -> list[Violation]:
        if features(self.case, "flip") and not outcome.ours:
            return []  # the runtime's own affair, at this moment
        said = outcome.output[-400:] or str(outcome.events[-1:])[-400:]
        spec = self.case["policy"]["spec"]
        if spec.get("mode") == "Audit":
            return [Violation("refused in Audit", said)]
        if self.keeps_all:
            odd = is_odd(self.case) or features(self.case, "global")
            return [] if odd else [Violation("refused where nothing is reserved", said)]
        return [Violation("innocent refused", said)] if self.innocent else []


def _comparable(view: View) -> dict[str, Any]:
    """What of a view does not differ from start to start."""
    paths = {path: (one.error, one.kind, one.content, one.writable) for path, one in view.paths.items()}
    mounts = sorted((one.point, one.options) for one in view.mounts if str(SCRATCH) not in one.point)
    return {"env": view.env, "mounts": mounts, "paths": paths}


@cache
def below(directory: str, recursive: bool) -> tuple[str, ...]:
    """Relative names of what a directory of the node holds; `recursive`: what is mounted below it too."""
    if not os.path.isdir(directory):
        return ()
    names = []
    device = os.stat(directory).st_dev
    for path, directories, files in os.walk(directory):
        for name in [*directories, *files]:
            full = os.path.join(path, name)
            if not recursive and os.stat(full).st_dev != device:
                continue
            names.append(os.path.relpath(full, directory))
    return tuple(names)
