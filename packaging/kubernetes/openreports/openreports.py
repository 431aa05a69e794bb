"""The chart's Deployment `openreports` (docs/kubernetes.md): a ClusterReport (openreports.io) for each NodeEnforcement.

It watches the NodeEnforcements, and writes a report by server-side apply when a result changes. It uses the client
`kubernetes` and not kopf: kopf notes its progress in annotations of each object that it handles, so each write of a
node would cause another one, and it needs rights to patch what it only reads.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

GROUP, VERSION, PLURAL = "reassert.internal", "v1alpha1", "nodeenforcements"
REPORTS = ("openreports.io", "v1alpha1", "clusterreports")
SOURCE = "reassert"
MANAGER = "reassert-openreports"
MOST = 20
"""The most results of a report."""

STALE = 1800.0
"""The age in seconds from which a look at a node is too old to be a result."""

ROUND = 300
"""Seconds after which a watch ends, and all NodeEnforcements are listed again."""

GONE = 410
"""The status of a watch that is too old to go on."""

REFUSALS = (400, 409, 413, 422)
"""What the API server answers to one report that it does not take. Anything else is about all of them."""

Status = dict[str, Any]
Result = dict[str, Any]

PASS, FAIL, WARN, ERROR, SKIP = "pass", "fail", "warn", "error", "skip"


def results(status: Status, now: float) -> list[Result]:
    """What a NodeEnforcement says, as results without their times. A fact that is absent is `error`."""
    age = now - seconds(status.get("lookedAt"))
    if age > STALE:
        looked = status.get("lookedAt") or "never"
        return [_result("looked-at", ERROR, "high", f"the node was last looked at: {looked}")]
    policy, message = status.get("policy", {}), str(status.get("message", ""))
    found = [
        _result("looked-at", PASS, "high", "the node was looked at"),
        _state(str(status.get("state", "")), message),
        _policy(policy),
        _mode(policy.get("inForce", {}).get("mode")),
        _handlers(status),
        _verify(status.get("verify", {}).get("result")),
    ]
    containers, day = status.get("containers", {}), status.get("lastDay", {})
    found += [
        _count("drift", containers.get("drifted"), FAIL, "medium", "running containers differ from the policy"),
        _count("unknown", containers.get("unknown"), WARN, "low", "running containers could not be looked at"),
        _count("refusals", day.get("refusals"), WARN, "low", "containers were refused in the last 24 hours"),
        _count("overrides", day.get("overrides"), WARN, "low", "containers were corrected in the last 24 hours"),
    ]
    return found[:MOST]


def _result(rule: str, result: str, severity: str, text: str) -> Result:
    return {"policy": "node-policy", "rule": rule, "result": result, "severity": severity, "message": text[:1024]}


def _state(state: str, message: str) -> Result:
    result = {"Enforcing": PASS, "NothingToVerify": WARN, "Starting": SKIP, "Removed": SKIP}.get(state, FAIL)
    return _result("state", result, "critical", f"{state}: {message}" if message else state)


def _policy(policy: Status) -> Result:
    wanted, has = (policy.get(name, {}).get("sha256") for name in ("wanted", "inForce"))
    if not wanted or not has:
        return _result("policy", ERROR, "high", "it is not known which policy is in force")
    if wanted == has:
        return _result("policy", PASS, "high", f"the policy {has} is in force")
    held = policy.get("heldBack")
    return _result("policy", FAIL, "high", f"{has} is in force, not {wanted}" + (f": {held}" if held else ""))


def _mode(mode: object) -> Result:
    if mode is None:
        return _result("mode", ERROR, "medium", "the mode of the policy is not known")
    return _result("mode", PASS if mode == "Enforce" else WARN, "medium", f"the mode is {mode}")


def _handlers(status: Status) -> Result:
    handlers = status.get("handlers")
    if not handlers or handlers.get("notKnown"):
        return _result("handlers", ERROR, "high", "it is not known which handlers call reassert")
    ours = [engine for engine in status.get("engines", []) if engine.get("adapters")]
    names = [f"{engine['name']}/{name}" for engine in ours for name in engine.get("notWired", [])]
    if handlers.get("notWired"):
        return _result("handlers", FAIL, "high", f"containers start without reassert under {', '.join(names)}")
    return _result("handlers", PASS, "high", f"{handlers.get('wired')} handlers call reassert")


def _verify(result: object) -> Result:
    outcome = {"Protected": PASS, "NotProtected": FAIL, "NothingToVerify": SKIP}.get(str(result), ERROR)
    return _result("verify", outcome, "critical", f"the last `node verify`: {result or 'not known'}")


def _count(rule: str, number: int | None, result: str, severity: str, text: str) -> Result:
    if number is None:
        return _result(rule, ERROR, severity, f"it is not known how many {text}")
    return _result(rule, result if number else PASS, severity, f"{number} {text}")


def seconds(text: object) -> float:
    """An RFC 3339 time in seconds since the epoch; 0 for anything else."""
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        return 0.0


def report(node: Status, found: list[Result], times: dict[str, int]) -> Status:
    """The ClusterReport of a NodeEnforcement. `times`: since when each rule has its result, by rule."""
    name = node["metadata"]["name"]
    owners = node["metadata"].get("ownerReferences", [])
    uid = next((owner["uid"] for owner in owners if owner["kind"] == "Node"), None)
    scope = {"apiVersion": "v1", "kind": "Node", "name": name, **({"uid": uid} if uid else {})}
    metadata: Status = {"name": f"reassert-{name}", "labels": {"app.kubernetes.io/managed-by": MANAGER}}
    if uid:
        metadata["ownerReferences"] = [{"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid}]
    return {
        "apiVersion": "/".join(REPORTS[:2]),
        "kind": "ClusterReport",
        "metadata": metadata,
        "source": SOURCE,
        "scope": scope,
        "configuration": {"limits": {"maxResults": MOST}},
        "summary": {kind: sum(one["result"] == kind for one in found) for kind in (PASS, FAIL, WARN, ERROR, SKIP)},
        "results": [{**one, "timestamp": {"seconds": times[one["rule"]], "nanos": 0}} for one in found],
    }


@dataclass
class Known:
    """What was written for a node. `node`: what its report is made of besides the results."""

    node: Status
    looked: str
    found: list[Result] = field(default_factory=list)
    times: dict[str, int] = field(default_factory=dict)


class Reporter:
    """Writes the reports that differ from what it has written. `api`: a CustomObjectsApi."""

    def __init__(self, api: Any) -> None:
        self.api = api
        self.known: dict[str, Known] = {}

    def learn(self, written: Status) -> str:
        """Know a report that an earlier process wrote, so that its times stay. Returns the node's name."""
        metadata = written["metadata"]
        name: str = metadata["name"].removeprefix("reassert-")
        if name not in self.known:
            of = written.get("results", [])
            about = {"metadata": {"name": name, "ownerReferences": metadata.get("ownerReferences", [])}}
            found = [{key: value for key, value in one.items() if key != "timestamp"} for one in of]
            times = {one["rule"]: one.get("timestamp", {}).get("seconds") for one in of}
            if None in times.values():  # another program changed it: it is written again
                self.known[name] = Known({}, "")
            else:
                self.known[name] = Known(about, "", found, times)
        return name

    def see(self, node: Status, now: float) -> None:
        """Write the report of a NodeEnforcement if it says something new."""
        status, metadata = node.get("status", {}), node["metadata"]
        name = metadata["name"]
        known = self.known.setdefault(name, Known({}, ""))
        known.looked = str(status.get("lookedAt", ""))
        about = {"metadata": {"name": name, "ownerReferences": metadata.get("ownerReferences", [])}}
        self._write(known, about, results(status, now), now)

    def age(self, now: float) -> None:
        """Report the nodes whose last look has become too old."""
        for known in self.known.values():
            if known.node and now - seconds(known.looked) > STALE:
                self._write(known, known.node, results({"lookedAt": known.looked}, now), now)

    def _write(self, known: Known, about: Status, found: list[Result], now: float) -> None:
        if (known.node, known.found) == (about, found):
            return
        times = {one["rule"]: known.times[one["rule"]] if one in known.found else int(now) for one in found}
        body = report(about, found, times)
        try:
            self.api.patch_cluster_custom_object(
                *REPORTS,
                body["metadata"]["name"],
                body,
                field_manager=MANAGER,
                force=True,
                _content_type="application/apply-patch+yaml",
            )
        except Exception as error:  # of the client, which is imported where the program runs only
            if getattr(error, "status", None) not in REFUSALS:
                raise
            log(error, node=about["metadata"]["name"])  # the next round tries this one again, and the others go on
            return
        known.node, known.found, known.times = about, found, times

    def forget(self, name: str) -> None:
        """Delete the report of a NodeEnforcement that is gone."""
        self.known.pop(name, None)
        self.delete(f"reassert-{name}")

    def delete(self, name: str) -> None:
        """Delete a report, which may be gone already."""
        try:
            self.api.delete_cluster_custom_object(*REPORTS, name)
        except Exception as error:  # of the client, which is imported where the program runs only
            if getattr(error, "status", None) != 404:
                raise


def pages(api: Any, kind: tuple[str, str, str], **options: object) -> Any:
    """The pages of a list, which are not kept."""
    following = ""
    while True:
        page = api.list_cluster_custom_object(*kind, limit=200, _continue=following, **options)
        yield page
        following = page["metadata"].get("continue", "")
        if not following:
            return


def round_of(reporter: Reporter, api: Any, watch: Any) -> None:
    """List all NodeEnforcements, then watch them for ROUND seconds. Raises what the client raises."""
    ours = f"app.kubernetes.io/managed-by={MANAGER}"
    written = {reporter.learn(one) for page in pages(api, REPORTS, label_selector=ours) for one in page["items"]}
    there, version = set(), ""
    for page in pages(api, (GROUP, VERSION, PLURAL)):
        version = page["metadata"]["resourceVersion"]
        for node in page["items"]:
            there.add(node["metadata"]["name"])
            reporter.see(node, time.time())
    for name in written - there:
        reporter.forget(name)
    reporter.age(time.time())
    options = {"resource_version": version, "timeout_seconds": ROUND, "_request_timeout": ROUND + 30}
    for event in watch.stream(api.list_cluster_custom_object, GROUP, VERSION, PLURAL, **options):
        if event["type"] == "DELETED":
            reporter.forget(event["object"]["metadata"]["name"])
        elif event["type"] in ("ADDED", "MODIFIED"):
            reporter.see(event["object"], time.time())


def log(error: Exception, **about: str) -> None:
    """Write an error as a line of JSON to standard error."""
    print(json.dumps({**about, "error": str(error)[:1000]}), file=sys.stderr, flush=True)


def main() -> int:
    """Run until SIGTERM."""
    from kubernetes import client, config, watch  # in its own image only
    from urllib3.exceptions import HTTPError

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    if os.environ.get("KUBECONFIG"):
        config.load_kube_config()
    else:
        config.load_incluster_config()
    api = client.CustomObjectsApi()
    reporter = Reporter(api)
    while True:
        try:
            round_of(reporter, api, watch.Watch())
        except (client.ApiException, HTTPError, OSError) as error:
            if getattr(error, "status", None) != GONE:
                log(error)
                time.sleep(15)


if __name__ == "__main__":
    sys.exit(main())
