#!/bin/sh
# Runs kubelet on a booted node (cluster.py): kubelet.sh OPTION…
#
# kubelet changes settings of the kernel, which is the machine's, and does not start where it cannot. Here it finds them
# as it wants them.
set -eu
[ -e /dev/kmsg ] || mknod /dev/kmsg c 1 11
mkdir -p /run/settings
for each in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1; do
  setting=/proc/sys/${each%=*} value=${each#*=}
  shown=/run/settings/${setting##*/}
  [ "$(cat "$setting")" = "$value" ] || { echo "$value" > "$shown" && mount --bind "$shown" "$setting"; }
done
set -- /usr/local/bin/kubelet "$@"
[ ! -L /run/cgroup1.namespace ] || set -- nsenter --mount=/run/cgroup1.namespace "$@"
exec "$@"
