#!/bin/sh
# A stand-in for k3s and RKE2: generates containerd's config.toml from a template as they do (writeContainerdConfig in
# k3s' pkg/agent/containerd/config.go, 2a1e2e8c), starts the real containerd with it alone, and ends with it. There is no
# kubelet.
#
#   k3s.sh DIRECTORY PROGRAMS     /var/lib/rancher/k3s, with base.toml, the base template as it is rendered; the
#                                 directory of containerd and ctr
set -eu
directory=$1 programs=$2
etc=$directory/agent/etc/containerd
template=$etc/config-v3.toml.tmpl
mkdir -p "$etc" /run/k3s/containerd

if [ -e "$template" ]; then
  sed -e 's|{{/\*[^*]*\*/}}||' -e 's|{{ "\\n" }}||' -e "/{{ template \"base\" . }}/{r $directory/base.toml
    d}" "$template"
else
  cat "$directory/base.toml"
fi > "$etc/config.toml"

[ ! -L /run/cgroup1.namespace ] || enter="nsenter --mount=/run/cgroup1.namespace"
# shellcheck disable=SC2086  # words
${enter-} "$programs/containerd" -c "$etc/config.toml" &
child=$!
trap 'kill -KILL "$child"' TERM
until "$programs/ctr" --address /run/k3s/containerd/containerd.sock version > /dev/null 2>&1; do
  kill -0 "$child" 2> /dev/null || exit 1
  sleep 0.1
done
systemd-notify --ready
wait "$child" || exit 1
