"""Containers of sizes that nobody needs, as config.json: each shape at the limit of entries, or beyond every limit."""

from __future__ import annotations

from collections.abc import Callable

ENTRIES = 100_000
"""The limit; hook.core.container.spec has the reasons."""

NEAR = 99_000
"""As many entries as the limit lets through, beside the few that every spec has."""

_IDENTITY = (
    '"io.kubernetes.cri.container-type":"container","io.kubernetes.cri.sandbox-id":"x",'
    '"io.kubernetes.cri.sandbox-namespace":"team-a","io.kubernetes.cri.sandbox-name":"p",'
    '"io.kubernetes.cri.sandbox-uid":"1-2-3","io.kubernetes.cri.container-name":"c"'
)


def config(
    env: str = "", mounts: str = "", annotations: str = "", linux: str = "", args: str = "", more: str = ""
) -> str:
    """A config.json of containerd's with this JSON text in its lists and objects."""
    parts = (
        '{"ociVersion":"1.0.2","root":{"path":"rootfs"},"process":{"cwd":"/"',
        f',"args":["/bin/true"{_more(args)}],"env":["PATH=/bin"{_more(env)}]}}',
        f',"mounts":[{mounts}],"annotations":{{{_IDENTITY}{_more(annotations)}}}',
        f',"linux":{{"cgroupsPath":"a.slice:cri-containerd:0a1b"{_more(linux)}}}{_more(more)}}}',
    )
    return "".join(parts)


def _more(text: str) -> str:
    return "," + text if text else ""


def _each(form: Callable[[int], str], count: int) -> str:
    return ",".join(map(form, range(count)))


def _list(name: str, form: Callable[[int], str], count: int) -> str:
    return f'"{name}":[{_each(form, count)}]'


def _env(form: Callable[[int], str], count: int) -> Callable[[], str]:
    return lambda: config(env=_each(form, count))


def _mounts(form: Callable[[int], str], count: int) -> Callable[[], str]:
    return lambda: config(mounts=_each(form, count))


def _mount(path: str) -> str:
    return f'{{"destination":"{path}","type":"bind","source":"/s"}}'


LET_THROUGH: dict[str, Callable[[], str]] = {
    "env": _env('"A{:06x}="'.format, NEAR),
    "env that almost matches": _env('"A{:06x}_TOKE="'.format, NEAR),
    "env of 7 MB": _env(lambda number: f'"A{number}={"v" * 100_000}"', 70),
    "env of 7 MB with a wide character": _env(lambda number: f'"A{number}=\U0001f600{"v" * 100_000}"', 70),
    "env of 7 MB in escapes": _env(lambda number: f'"A{number}={chr(92)}u0001{(chr(92) + "u0001") * 16_000}"', 70),
    "names that a glob with ? almost matches": _env(lambda number: f'"{"a" * 100_000}{number}="', 70),
    "a value that a glob with ? almost matches": lambda: config(env=f'"CHOICE=x{"a" * 7_000_000}"'),
    "env of a reserved name": _env('"REQUESTS_CA_BUNDLE={}"'.format, NEAR),
    "mounts": _mounts(lambda number: _mount(f"/m{number}"), NEAR // 4),
    "mounts that allowBelow lets through": _mounts(lambda number: _mount(f"/etc/pki/let/{number}"), 1000),
    "annotations": lambda: config(annotations=_each('"a{}":""'.format, NEAR)),
    "devices": lambda: config(linux=_list("devices", '{{"path":"/dev/d{}"}}'.format, NEAR // 2)),
    "device rules": lambda: config(
        linux='"resources":{' + _list("devices", lambda _: '{"allow":true}', NEAR // 2) + "}"
    ),
    "members of no use": lambda: config(more=_each('"x{}":0'.format, NEAR)),
    "objects of no use": lambda: config(more=_list("x", lambda _: '{"":0}', NEAR // 2)),
    "commas in env": _env(lambda number: f'"A{number}={",[{" * 30_000}"', 50),
}
"""By what there is a lot of: as much as the limits let through."""

REFUSED: dict[str, Callable[[], str]] = {
    "26 MB of env": _env(lambda number: f'"A{number}={"v" * 100_000}"', 260),
    "26 MB of small env": _env('"A{:06x}="'.format, 26_000_000 // 12),
    "8 MB of empty env": _env(lambda _: '""', 2_700_000),
    "env that must be absent": _env('"N_{}="'.format, NEAR),
    "300,000 mounts": _mounts(lambda number: _mount(f"/m{number}"), 300_000),
    "mounts above": _mounts(lambda _: _mount("/etc"), NEAR // 4),
    "mounts below": _mounts(lambda number: _mount(f"/etc/ssl/{number}"), NEAR // 4),
    "1.5 million annotations": lambda: config(annotations=_each('"a{}":""'.format, 1_500_000)),
    "1 million arguments": lambda: config(args=_each('"{}"'.format, 1_000_000)),
    "annotations that must be absent": lambda: config(annotations=_each('"evil/{}":""'.format, NEAR)),
    "2 million lists": lambda: config(more=_list("x", lambda _: "[0]", 2_000_000)),
    "an annotation twice": lambda: config(annotations=_each('"a{}":""'.format, NEAR) + ',"a7":""'),
}
"""What no adapter lets through."""

POLICY = """\
apiVersion: reassert/v1
kind: NodePolicy
metadata: {name: test}
spec:
  failurePolicy: Ignore
  rules:
  - name: r
    env:
    - {name: REQUESTS_CA_BUNDLE, value: /ca}
    - {name: "N_*", absent: true}
    - {name: "*_TOKEN", absent: true}
    - {name: "*secret*", absent: true}
    - {name: "*a?b*", absent: true}
    - {name: CHOICE, oneOf: [x], pattern: "x*a?b*", else: x}
    annotations: [{name: "evil/*", absent: true}]
    mounts:
    - {hostPath: CA, mountPath: /etc/ssl, readOnly: true}
    - {hostPath: CA, mountPath: /etc/pki, readOnly: true, allowBelow: [/etc/pki/let]}
"""
"""One rule of every kind. `CA`: as in harness.node. `Ignore`, since what a pod makes too large must not pass by it."""
