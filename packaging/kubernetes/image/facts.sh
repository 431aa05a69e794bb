#!/bin/sh
# Writes what the NodeEnforcement of this node says (docs/kubernetes.md) to /run/reassert/facts.json, for report.sh:
# after a change, and every ten minutes. node.sh starts it at each readiness probe, after it has written the state. A
# fact that cannot be looked at is left out. Needs jq, and what node.sh needs.
# shellcheck disable=SC2016  # text in single quotes is for jq and the node's shell
set -eu

: "${EVERY:=600}" "${WORK:=/run/reassert}" "${POLICY:=/policy/policy.yaml}" "${LIMIT:=120}"
installed=${PREFIX:-/opt}/reassert/reassert
state=${STATE_DIRECTORY:-/var/lib/reassert}

exec 9> "$WORK/facts.lock"
flock --nonblock 9 || exit 0 # an earlier look is not finished

node() {
  nsenter --target 1 --mount -- env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$@"
}

# JSON of a command of reassert. Its exit status is about the node; that it did not finish is to be seen in the JSON.
reassert() { node timeout "$LIMIT" "$installed" "$@" 2> "$WORK/facts.log" || :; }

wanted() {
  if [ -e "$POLICY" ]; then
    sha256sum < "$POLICY"
  else
    node sha256sum /etc/reassert/policy.yaml 2> "$WORK/facts.log" || :
  fi | cut -d ' ' -f 1
}

# What a look is repeated for at once. wired.json is written each minute, and begins with the time.
signs() {
  cat "$WORK/state"
  wanted
  node sh -c 'cd "$1" && stat --format "%n %Y %s" etc-reassert-policy.yaml.json last-verify.json trust/*/live/manifest.json
    sed "s/^.[0-9]*//" wired.json' sh "$state" 2> "$WORK/facts.log" || :
}

signs > "$WORK/facts.signs.new"
if cmp -s "$WORK/facts.signs.new" "$WORK/facts.signs" &&
  [ $(($(date +%s) - $(stat --format %Y "$WORK/facts.signs"))) -lt "$EVERY" ]; then
  exit 0
fi
mv "$WORK/facts.signs.new" "$WORK/facts.signs"

now=$(date -u +%Y-%m-%dT%H:%M:%SZ)
read -r reason said < "$WORK/state" || :
status=$(reassert node status --output=json | jq -c 'select(.engines) | {version, policy, problems, remarks, engines}') || status=
audit=$(reassert audit --output=json | jq -c '.counts // empty') || audit=
day=$(reassert report --since=24h --output=json | jq -c 'select(.workloads) | [.workloads[].outcomes]
  | {refusals: (map(.refused) | add // 0), overrides: (map(.overridden) | add // 0)}') || day=
verify=$(node cat "$state/last-verify.json" 2> "$WORK/facts.log" | jq -c .) || verify=
stores=$({ node sh -c '[ -d "$1" ] || exit 0
    cd "$1"
    for each in */live/manifest.json; do [ ! -e "$each" ] || { echo "\"${each%%/*}\""; cat "$each"; }; done' sh "$state/trust" \
    2> "$WORK/facts.log" || echo broken; } | jq -cn '
  [foreach inputs as $i ({}; if $i | type == "string" then {name: $i} else . + {all: $i} end;
    select(.all) | {name, generation: .all.generation, builtAt: .all.built, certificates: (.all.certificates | length)})]') || stores=

jq -n --arg now "$now" --arg reason "$reason" --arg said "$said" --arg kernel "$(uname -r)" --arg wanted "$(wanted)" \
  --argjson status "${status:-null}" --argjson audit "${audit:-null}" --argjson day "${day:-null}" \
  --argjson verify "${verify:-null}" --argjson stores "${stores:-null}" '
  def hash: if . then {sha256: ., hash: .[:12]} else null end;
  def known: with_entries(select(.value != null and .value != "" and .value != {}));
  def names(f): [.handlers[]? | select(f) | .name];
  ($status.policy // {}) as $policy
  | [$status.engines // {} | to_entries[] | .value + {name: .key}] as $engines
  | [$engines[] | select(.adapters | length > 0)] as $ours
  | [$engines[] | {name, version: .title, running, adapters, wired: names(.wired != []),
      notWired: names(.wired == [] and .note != "not known"), notKnown: names(.note == "not known")}] as $shown
  | [$shown[] | select(.adapters | length > 0)] as $of_ours
  | [$verify // {} | to_entries[] | {engine: .key, at: (.value[0] | todate), status: .value[1]}] as $verified
  | {
      lookedAt: $now,
      state: $reason,
      message: (if $status then [$status.problems[], $status.remarks[]] | join("; ") else $said end | .[:1024]),
      policy: {
        wanted: ($wanted | select(. != "") // null | hash),
        inForce: (if $policy.sha256 then ($policy.sha256 | hash) + ({since: $policy.since, mode: $policy.mode,
          enforcedRules: $policy.rules.enforced, triedRules: $policy.rules.tried} | known) else null end),
        heldBack: ($policy.heldBack // "" | .[:1024])
      } | known,
      handlers: (if $status and ($ours | length > 0) then {wired: ([$of_ours[].wired[]] | length),
        notWired: ([$of_ours[].notWired[]] | length), notKnown: ([$of_ours[].notKnown[]] | length)} else null end),
      engine: ($ours | map(.title) | join(", ")),
      engines: (if $status then $shown else null end),
      verify: (if $verified == [] then null else {
        at: ($verified | map(.at) | min),
        result: ($verified | map(.status) | if any(. == 1) then "NotProtected"
          elif any(. == 3) then "NothingToVerify" elif all(. == 0) then "Protected" else "Unknown" end),
        engines: [$verified[] | {engine, at, exitStatus: .status}]
      } end),
      containers: (if $audit then {inPolicy: $audit["in-policy"], drifted: $audit.drifted, exempt: $audit.exempt,
        unknown: $audit.unknown} | known else null end),
      lastDay: $day,
      trustStores: $stores,
      kernel: $kernel,
      reassert: $status.version
    } | known' > "$WORK/facts.new"
mv "$WORK/facts.new" "$WORK/facts.json"
