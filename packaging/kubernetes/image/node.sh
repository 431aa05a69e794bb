#!/bin/sh
# The program of the chart's node pods (docs/kubernetes.md). It needs a privileged pod with hostPID, and systemd on the
# node.
#
#   node.sh run [OPTION…]   copy the CA bundle and the policy to the node, run `reassert install OPTION…` and
#                           `reassert verify`, then keep both as the pod's volumes have them
#                           STATE=absent: run `reassert uninstall` instead
#                           STATE empty, as in a first roll-out: leave a node alone that is not wired
#   node.sh ready           the readiness probe: 0 if run has succeeded, else prints the problem
#
# While the node has /etc/reassert/hold, nothing is changed there, except by STATE=absent.
# shellcheck disable=SC2016  # text in single quotes is for the node's shell
set -eu

: "${STATE:=}" "${INTERVAL:=15}" "${VERIFY_EXCEPT=rule/*}" "${TRUST_STORE:=company}" "${CHECK=--node}"
image=/opt/reassert                   # the frozen program in this image
units=/usr/local/share/reassert       # units of this image
policy=/policy/policy.yaml            # from the ConfigMap; if it is missing, nodes keep their own
bundle=/trust                         # directory of CA bundles; if it is missing, nodes keep their own CAs
work=/run/reassert                    # state of this pod
there=/var/lib/reassert-kubernetes    # directory of these pods on the node, removed by STATE=absent
installed=/opt/reassert/reassert # where `reassert install` puts the program
in_force=/etc/reassert/policy.yaml
hold=/etc/reassert/hold               # docs/break-glass.md
cas=/etc/reassert/trust.d
at=""                                 # instance of the trust store's units
if [ "$TRUST_STORE" != company ]; then cas=$cas/$TRUST_STORE at=@$TRUST_STORE; fi
cas=$cas/kubernetes.pem               # the bundle on the node
unit=reassert-kubernetes.service

say() { echo "node.sh: $*" >&2; }

# Run a command in the node's mount namespace, without this pod's environment.
node() {
  nsenter --target 1 --mount -- env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$@"
}

# Run a command as a transient service of the node's systemd. In this pod's cgroup it would be killed with the pod, or
# by an engine that stops its containers when it restarts.
as_service() {
  node rm -f "$there/log"
  status=0
  node systemd-run --quiet --wait --collect --unit="$unit" --property=StandardOutput="file:$there/log" -- "$@" || status=$?
  node cat "$there/log" >&2 || :
  return "$status"
}

wait_for_earlier_pod() {
  until node systemctl show --property=ActiveState "$unit" | grep -q -x -e ActiveState=inactive -e ActiveState=failed; do
    say "waiting for $unit, which an earlier pod started"
    sleep 5
  done
}

put_program() {
  tar -C "$image" -c . | node sh -ec 'rm -rf "$1/program"; mkdir -p -m 755 "$1" "$1/program"
    tar -C "$1/program" -x --no-same-owner' sh "$there" &&
    node "$there/program/reassert" --version >&2
}

# Write standard input to a file of the node, by rename.
put() {
  node sh -ec 'umask 022; mkdir -p "${1%/*}"; cat > "$1.new"; sync "$1.new"; mv -f "$1.new" "$1"' sh "$1"
}

# Note that a policy or bundle ($1) is not taken, and why, for the readiness probe; log it once.
refuse() {
  { echo "$2"; cat "$work/said"; } > "$work/refused"
  cmp -s "$work/refused" "$work/refused-$1" || cat "$work/refused" >&2
  mv "$work/refused" "$work/refused-$1"
}

# Replace the node's policy by the ConfigMap's (atomically, by rename), if it has no error and the node has every file
# that it names. While it has not, each call looks again.
copy_policy() {
  [ -e "$policy" ] || return 0
  if node cat "$in_force" 2>/dev/null | cmp -s - "$policy"; then
    rm -f "$work/refused-policy"
    return 0
  fi
  put "$in_force.candidate" < "$policy" || return 1
  # shellcheck disable=SC2086  # empty: no option
  if ! node "$there/program/reassert" policy check $CHECK "$in_force.candidate" > "$work/said" 2>&1; then
    node rm -f "$in_force.candidate"
    kept="the node keeps its policy"
    node test -e "$in_force" || kept="the node has no other policy, so nothing is wired"
    refuse policy "the ConfigMap's policy has errors, or names files that the node lacks: $kept"
    return 1
  fi
  cat "$work/said" >&2
  node mv -f "$in_force.candidate" "$in_force" || return 1
  rm -f "$work/refused-policy"
  say "$in_force is now the ConfigMap's policy"
}

# Replace the node's copy of the bundle by the pod's and build the trust store, before a policy can need it. A bundle that
# is empty or broken, of which no store can be made alone, is not copied.
copy_bundle() {
  [ -d "$bundle" ] || return 0
  # trust-manager's ConfigMap may have stores in other formats beside the PEM file.
  grep -l -e '-----BEGIN' -r "$bundle/..data" | sort | xargs -r sed -s '$a\' > "$work/bundle" || return 1
  if [ -e "$work/built" ] && node cat "$cas" 2>/dev/null | cmp -s - "$work/bundle"; then
    rm -f "$work/refused-bundle"
    return 0
  fi
  ! { [ -e "$work/refused-bundle" ] && cmp -s "$work/bundle" "$work/bundle.refused"; } || return 1
  if ! try_bundle > "$work/said" 2>&1; then
    mv "$work/bundle" "$work/bundle.refused"
    refuse bundle "the CA bundle is empty or broken: the node keeps its trust store"
    return 1
  fi
  built=0
  rm -f "$work/built" # a build that fails is tried again, although the node has this bundle
  # The path unit, or a build that runs still, would refuse to leave out certificates that the store has.
  node systemctl --quiet stop "reassert-trust$at.path" "reassert-trust$at.service" 2>/dev/null || :
  build_bundle > "$work/said" 2>&1 || built=$?
  node systemctl --quiet start "reassert-trust$at.path" "reassert-trust$at.service" 2>/dev/null || : # once installed
  if [ "$built" -ne 0 ]; then
    refuse bundle "the trust store could not be built"
    return 1
  fi
  cat "$work/said" >&2
  touch "$work/built"
  rm -f "$work/refused-bundle"
}

try_bundle() {
  put "$there/bundle.pem" < "$work/bundle" || return 1
  node rm -rf "$there/bundle"
  node "$there/program/reassert" trust build --no-system --add "$there/bundle.pem" --out "$there/bundle"
}

build_bundle() {
  put "$cas" < "$work/bundle" && node "$there/program/reassert" trust build --allow-removal "$TRUST_STORE"
}

# Units that build the store again when the system's roots change, or a file in trust.d.
put_trust_units() {
  [ -d "$bundle" ] || return 0
  for kind in service timer path; do
    sed "s|/usr/local/bin/reassert|$installed|" "$units/reassert-trust.$kind" |
      put "/etc/systemd/system/reassert-trust${at:+@}.$kind" || return 1
  done
  node systemctl daemon-reload && node systemctl --quiet enable --now "reassert-trust$at.path" "reassert-trust$at.service"
}

# Of every store, since trust.store may have changed. Units in /etc that run another program are an administrator's.
remove_trust() {
  node sh -ec 'cd /etc/systemd/system
    for stem in reassert-trust. reassert-trust@; do
      name=${stem%.}
      grep -q -s -F "$1" "$name.service" || continue
      for unit in *.wants/"$stem"*; do
        [ ! -h "$unit" ] || systemctl --quiet disable --now "${unit##*/}" || :
      done
      rm -f "$name.path" "$name.timer" "$name.service"
    done
    systemctl daemon-reload
    for each in /etc/reassert/trust.d/*/kubernetes.pem /etc/reassert/trust.d/kubernetes.pem; do
      [ -e "$each" ] || continue
      rm "$each"
      rmdir "${each%/*}" 2> /dev/null || :
    done' sh "$installed" # the store stays: running containers have it mounted
}

# Report a failure and wait. There is no retry in a pod: it would restart the engine again and fail again.
stay() {
  say "$1"
  echo "$1" > "$work/problem"
  while :; do sleep 3600; done
}

run() {
  rm -f "$work"/*
  node test -d /run/systemd/system || stay "this node's init is not systemd; install reassert on it in another way"
  wait_for_earlier_pod
  case $STATE in
  absent) ;;
  present) wait_for_hold ;;
  "")
    wired || wait_for_turn
    wait_for_hold
    ;;
  *) stay "STATE must be present, absent or empty, not '$STATE'" ;;
  esac
  put_program || stay "the program could not be copied to $there on the node, or does not run there"
  if [ "$STATE" = absent ]; then remove; else install_and_keep "$@"; fi
}

# Whether `reassert install` has run on this node.
wired() {
  node test -x "$installed" || return 1
  status=0
  node "$installed" status > /dev/null 2>&1 || status=$?
  [ "$status" -ne 3 ]
}

# In a first roll-out all pods start at the same time. Once STATE is set, the DaemonSet replaces them by maxUnavailable.
wait_for_turn() {
  say "this node is not wired; waiting until the DaemonSet's env has STATE=present"
  touch "$work/waiting"
  while :; do sleep 3600; done
}

wait_for_hold() {
  while held; do sleep "$INTERVAL"; done
  rm -f "$work/hold"
}

# Whether an administrator of the node has asked for no changes. The readiness probe says so, until what the pod has is
# on the node again.
held() {
  node test -e "$hold" && touch "$work/hold"
}

install_and_keep() {
  copy_bundle || :
  until copy_policy || node test -e "$in_force"; do
    sleep "$INTERVAL"
    copy_bundle || :
  done
  install_and_verify "$@"
  put_trust_units || stay "the units of the trust store could not be installed, see this pod's log"
  while :; do
    sleep "$INTERVAL"
    ! held || continue
    waited=false
    [ ! -e "$work/refused-policy" ] || waited=true
    copy_bundle || :
    copied=true
    copy_policy || copied=false
    rm -f "$work/hold"
    # Of what `install` writes, some depends on the policy.
    if $copied && $waited; then install_and_verify "$@"; fi
  done
}

install_and_verify() {
  rm -f "$work/done" "$work/unverified"
  as_service "$there/program/reassert" install "$@" || stay "reassert install failed, see this pod's log"
  verify "$@" || stay "reassert verify failed, see this pod's log"
  say "wired"
  touch "$work/done"
}

# Run hostile containers under every handler. With --runtime-class, the other handlers are meant to be unprotected, so
# nothing is verified.
verify() {
  case " $*" in
  *" --runtime-class="*) return 0 ;;
  esac
  set -f # the parts are patterns for `verify`, not for the shell
  set --
  for part in $VERIFY_EXCEPT; do set -- "$@" "--except=$part"; done
  set +f
  as_service "$installed" verify "$@" && return 0
  case "$status" in
  3) touch "$work/unverified" ;; # there is nothing to verify, as in Audit mode
  4) ;;                          # warnings
  *) return 1 ;;
  esac
}

remove() {
  as_service "$there/program/reassert" uninstall --yes || stay "reassert uninstall failed, see this pod's log"
  remove_trust || stay "the units of the trust store could not be removed, see this pod's log"
  node rm -f "$in_force.candidate" # of a pod that ended while it checked the file
  if [ -e "$policy" ] && node cat "$in_force" 2>/dev/null | cmp -s - "$policy"; then
    node rm -f "$in_force" # written by this pod and not edited since
    node rmdir "${in_force%/*}" 2>/dev/null || :
  fi
  node rm -rf "$there"
  say "reassert is not wired into any engine of this node"
  touch "$work/done"
  while :; do sleep 3600; done
}

# Print the state as readiness probe, and write it for report.sh: a reason in one word, and a message.
ready() {
  status=0
  said=$(problem) || status=$?
  reason=Enforcing
  [ ! -e "$work/unverified" ] || reason=NothingToVerify
  if [ "$status" -eq 4 ]; then # the policy enforces nothing
    reason=NothingToVerify
    status=0
  fi
  [ "$STATE" != absent ] || reason=Removed
  [ ! -e "$work/waiting" ] || reason=Waiting
  [ "$status" -eq 0 ] || reason=NotReady
  printf '%s %s\n' "$reason" "$(printf %s "$said" | sed '$!s/$/; /' | tr -d '\n')" > "$work/state.new"
  mv "$work/state.new" "$work/state"
  [ "${FLEET:-false}" = false ] || setsid "${0%/*}/facts.sh" > "$work/facts.log" 2>&1 < /dev/null & # it outlasts the probe
  [ -z "$said" ] || printf '%s\n' "$said"
  return "$status"
}

problem() {
  if [ -e "$work/problem" ]; then
    cat "$work/problem"
  elif [ -e "$work/waiting" ]; then
    return 0
  elif [ -e "$work/hold" ]; then
    echo "the node has $hold: nothing is changed there until this file is removed"
  elif [ -e "$work/refused-policy" ]; then
    cat "$work/refused-policy"
  elif [ ! -e "$work/done" ]; then
    echo "not finished yet, see this pod's log"
  elif [ -e "$work/refused-bundle" ]; then
    cat "$work/refused-bundle"
  elif [ "$STATE" = absent ]; then
    return 0
  else
    found=0
    shown=$(node "$installed" status --output=condition 2>&1) || found=$?
    [ "$found" -ne 0 ] || return 0
    printf '%s\n' "${shown#* }"
    case $found,$shown in # 4: there are warnings only
    4,NothingToVerify*) return 4 ;;
    4,*) return 0 ;;
    esac
  fi
  return 1
}

verb=${1-}
[ $# -eq 0 ] || shift
case $verb in
run) run "$@" ;;
ready) ready ;;
*)
  sed -n '2,/^set -eu/s/^# \{0,1\}//p' "$0" | sed '$d' >&2
  exit 2
  ;;
esac
