#!/bin/sh
# install.sh --demo [--runtime NAME]: start a hostile container under runc, or crun or runsc (gVisor), without and with
# reassert, and a hostile image under podman where podman is. All files are in one temporary directory.
set -eu
cd "$(dirname "$0")/.."
reassert=$PWD/dist/reassert/reassert
name=runc
[ "${1-}" != --runtime ] || name=${2-}
command -v "$name" > /dev/null || { echo "packaging/demo.sh: $name is missing; install it (Debian: apt-get install $name)" >&2; exit 3; }
runc=$(command -v "$name")
# Not /tmp: the policy's directory must be writable by root only. Not /run: Debian mounts it noexec.
work=$(mktemp -d /var/lib/reassert-demo.XXXXXX)
chmod 755 "$work"
root=$work/runc
# runsc changes the owner of a container's standard input (chown): it must not be the node's /dev/null.
: > "$work/stdin"
exec < "$work/stdin"
if [ "$name" = runsc ]; then # it needs no network and no cgroup here
  printf '#!/bin/sh\nexec %s --network=none --ignore-cgroups "$@"\n' "$runc" > "$work/runsc"
  chmod 755 "$work/runsc"
  runc=$work/runsc
fi
plain=plain-$$ guarded=guarded-$$

clean_up() {
  for id in $plain $guarded; do
    "$runc" --root "$root" delete --force "$id" >/dev/null 2>&1 || :
  done
  # podman cleans up behind its last container, and keeps its storage mounted until then.
  for _ in 1 2 3 4 5 6 7 8 9 10; do
    umount --recursive "$work/podman/root/vfs" "$work/podman/root" 2>/dev/null || :
    ! rm -rf "$work" 2>/dev/null || break
    sleep 0.1
  done
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

step() {
  printf '\n== %s\n' "$*"
}

# -- the node: an allocated GPU, a CA bundle, and a policy that reserves both
mkdir -p "$work/node/etc-ssl/certs" "$work/pod/certs" "$work/bundle/rootfs"
echo "the company's CA" > "$work/node/etc-ssl/certs/ca-certificates.crt"
echo GPU-8a56a4bc > "$work/node/gpu"
cat > "$work/node/policy.yaml" <<POLICY
apiVersion: reassert/v1
kind: NodePolicy
metadata: {name: demo}
spec:
  exclude: {namespaces: [kube-system]}
  rules:
  - name: gpu
    env:
    - {name: NVIDIA_VISIBLE_DEVICES, valueFrom: {file: $work/node/gpu}}
  - name: company-ca
    env:
    - {name: REQUESTS_CA_BUNDLE, value: /etc/ssl/certs/ca-certificates.crt}
    mounts:
    - {hostPath: $work/node/etc-ssl, mountPath: /etc/ssl, readOnly: true}
  - name: loader
    env:
    - {name: LD_PRELOAD, absent: true}
  - name: node-env
    env:
    - {name: "HF_*", absent: true}
POLICY

# -- the hostile pod: it requests all GPUs, sets its own CA bundle, and mounts over /etc/ssl/certs
echo "an attacker's CA" > "$work/pod/certs/ca-certificates.crt"
for directory in bin dev etc/ssl/certs proc sys/fs/cgroup tmp; do # runc of Debian 11 asks for the last but one
  mkdir -p "$work/bundle/rootfs/$directory"
done
cp /bin/busybox "$work/bundle/rootfs/bin/busybox"
ln -s busybox "$work/bundle/rootfs/bin/sh"
# A vendor's hook runs on the node, as root. runc before 1.3 gives it the container's env (CVE-2025-23266).
cat > "$work/vendor" <<'HOOK'
#!/bin/sh
echo "hook   ${LD_PRELOAD-unset}" > "$1"
HOOK
chmod 755 "$work/vendor"
# shellcheck disable=SC2016  # the container's shell expands it
look='echo "gpus   ${NVIDIA_VISIBLE_DEVICES-unset}"
echo "bundle ${REQUESTS_CA_BUNDLE-unset}"
echo "trust  $(busybox cat /etc/ssl/certs/ca-certificates.crt 2>&1)"
echo "mount  $(busybox awk '"'"'$5 ~ "^/etc/ssl" {print $5, $6}'"'"' /proc/self/mountinfo | busybox sed "s/,.*//" | busybox xargs)"'
printf '%s\n' "$look" > "$work/bundle/rootfs/bin/look"
cat > "$work/bundle/config.json" <<CONFIG
{
  "ociVersion": "1.0.2",
  "process": {
    "user": {"uid": 0, "gid": 0}, "cwd": "/", "noNewPrivileges": true,
    "args": ["/bin/sh", "-c", "sh /bin/look; exec busybox sleep 300"],
    "env": [
      "PATH=/bin",
      "NVIDIA_VISIBLE_DEVICES=GPU-8a56a4bc",
      "REQUESTS_CA_BUNDLE=/tmp/mine.pem",
      "NVIDIA_VISIBLE_DEVICES=all",
      "LD_PRELOAD=/proc/self/cwd/poc.so"
    ]
  },
  "root": {"path": "rootfs"},
  "mounts": [
    {"destination": "/proc", "type": "proc", "source": "proc"},
    {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]},
    {"destination": "/etc/ssl/certs", "type": "bind", "source": "$work/pod/certs", "options": ["rbind", "rw"]}
  ],
  "annotations": {
    "io.kubernetes.cri.container-type": "container",
    "io.kubernetes.cri.container-name": "trainer",
    "io.kubernetes.cri.sandbox-id": "demo",
    "io.kubernetes.cri.sandbox-name": "hostile",
    "io.kubernetes.cri.sandbox-namespace": "default",
    "io.kubernetes.cri.sandbox-uid": "00000000-0000-0000-0000-000000000000"
  },
  "hooks": {"createContainer": [{"path": "$work/vendor", "args": ["vendor", "$work/HOOK"]}]},
  "linux": {"namespaces": [{"type": "pid"}, {"type": "mount"}, {"type": "ipc"}, {"type": "uts"}]}
}
CONFIG
if [ "$name" = runsc ]; then # to which these annotations say that the container joins a sandbox
  sed -i '/"annotations"/,/^  },/d; /"hooks"/d' "$work/bundle/config.json"
fi
cp -r "$work/bundle" "$work/bundle2"
sed -i "s|$work/HOOK|$work/$plain.hook|" "$work/bundle/config.json"
sed -i "s|$work/HOOK|$work/$guarded.hook|" "$work/bundle2/config.json"
"$reassert" dispatcher --real "$runc" --reassert "$reassert" --policy "$work/node/policy.yaml" \
  --store "$work/node/store" --events "$work/node/events.jsonl" > "$work/reassert-runc"
chmod 755 "$work/reassert-runc"

run_container() { # RUNTIME BUNDLE ID: start it; write what its process saw to ID.first, and what an exec'ed process saw to ID.exec
  if ! "$1" --root "$root" create --bundle "$2" "$3" > "$work/$3.first" 2>&1; then
    return 1
  fi
  "$1" --root "$root" start "$3" || return 1
  for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    grep -q ^mount "$work/$3.first" && break
    sleep 0.1
  done
  "$1" --root "$root" exec "$3" /bin/sh /bin/look > "$work/$3.exec" 2>&1 || { cat "$work/$3.exec" >> "$work/$3.first"; return 1; }
}

step "A pod that overrides what the node reserved, under $runc alone"
if ! run_container "$runc" "$work/bundle" "$plain"; then
  sed 's/^/   /' "$work/$plain.first"
  cat <<SORRY

Containers cannot run here: $runc failed without reassert, see above. It needs root with CAP_SYS_ADMIN, and permission
to mount and to make namespaces. The decision of reassert about this container would be:

SORRY
  "$reassert" explain "$work/bundle" --policy "$work/node/policy.yaml"
  exit 3
fi
echo "   started as $plain"

step "The same pod, with reassert in front of $runc"
if ! run_container "$work/reassert-runc" "$work/bundle2" "$guarded"; then
  sed 's/^/   /' "$work/$guarded.first"
  echo "install.sh --demo: the container did not start through reassert" >&2
  exit 1
fi
echo "   started as $guarded, decided by this policy:"
sed -n '/rules:/,$s/^/     /p' "$work/node/policy.yaml"

saw() { # FILE KEY
  sed -n "s/^$2 *//p" "$work/$1"
}
row() {
  printf '   %-26s %-32s %s\n' "$1" "$2" "$3"
}
rows() { # FILE SUFFIX
  row NVIDIA_VISIBLE_DEVICES "$(saw "$plain.$1" gpus)" "$(saw "$guarded.$1" gpus)"
  row REQUESTS_CA_BUNDLE "$(saw "$plain.$1" bundle)" "$(saw "$guarded.$1" bundle)"
  row "that CA bundle holds" "$(saw "$plain.$1" trust)" "$(saw "$guarded.$1" trust)"
  row "mounts at /etc/ssl" "$(saw "$plain.$1" mount)" "$(saw "$guarded.$1" mount)"
}
step "What the container's own process saw"
row "" "$name" "reassert + $name"
rows first
step "What an exec'ed process saw"
row "" "$name" "reassert + $name"
rows exec

step "What a vendor's hook on the node got of the image's env (CVE-2025-23266)"
row "" "$name" "reassert + $name"
if [ -s "$work/$plain.hook" ]; then
  row LD_PRELOAD "$(saw "$plain.hook" hook)" "$(saw "$guarded.hook" hook)"
else
  echo "   $name calls no createContainer hook"
fi

# -- an image whose ENV has names without a value: podman before 5.8.4 fills them in from its own env
podman=
image() { # makes an OCI image layout of busybox (image-spec, image-layout.md)
  blobs=$work/podman/image/blobs/sha256
  mkdir -p "$blobs" "$work/podman/hooks"
  printf '{"imageLayoutVersion": "1.0.0"}' > "$work/podman/image/oci-layout"
  tar -C "$work/bundle/rootfs" -cf "$work/podman/blob" bin
  layer=$(blob)
  printf '{"architecture": "%s", "os": "linux", "config": {"Env": ["PATH=/bin", "HF_TOKEN"], "Cmd": ["busybox", "env"]},
    "rootfs": {"type": "layers", "diff_ids": ["sha256:%s"]}}' "$1" "${layer% *}" > "$work/podman/blob"
  config=$(blob)
  kind=application/vnd.oci.image
  printf '{"schemaVersion": 2, "mediaType": "%s.manifest.v1+json", "config": %s, "layers": [%s]}' $kind \
    "$(described $kind.config.v1+json "$config")" "$(described $kind.layer.v1.tar "$layer")" > "$work/podman/blob"
  listed=$(described $kind.manifest.v1+json "$(blob)")
  printf '{"schemaVersion": 2, "manifests": [%s, "annotations": {"io.containerd.image.name": "localhost/demo:1"}}]}' \
    "${listed%\}}" > "$work/podman/image/index.json"
  tar -C "$work/podman/image" -cf "$work/podman/image.tar" .
}
blob() { # moves the file into the layout; prints its hash and size
  hash=$(sha256sum < "$work/podman/blob")
  hash=${hash%% *}
  echo "$hash $(stat --format=%s "$work/podman/blob")"
  mv "$work/podman/blob" "$blobs/$hash"
}
described() { # TYPE "HASH SIZE"
  printf '{"mediaType": "%s", "digest": "sha256:%s", "size": %s}' "$1" "${2% *}" "${2#* }"
}
by_podman() { # RUNTIME ARGUMENT…
  printf '[engine]\nruntime = "%s"\n[engine.runtimes]\n%s = ["%s"]\n' "$name" "$name" "$1" > "$work/podman/containers.conf"
  shift
  (cd / && HF_TOKEN=token-of-the-node CONTAINERS_CONF=$work/podman/containers.conf podman --root "$work/podman/root" \
    --runroot "$work/podman/run" --tmpdir "$work/podman/tmp" --storage-driver vfs --cgroup-manager cgroupfs \
    --hooks-dir "$work/podman/hooks" "$@") 2>> "$work/podman/said"
}
token() { # RUNTIME: HF_TOKEN in a container of the image
  cgroups=enabled
  [ "$name" != crun ] || cgroups=disabled # it works where the machine delegates none; runc knows no such option
  env=$(by_podman "$1" run --rm --network host --cgroups $cgroups --log-driver none --ulimit nofile=1024:1024 \
    --ulimit nproc=1000:1000 "$podman") || return 1
  env=$(echo "$env" | sed -n 's/^HF_TOKEN=//p')
  echo "${env:-unset}"
}
step "What an image gets of podman's own env by ENV HF_TOKEN (CVE-2026-57231)"
if [ "$name" = runsc ] || ! command -v podman > /dev/null; then
  echo "   not tried: it needs podman, and runc or crun"
else
  mkdir -p "$work/podman"
  case $(uname -m) in x86_64) image amd64 ;; aarch64) image arm64 ;; *) image "$(uname -m)" ;; esac
  if podman=$(by_podman "$runc" pull --quiet "oci-archive:$work/podman/image.tar") && token "$runc" > "$work/$plain.token" &&
    token "$work/reassert-runc" > "$work/$guarded.token"; then
    row "" "podman, $name" "podman, reassert + $name"
    row HF_TOKEN "$(cat "$work/$plain.token")" "$(cat "$work/$guarded.token")"
  else
    podman=
    echo "   not tried: podman starts no container here: $(tail -n 1 "$work/podman/said")"
  fi
fi

step "The node's event log"
"$reassert" events --events "$work/node/events.jsonl" | sed -n '2,$s/^\([^ ]*\) *\([^ ]*\) *\([^ ]*\) *\(.*\)/   \1 \2 \3: \4/p' |
  sed 's/: set /:\n     set /; s/; /\n     /g'

# -- check the results
status=0
expect() { # FILE KEY VALUE
  [ "$(saw "$1" "$2")" = "$3" ] || {
    echo "install.sh --demo: $1: $2 is '$(saw "$1" "$2")', expected '$3'" >&2
    status=1
  }
}
for way in first exec; do
  expect "$plain.$way" gpus all
  expect "$plain.$way" bundle /tmp/mine.pem
  expect "$plain.$way" trust "an attacker's CA"
  expect "$guarded.$way" gpus GPU-8a56a4bc
  expect "$guarded.$way" bundle /etc/ssl/certs/ca-certificates.crt
  expect "$guarded.$way" trust "the company's CA"
  expect "$guarded.$way" mount "/etc/ssl ro"
done
[ ! -s "$work/$plain.hook" ] || expect "$guarded.hook" hook unset
[ -z "$podman" ] || [ "$(cat "$work/$guarded.token")" = unset ] || {
  echo "install.sh --demo: an image got HF_TOKEN of the node" >&2
  status=1
}
grep -q '"event":"container.edited"' "$work/node/events.jsonl" || {
  echo "install.sh --demo: the event log has no event container.edited" >&2
  status=1
}
if [ $status -eq 0 ]; then
  printf '\nAll results are as expected. Nothing on this node was changed, and all temporary files are removed.\n'
fi
exit $status
