"""What both files of tests/lab/cri-dockerd give a node."""

from __future__ import annotations

from e2e.cri.images import PAUSE

SOCKET = "/run/cri-dockerd.sock"
UNIT = f"""\
[Service]
ExecStart=/usr/local/bin/cri-dockerd --container-runtime-endpoint unix://{SOCKET} --pod-infra-container-image {PAUSE} \\
  --network-plugin cni
Delegate=yes
KillMode=process
"""
"""The service of cri-dockerd."""
TYPES = """\
apiVersion: reassert/v1
kind: NodePolicy
metadata: {name: test}
spec:
  exclude: {containerTypes: [sandbox]}
  rules:
  - name: app
    match: {containerTypes: [container]}
    env: [{name: NVIDIA_VISIBLE_DEVICES, value: void}]
  - name: others
    match: {containerTypes: [init, ephemeral]}
    env: [{name: NVIDIA_VISIBLE_DEVICES, value: none}]
"""
"""A policy with a rule for app containers, and one for init and ephemeral ones."""
