#!/bin/sh
# Writes what the NodeEnforcement of this node says (docs/kubernetes.md) to /run/reassert/facts.json, for report.sh:
# after a change, and every ten minutes. node.sh starts it at each readiness probe, after it has written the state. The
# program makes it of the node's status. Needs what node.sh needs.
set -eu

: "${EVERY:=600}" "${WORK:=/run/reassert}" "${POLICY:=/policy/policy.yaml}" "${LIMIT:=120}"
: "${INSTALLED:=/opt/reassert/reassert}"
state=${STATE_DIRECTORY:-/var/lib/reassert}

exec 9> "$WORK/facts.lock"
flock --nonblock 9 || exit 0 # an earlier look is not finished

node() {
  nsenter --target 1 --mount -- env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$@"
}

wanted() {
  if [ -e "$POLICY" ]; then
    sha256sum < "$POLICY"
  else
    node sha256sum /etc/reassert/policy.yaml 2> "$WORK/facts.log" || :
  fi | cut -d ' ' -f 1
}

# What a look is repeated for at once. The state has what is wrong, and so what the last `verify` found.
signs() {
  cat "$WORK/state"
  wanted
  # shellcheck disable=SC2016  # text in single quotes is for the node's shell
  node sh -c 'cd "$1" && stat --format "%n %Y %s" etc-reassert-policy.yaml.*.json trust/*/live/manifest.json' sh "$state" \
    2> "$WORK/facts.log" || :
}

signs > "$WORK/facts.signs.new"
if cmp -s "$WORK/facts.signs.new" "$WORK/facts.signs" &&
  [ $(($(date +%s) - $(stat --format %Y "$WORK/facts.signs"))) -lt "$EVERY" ]; then
  exit 0
fi
mv "$WORK/facts.signs.new" "$WORK/facts.signs"

read -r reason said < "$WORK/state" || :
# The exit status is about the node. A program that does not answer prints nothing.
node timeout "$LIMIT" "$INSTALLED" status --output=enforcement --state="$reason" --message="$said" --wanted="$(wanted)" \
  > "$WORK/facts.new" 2> "$WORK/facts.log" || :
if [ ! -s "$WORK/facts.new" ]; then
  said=$(printf %s "$said" | tr -d '"\\' | tr -c '[:print:]' ' ' | cut -c 1-1024)
  printf '{"lookedAt": "%s", "state": "%s", "message": "%s", "kernel": "%s"}\n' \
    "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$reason" "$said" "$(uname -r)" > "$WORK/facts.new"
fi
mv "$WORK/facts.new" "$WORK/facts.json"
