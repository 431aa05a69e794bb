#!/bin/sh
# The program of the node pods' unprivileged container `report` (docs/kubernetes.md): tells the API server what node.sh
# has written to /run/reassert/state, "REASON MESSAGE". Needs kubectl.
#
#   NODE        the node's name
#   CONDITION   true: keep the node condition ReassertEnforcing
#   TAINT       key of a taint that is removed when the node is wired and verified; "": none
set -eu

: "${NODE:?}" "${CONDITION:=false}" "${TAINT:=}" "${INTERVAL:=10}" "${STATE_FILE:=/run/reassert/state}"
told=

say() { echo "report.sh: $*" >&2; }

condition() { # STATUS REASON MESSAGE
  now=$(date -u +%Y-%m-%dT%H:%M:%SZ)
  text=$(printf %s "$3" | tr -d '"\\' | tr -c '[:print:]' ' ' | cut -c 1-400)
  kubectl patch node "$NODE" --subresource=status --type=strategic --patch "{\"status\": {\"conditions\": [
    {\"type\": \"ReassertEnforcing\", \"status\": \"$1\", \"reason\": \"$2\", \"message\": \"$text\",
     \"lastTransitionTime\": \"$now\", \"lastHeartbeatTime\": \"$now\"}]}}"
}

# kubectl fails for a taint that is not there.
untaint() {
  kubectl get node "$NODE" --output 'jsonpath={.spec.taints[*].key}' | tr ' ' '\n' | grep -q -x "$TAINT" || return 0
  kubectl taint node "$NODE" "$TAINT-"
}

read_state() {
  reason=Starting message=
  [ ! -e "$STATE_FILE" ] || read -r reason message < "$STATE_FILE" || :
}

# Until the state changes, INTERVAL seconds at most: Helm deletes this pod seconds after its node was unwired.
pause() {
  before="$reason $message" left=$INTERVAL
  while [ "$left" -gt 0 ] && [ "$reason $message" = "$before" ]; do
    sleep 1
    left=$((left - 1))
    read_state
  done
}

read_state
while :; do
  case $reason in
  Enforcing) status=True ;;
  *) status=False ;;
  esac
  if [ "$CONDITION" = true ] && [ "$told" != "$status $reason $message" ]; then
    if condition "$status" "$reason" "$message"; then
      told="$status $reason $message"
    else
      say "the condition could not be set"
    fi
  fi
  if [ -n "$TAINT" ]; then
    case $reason in
    # In Audit mode the node is wired; what the policy is to enforce is its own affair.
    Enforcing | NothingToVerify) untaint || say "the taint could not be removed" ;;
    esac
  fi
  pause
done
