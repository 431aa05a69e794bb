#!/bin/sh
# The program of the node pods' unprivileged container `report` (docs/kubernetes.md): tells the API server what node.sh
# has written to /run/reassert/state, "REASON MESSAGE", and facts.sh to /run/reassert/facts.json. Needs kubectl.
#
#   NODE        the node's name
#   CONDITION   true: keep the node condition ReassertEnforcing
#   TAINT       key of a taint that is removed when the node is wired and verified; "": none
#   FLEET       true: keep the node's NodeEnforcement
set -eu

: "${NODE:?}" "${CONDITION:=false}" "${TAINT:=}" "${FLEET:=false}" "${INTERVAL:=10}" "${HEARTBEAT:=600}" "${STALE:=300}"
: "${STATE_FILE:=/run/reassert/state}" "${FACTS_FILE:=/run/reassert/facts.json}"
told='' told_status='' heartbeat=0 sent='' made=false retry=0

say() { echo "report.sh: $*" >&2; }

utc() { date -u -d "@$1" +%Y-%m-%dT%H:%M:%SZ; }

# The heartbeat is the time at which node.sh looked, and the transition that of a new status.
condition() { # STATUS REASON MESSAGE
  text=$(printf %s "$3" | tr -d '"\\' | tr -c '[:print:]' ' ' | cut -c 1-400)
  [ -n "$told_status" ] || told_status=$(kubectl get node "$NODE" --subresource=status \
    --output 'jsonpath={.status.conditions[?(@.type=="ReassertEnforcing")].status}') || return 1
  transition=
  [ "$told_status" = "$1" ] || transition="\"lastTransitionTime\": \"$(utc "$now")\", "
  kubectl patch node "$NODE" --subresource=status --type=strategic --patch "{\"status\": {\"conditions\": [
    {\"type\": \"ReassertEnforcing\", \"status\": \"$1\", \"reason\": \"$2\", \"message\": \"$text\",
     $transition\"lastHeartbeatTime\": \"$(utc "$looked")\"}]}}" > /dev/null || return 1
  told="$1 $2 $3" told_status=$1 heartbeat=$looked
}

# kubectl fails for a taint that is not there.
untaint() {
  kubectl get node "$NODE" --output 'jsonpath={.spec.taints[*].key}' | tr ' ' '\n' | grep -q -x "$TAINT" || return 0
  kubectl taint node "$NODE" "$TAINT-"
}

apply() { # METADATA STATUS OPTION…
  object="{\"apiVersion\": \"reassert.internal/v1alpha1\", \"kind\": \"NodeEnforcement\",
    \"metadata\": {\"name\": \"$NODE\"$1}$2}"
  shift 2
  printf %s "$object" | kubectl apply --server-side --force-conflicts --field-manager=reassert --validate=false \
    --filename=- "$@" > /dev/null
}

# The object belongs to the Node, so it goes with it.
enforcement() {
  if [ "$made" = false ]; then
    uid=$(kubectl get node "$NODE" --output 'jsonpath={.metadata.uid}') || return 1
    apply ", \"ownerReferences\": [{\"apiVersion\": \"v1\", \"kind\": \"Node\", \"name\": \"$NODE\", \"uid\": \"$uid\"}]" '' ||
      return 1
    made=true
  fi
  apply '' ", \"status\": $1" --subresource=status && return 0
  made=false # it may have been deleted
  return 1
}

read_state() {
  now=$(date +%s)
  reason=Starting message='' looked=$now
  if [ -e "$STATE_FILE" ]; then
    read -r reason message < "$STATE_FILE" || :
    looked=$(stat -c %Y "$STATE_FILE")
  fi
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
  if [ $((now - looked)) -gt "$STALE" ]; then
    status=Unknown reason=NotLooked message="node.sh last looked at the node at $(utc "$looked")"
  fi
  if [ "$CONDITION" = true ] &&
    { [ "$told" != "$status $reason $message" ] || [ $((looked - heartbeat)) -ge "$HEARTBEAT" ]; }; then
    condition "$status" "$reason" "$message" || say "the condition could not be set"
  fi
  if [ -n "$TAINT" ]; then
    case $reason in
    # In Audit mode the node is wired; what the policy is to enforce is its own affair.
    Enforcing | NothingToVerify) untaint || say "the taint could not be removed" ;;
    esac
  fi
  if [ "$FLEET" = true ] && [ -e "$FACTS_FILE" ] && [ "$now" -ge "$retry" ]; then
    facts=$(cat "$FACTS_FILE")
    if [ "$facts" != "$sent" ]; then
      if enforcement "$facts"; then
        sent=$facts
      else
        say "the NodeEnforcement could not be written"
        retry=$((now + 60)) # all nodes may fail for the same reason
      fi
    fi
  fi
  pause
done
