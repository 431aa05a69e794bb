#!/bin/sh
# The program of the chart's node pods (docs/kubernetes.md). It needs a privileged pod with hostPID, and systemd on the
# node.
#
#   node.sh run [OPTION…]   run `reassert node install OPTION…` and `reassert node verify`, then copy each new policy of
#                           the ConfigMap to the node; with STATE=absent run `reassert node uninstall` instead
#   node.sh ready           the readiness probe: 0 if run has succeeded, else prints the problem
# shellcheck disable=SC2016  # text in single quotes is for the node's shell
set -eu

: "${STATE:=present}" "${INTERVAL:=15}" "${VERIFY_EXCEPT=rule/*}"
image=/opt/reassert                   # the frozen program in this image
policy=/policy/policy.yaml            # from the ConfigMap; if it is missing, nodes keep their own
work=/run/reassert                    # state of this pod
there=/var/lib/reassert-kubernetes    # directory of these pods on the node, removed by STATE=absent
installed=${PREFIX:-/opt}/reassert/reassert # where `reassert node install` puts the program
in_force=/etc/reassert/policy.yaml
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

# Replace the node's policy by the ConfigMap's (atomically, by rename), if `reassert policy check` finds no error in it.
copy_policy() {
  [ -e "$policy" ] || return 0
  cp "$policy" "$work/candidate" || return 1 # a copy, since kubelet may replace the file meanwhile
  if node cat "$in_force" 2>/dev/null | cmp -s - "$work/candidate"; then
    rm -f "$work/refused"
    return 0
  fi
  ! cmp -s "$work/candidate" "$work/refused" || return 1
  node sh -ec 'umask 022; mkdir -p "${1%/*}"; cat > "$1.candidate"; sync "$1.candidate"' sh "$in_force" \
    < "$work/candidate" || return 1
  if ! node "$there/program/reassert" policy check "$in_force.candidate" >&2; then
    node rm -f "$in_force.candidate"
    mv "$work/candidate" "$work/refused"
    say "the ConfigMap's policy has errors, see above: the node keeps its policy"
    return 1
  fi
  node mv -f "$in_force.candidate" "$in_force" || return 1
  rm -f "$work/refused"
  say "$in_force is now the ConfigMap's policy"
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
  put_program || stay "the program could not be copied to $there on the node, or does not run there"
  case $STATE in
  absent) remove ;;
  present) install_and_keep "$@" ;;
  *) stay "STATE must be present or absent, not '$STATE'" ;;
  esac
}

install_and_keep() {
  copy_policy || node test -e "$in_force" ||
    stay "the node has no policy yet and the ConfigMap's has errors: nothing is wired"
  as_service "$there/program/reassert" node install "$@" || stay "reassert node install failed, see this pod's log"
  verify "$@" || stay "reassert node verify failed, see this pod's log"
  say "wired"
  touch "$work/done"
  while :; do
    sleep "$INTERVAL"
    copy_policy || :
  done
}

# Run hostile containers under every handler. With --runtime-class, the other handlers are meant to be unprotected, so
# nothing is verified.
verify() {
  case " $*" in
  *" --runtime-class="*) return 0 ;;
  esac
  set -f # the parts are patterns for `node verify`, not for the shell
  set --
  for part in $VERIFY_EXCEPT; do set -- "$@" "--except=$part"; done
  set +f
  as_service "$installed" node verify "$@" && return 0
  [ "$status" -eq 3 ] || return 1 # 3: nothing to verify, as in Audit mode
  touch "$work/unverified"
}

remove() {
  as_service "$there/program/reassert" node uninstall || stay "reassert node uninstall failed, see this pod's log"
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
  if [ "$status" -eq 4 ]; then # `node status`: the policy enforces nothing, or newer settings are available
    case $said in *"NOT ENFORCED"*) reason=NothingToVerify ;; esac
    status=0
  fi
  [ "$STATE" = present ] || reason=Removed
  [ "$status" -eq 0 ] || reason=NotReady
  # Of `node status` its state and problems: the rest has times and counts, and would be told at each probe.
  short=$(printf '%s\n' "$said" | sed -n -e 's/^state  *//p' -e 's/^! //p')
  printf '%s %s\n' "$reason" "$(printf %s "${short:-$said}" | sed '$!s/$/; /' | tr -d '\n')" > "$work/state.new"
  mv "$work/state.new" "$work/state"
  [ "${FLEET:-false}" = false ] || setsid "${0%/*}/facts.sh" > "$work/facts.log" 2>&1 < /dev/null & # it outlasts the probe
  [ -z "$said" ] || printf '%s\n' "$said"
  return "$status"
}

problem() {
  if [ -e "$work/problem" ]; then
    cat "$work/problem"
  elif [ ! -e "$work/done" ]; then
    echo "not finished yet, see this pod's log"
  elif [ -e "$work/refused" ]; then
    echo "the ConfigMap's policy has errors, the node keeps its policy; see this pod's log"
  elif [ "$STATE" = absent ]; then
    return 0
  else
    found=0
    shown=$(node "$installed" node status 2>&1) || found=$?
    [ "$found" -ne 0 ] || return 0
    printf '%s\n' "$shown"
    [ "$found" -ne 4 ] || return 4
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
