"""`reassert explain POD.yaml`: the decision about each container of a pod that does not run."""

from __future__ import annotations

import json

from hook.core.decide import Case
from hook.ops.cases.pods import Given, Pod, documents
from hook.ops.explain import as_json, as_table, policy_of


def explain(file: str, policy_file: str | None, store_directory: str, output: str) -> int:
    """Print the decision about each container, as the NRI plugin of this node would make it.

    The image's ENV and what device plugins would allocate are not known. Raises ReassertError, OSError.
    """
    policy = policy_of(policy_file, store_directory)
    pod = Pod(documents(file), file)
    found = []
    for kind, container in pod.containers():
        case = Case("explain", "", lambda: policy)
        decided = case.decide(*pod.start(kind, container, Given()))
        found.append((decided, case))
    if output == "json":
        print(json.dumps([as_json(decided, case.container, file, case.trial) for decided, case in found], indent=2))
    else:
        print("\n\n".join(as_table(decided, case.container, file, case.trial) for decided, case in found))
    return 0
