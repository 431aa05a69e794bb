"""The plain manifests are the chart's default release, and kubectl can read them."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from pathlib import Path

import marks
from harness.tools import need

from unit.kubernetes.chart import KUBERNETES, Object, find, is_hook, load, objects
from unit.support import ROOT

pytestmark = marks.promise("The chart is valid, refuses invalid values, and its pods wire and unwire a node")

MANIFESTS = KUBERNETES / "manifests"


def test_they_are_what_the_chart_says() -> None:
    rendered = objects({"image": {"repository": "reassert"}})
    name = find([each for each in rendered if not is_hook(each)], "ConfigMap")["metadata"]["name"]
    daemon = json.dumps(find(rendered, "DaemonSet")).replace(name, "reassert-policy")
    written = load((MANIFESTS / "reassert.yaml").read_text())
    assert written == [json.loads(daemon)], "generate reassert.yaml again; its first lines name the command"
    assert (MANIFESTS / "policy.yaml").read_text() == (ROOT / "config/policy.yaml").read_text()


def built(directory: Path) -> list[Object]:
    """What `kubectl apply -k` would apply."""
    need(shutil.which("kubectl") is not None, "kubectl")
    done = subprocess.run(["kubectl", "kustomize", directory], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return load(done.stdout)


def test_kubectl_puts_the_image_in() -> None:
    (container,) = find(built(MANIFESTS), "DaemonSet")["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "registry.example/reassert:0.4.0"


def test_each_policy_has_a_configmap_of_its_own(tmp_path: Path) -> None:
    """So that a new policy goes from node to node with the pods, in the plain manifests too."""
    shutil.copytree(MANIFESTS, tmp_path, dirs_exist_ok=True)
    names = []
    for policy in ("kind: NodePolicy\n", "kind: NodePolicy # another\n"):
        (tmp_path / "policy.yaml").write_text(policy)
        found = built(tmp_path)
        each = find(found, "ConfigMap")
        assert (each["data"], each["immutable"]) == ({"policy.yaml": policy}, True)
        volumes = find(found, "DaemonSet")["spec"]["template"]["spec"]["volumes"]
        names += [volume["configMap"]["name"] for volume in volumes if volume["name"] == "policy"]
        assert names[-1] == each["metadata"]["name"]
    assert names[0] != names[1]


def test_the_image_is_made_of_what_is_there() -> None:
    """Every file that the Dockerfile copies exists, and its context has what the build reads."""
    image = KUBERNETES / "image"
    let_in = {line[1:] for line in (image / "Dockerfile.dockerignore").read_text().splitlines() if line[0] == "!"}
    assert {"config", "hook", "packaging"} == let_in
    copies = [line for line in (image / "Dockerfile").read_text().splitlines() if line.startswith("COPY packaging")]
    sources = [source for line in copies for source in shlex.split(line)[1:-1]]
    assert len(sources) == 7
    assert all((ROOT / source).stat().st_mode & 0o111 for source in sources if source.endswith(".sh"))
