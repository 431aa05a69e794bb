#!/bin/bash
# The program of the chart's NRI pods (docs/kubernetes.md). The node's root file system is at /host.
#
#   nri.sh run [OPTION…]   run `reassert nri OPTION…`, once the node has the program and a policy, and no service of
#                          the node runs the plugin
#   nri.sh probe PATTERN   the probes: 0 if a line of the plugin's metrics starts with PATTERN
#   nri.sh metrics         forward port 9465, of POD_IP's address family, to the plugin's metrics on the loopback
set -eu

: "${METRICS_PORT:=9464}" # the plugin's metrics on the pod's loopback

case ${1-} in
run)
  shift
  echo "nri.sh: waiting until the node has the program and a policy, and no service of the node runs the plugin"
  # Never two plugins on a node: NRI refuses a container in which two plugins set the same name.
  until [ -x /host/opt/reassert/reassert ] && [ -e /host/etc/reassert/policy.yaml ] &&
    [ ! -e /host/etc/systemd/system/reassert-nri.service ] &&
    [ ! -e /host/etc/systemd/system/reassert-agent.service.d/nri.conf ]; do
    sleep 1
  done
  # A decision reads the node's files (mount sources, device nodes, CDI specs, kubelet's checkpoint), so the paths must
  # be the node's.
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
  sed -n '2,/^set -eu/s/^# \{0,1\}//p' "$0" >&2
  exit 2
  ;;
esac
