#!/bin/sh
# A Debian root file system booted by its own systemd, in namespaces and cgroups of its own, for booted.py:
#
#   boot.sh hold NAME SCRATCH ROOT TOP PROGRAM [UNIT ...]
#   boot.sh run PID COMMAND ...
#
# `hold` lives until its standard input is closed and then takes away what it made, so nothing stays of a session that is
# killed. SCRATCH is the same inside and outside: in files/ what is copied over the root, in absent the paths of what
# is taken out of it, in pid then systemd's pid. TOP and PROGRAM, the repository and the frozen program, are at
# /src/reassert, read-only. UNITs do not start. `run` runs a command on that node.
#
# systemd wants cgroup v2 at /sys/fs/cgroup, and runtimes want controllers. Where the machine still has those in v1, the
# engines and `run` get a mount namespace in which /sys/fs/cgroup is v1.
set -eu
stage=$1
shift

fail() {
  echo "boot.sh: $*" >&2
  exit 1
}

has_v2() {
  [ "$(stat -f -c %T /sys/fs/cgroup)" = cgroup2fs ]
}

# The directories of the cgroup NAME in each v1 hierarchy.
v1_cgroups() { # NAME
  for hierarchy in /sys/fs/cgroup/*/cgroup.clone_children; do # which v2 has not
    hierarchy=${hierarchy%/*}
    [ -L "$hierarchy" ] || [ ! -d "$hierarchy" ] || echo "$hierarchy/$1"
  done
}

hold() { # NAME SCRATCH …
  name=$1 scratch=$2
  if has_v2; then
    v2=/sys/fs/cgroup
    read -r controllers < $v2/cgroup.controllers
    for controller in $controllers; do
      echo "+$controller" > $v2/cgroup.subtree_control || :
    done
  else
    v2=$scratch/cgroup2 # where the machine has it, if at all, tests/run.sh hides it
    mkdir "$v2"
    mount -t cgroup2 cgroup2 "$v2"
  fi
  mkdir "$v2/$name"
  for cgroup in $(v1_cgroups "$name"); do
    mkdir "$cgroup"
    for file in cpuset.cpus cpuset.mems; do # empty at first, and then no process may enter
      [ ! -e "$cgroup/$file" ] || cat "$cgroup/../$file" > "$cgroup/$file"
    done
  done
  {
    unshare --mount --pid --fork --net --uts --ipc sh "$0" enter "$v2" "$@" < /dev/null || :
    echo "boot.sh: the node has ended"
  } &
  cat > /dev/null
  [ ! -s "$scratch/pid" ] || kill -KILL "$(cat "$scratch/pid")" || :
  wait
  for cgroup in "$v2/$name" $(v1_cgroups "$name"); do
    for _ in 1 2 3 4 5 6 7 8 9 10; do # the kernel may still hold the last process
      find "$cgroup" -depth -type d -exec rmdir {} + 2> /dev/null && break
      sleep 0.2
    done
    [ ! -d "$cgroup" ] || fail "$cgroup is still in use"
  done
}

enter() { # V2 NAME SCRATCH …: first process of the pid namespace, still in the machine's cgroup namespace
  v2=$1 name=$2 scratch=$3
  read -r pid _ < /proc/self/stat # in the machine's own /proc
  echo "$pid" > "$scratch/pid"
  for cgroup in "$v2/$name" $(v1_cgroups "$name"); do
    echo 0 > "$cgroup/cgroup.procs"
  done
  exec unshare --cgroup sh "$0" start "$@"
}

start() { # V2 NAME SCRATCH ROOT TOP PROGRAM [UNIT ...]
  v2=$1 name=$2 scratch=$3 root=$4 top=$5 program=$6
  shift 6
  mount --make-rprivate /
  mkdir "$scratch/node"
  mount -t tmpfs tmpfs "$scratch/node"
  cd "$scratch/node"
  mkdir upper work root
  mount -t overlay overlay -o "lowerdir=$root,upperdir=upper,workdir=work" root
  cd root
  mkdir -p ".$scratch" src/reassert old
  mount --bind "$scratch" ".$scratch"
  mount --bind -o ro "$top" src/reassert
  mount --bind -o ro "$program" src/reassert/dist/reassert
  mount -t proc proc proc
  mount --bind proc/sys/net proc/sys/net
  mount --rbind proc/sys proc/sys
  mount -o remount,bind,ro proc/sys # most of it is the machine's
  mount -t sysfs -o ro sysfs sys
  mount -t tmpfs -o mode=755 tmpfs dev
  for device in null zero full random urandom tty; do
    touch "dev/$device"
    mount --bind "/dev/$device" "dev/$device"
  done
  mkdir dev/pts dev/shm dev/mqueue
  mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
  mount -t tmpfs tmpfs dev/shm
  ln -s pts/ptmx dev/ptmx
  ln -s /proc/self/fd dev/fd
  mount -t tmpfs -o nosuid,nodev,noexec,mode=755 tmpfs run
  for engine in containerd docker containers kubelet rancher; do # an overlay's upper directory cannot lie on an overlay
    mkdir -p "var/lib/$engine"
    mount -t tmpfs -o mode=711 tmpfs "var/lib/$engine"
  done
  touch etc/hosts etc/resolv.conf
  while read -r path; do
    rm ".$path"
  done < "$scratch/absent"
  cp -a "$scratch/files/." .
  units=run/systemd/system
  mkdir -p $units
  for unit; do
    ln -s /dev/null "$units/$unit"
  done
  if ! (echo -1 > /proc/self/oom_score_adj) 2> /dev/null; then
    mkdir run/programs
    mount -t tmpfs -o mode=755 tmpfs run/programs
    for program in usr/sbin/runc usr/bin/crun; do
      cp -p "$program" run/programs/
      mount --bind "$top/tests/e2e/node/restricted-runtime.sh" "$program"
    done
  fi
  mount --bind "$v2/$name" sys/fs/cgroup
  has_v2 || show_v1

  pivot_root . old
  umount -l old
  rmdir old
  mount --make-rshared /
  if [ -d /run/cgroup1 ]; then
    # Not pinned to a file, which Linux 6.18 sometimes refuses: its mount namespaces are not numbered in their order.
    # shellcheck disable=SC2016  # the inner shell expands $$
    unshare --mount --propagation slave sh -ec 'mount --rbind /run/cgroup1 /sys/fs/cgroup
      ln -s "/proc/$$/ns/mnt" /run/cgroup1.namespace
      exec sleep infinity' &
    until [ -e /run/cgroup1.namespace ]; do
      sleep 0.05
    done
  fi
  exec env -i container=reassert-tests /lib/systemd/systemd --unit=multi-user.target --log-target=console --show-status=no
}

show_v1() {
  mkdir run/cgroup1
  mount -t tmpfs -o mode=755 tmpfs run/cgroup1
  for cgroup in $(v1_cgroups "$name"); do
    hierarchy=${cgroup%/*}
    hierarchy=run/cgroup1/${hierarchy##*/}
    mkdir "$hierarchy"
    mount --bind "$cgroup" "$hierarchy"
  done
  for link in /sys/fs/cgroup/*; do # cpu -> cpu,cpuacct
    [ ! -L "$link" ] || cp -P "$link" run/cgroup1/
  done
  for engine in containerd docker; do
    unit=usr/lib/systemd/system/$engine.service
    [ -e $unit ] || continue
    mkdir "$units/$engine.service.d"
    sed -n 's|^ExecStart=|&\n&/usr/bin/nsenter --mount=/run/cgroup1.namespace |p; 1i [Service]' $unit \
      > "$units/$engine.service.d/cgroup1.conf"
  done
  # The agent answers nobody who is in another mount namespace. Its options are those of `install`'s own drop-in.
  mkdir "$units/reassert-agent.service.d"
  cat > "$units/reassert-agent.service.d/zz-cgroup1.conf" << 'END'
[Service]
ExecStart=
ExecStart=/usr/bin/nsenter --mount=/run/cgroup1.namespace /bin/sh -c 'for at in /opt/reassert /usr/lib/reassert; do [ ! -x $at/reassert ] || exec $at/reassert agent $LOG $NRI $METRICS $OPTIONS; done'
END
}

run() { # PID COMMAND …
  pid=$1
  shift
  node=/proc/$pid/root
  mkdir -p "$node/sys/fs/cgroup/shell"
  for cgroup in "$node/sys/fs/cgroup/shell" "$node"/run/cgroup1/*; do
    [ ! -d "$cgroup" ] || [ -L "$cgroup" ] || echo 0 > "$cgroup/cgroup.procs"
  done
  [ ! -L "$node/run/cgroup1.namespace" ] || set -- nsenter --mount=/run/cgroup1.namespace "$@"
  exec nsenter --target "$pid" --mount --uts --ipc --net --pid --cgroup "$@"
}

"$stage" "$@"
