#!/bin/bash
# What the NRI pods of the chart do (docs/kubernetes.md). The node's root file system is at /host.
#
#   nri.sh run [OPTION…]   `reassert nri OPTION…`, once the node has the program and a policy, and no plugin of its own
#   nri.sh probe PATTERN   0 if a line of the plugin's metrics starts with PATTERN
#   nri.sh metrics         what the plugin serves on the loopback alone, on port 9465 of POD_IP's family
set -eu

: "${METRICS_PORT:=9464}" # on the pod's loopback

case ${1-} in
run)
  shift
  echo "nri.sh: starting when the node has the program and a policy, and its own reassert-nri.service is gone"
  # Two plugins that set one name: NRI refuses the container.
  until [ -x /host/opt/reassert/reassert ] && [ -e /host/etc/reassert/policy.yaml ] &&
    [ ! -e /host/etc/systemd/system/reassert-nri.service ]; do
    sleep 1
  done
  # A decision looks at the node's files (sources of mounts, device nodes, CDI specs, kubelet's checkpoint): they must
  # be where they are on the node.
  exec chroot /host /opt/reassert/reassert nri --metrics "127.0.0.1:$METRICS_PORT" "$@"
  ;;
probe)
  exec 3<> "/dev/tcp/127.0.0.1/$METRICS_PORT"
  printf 'GET /metrics HTTP/1.0\r\n\r\n' >&3
  grep -q "^$2" <&3
  ;;
metrics)
  family=4
  [[ $POD_IP != *:* ]] || family=6
  exec socat "TCP$family-LISTEN:9465,fork,reuseaddr,max-children=16" "TCP4:127.0.0.1:$METRICS_PORT"
  ;;
*)
  sed -n '2,/^set -eu/s/^# \{0,1\}//p' "$0" | sed '$d' >&2
  exit 2
  ;;
esac
