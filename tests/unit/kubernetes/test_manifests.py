"""The plain manifests are the chart's default release, and kubectl can read them."""

from __future__ import annotations

import shlex
import shutil
import subprocess

from e2e.support import need

from unit.kubernetes.chart import KUBERNETES, find, is_hook, load, objects
from unit.support import ROOT

MANIFESTS = KUBERNETES / "manifests"


def by_kind(found: list[dict[str, object]]) -> list[dict[str, object]]:
    return sorted(found, key=lambda each: str(each["kind"]))


def test_they_are_what_the_chart_says() -> None:
    rendered = [each for each in objects({"image": {"repository": "reassert"}}) if not is_hook(each)]
    written = load((MANIFESTS / "reassert.yaml").read_text())
    assert by_kind(written) == by_kind(rendered), "generate reassert.yaml again; its first lines name the command"


def test_kubectl_puts_the_image_in() -> None:
    need(shutil.which("kubectl") is not None, "kubectl")
    built = subprocess.run(["kubectl", "kustomize", MANIFESTS], capture_output=True, text=True, timeout=60)
    assert built.returncode == 0, built.stderr
    (container,) = find(load(built.stdout), "DaemonSet")["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "registry.example/reassert:0.4.0"


def test_the_image_is_made_of_what_is_there() -> None:
    """Every file that the Dockerfile copies exists, and its context has what the build reads."""
    image = KUBERNETES / "image"
    let_in = {line[1:] for line in (image / "Dockerfile.dockerignore").read_text().splitlines() if line[0] == "!"}
    assert {"config", "hook", "packaging"} == let_in
    copies = [line for line in (image / "Dockerfile").read_text().splitlines() if line.startswith("COPY packaging")]
    sources = [source for line in copies for source in shlex.split(line)[1:-1]]
    assert len(sources) == 4
    assert all((ROOT / source).stat().st_mode & 0o111 for source in sources)
