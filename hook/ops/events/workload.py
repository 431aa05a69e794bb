"""The workload of a pod, from the pod's name: an event does not say which object made the pod."""

from __future__ import annotations

import re

# Kubernetes makes names of these characters only (apimachinery, util/rand): few words consist of them.
_HASH = "[bcdfghjklmnpqrstvwxz2456789]"

_SUFFIXES = (
    re.compile(rf"-{_HASH}{{6,10}}-{_HASH}{{5}}$"),  # Deployment: the ReplicaSet's hash, then the pod's
    re.compile(rf"-\d{{8,10}}-{_HASH}{{5}}$"),  # CronJob: the Job's time, then the pod's hash
    re.compile(rf"-{_HASH}{{5}}$"),  # ReplicaSet, DaemonSet, Job
    re.compile(r"-\d{1,4}$"),  # StatefulSet: the pod's number
)


def workload_of(pod: str) -> str:
    """The pod's name without what controllers append to their own names.

    A pod that a user named in one of these forms counts to the workload of the shorter name.
    """
    for suffix in _SUFFIXES:
        found = suffix.search(pod)
        if found and found.start():
            return pod[: found.start()]
    return pod
