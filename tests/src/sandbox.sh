# Holds the namespaces of one test cluster: mounts, processes, network, IPC and
# cgroups. Nothing in them reaches the host's network, users or /run, and
# everything in them ends when this script's standard input does, however the
# test ended.
#
#   sandbox.sh ROOT TARGET
set -u
root=$1 target=$2
name=${root##*/}

# Type, directory and options of the host's cgroup hierarchies.
hierarchies() {
  awk '$3 ~ /^cgroup2?$/ { print $3, $2, $4 }' /proc/mounts
}
export -f hierarchies

(
  # A cgroup of its own in each, which the cgroup namespace will call its root.
  while read -r _ dir _; do
    mkdir "$dir/$name"
    for file in cpuset.cpus cpuset.mems; do
      # Version 1 starts with none, and lets nothing in before there are some.
      if [ -e "$dir/$file" ] && [ ! -e "$dir/cgroup.controllers" ]; then
        cat "$dir/$file" >"$dir/$name/$file"
      fi
    done
    echo "$BASHPID" >"$dir/$name/cgroup.procs"
  done < <(hierarchies)

  exec unshare --cgroup --mount --propagation private --pid --fork --kill-child --mount-proc --net --ipc bash -c '
    set -eu
    root=$1 target=$2
    hierarchies >"$root/hierarchies"
    while read -r kind dir options; do
      umount --lazy "$dir"
      controllers=$(tr , "\n" <<<"$options" | grep -vxE "rw|nosuid|nodev|noexec|relatime|nsdelegate|.*_recursiveprot|xattr|release_agent=.*|clone_children" | paste -sd,) || true
      mount -t "$kind" ${controllers:+-o "$controllers"} "$kind" "$dir"
      echo "$dir/cgroup.procs"
    done <"$root/hierarchies" >"$root/cgroups"
    if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
      # Version 2 alone: processes live in leaves, controllers above them.
      mkdir /sys/fs/cgroup/programs
      echo 0 >/sys/fs/cgroup/programs/cgroup.procs
      sed "s/^/+/; s/ / +/g" /sys/fs/cgroup/cgroup.controllers >/sys/fs/cgroup/cgroup.subtree_control
      echo /sys/fs/cgroup/programs/cgroup.procs >"$root/cgroups"
    fi
    mount --bind "$root/etc/passwd" /etc/passwd
    mount --bind "$root/etc/group" /etc/group
    # So that users who cannot see into the repository can run what is built there.
    mount --bind "$target" "$root/target"
    mount -t tmpfs -o mode=0755 tmpfs /run
    mkdir -p /var/lib/cni
    mount -t tmpfs -o mode=0755 tmpfs /var/lib/cni
    busybox ip link set lo up
    echo ready
    while read -r _; do :; done
  ' sandbox "$root" "$target"
)

# What namespaces do not take with them.
hierarchies | while read -r _ dir _; do
  find "$dir/$name" -depth -type d -exec rmdir {} + 2>/dev/null
done
[ -n "${CARREL_TEST_KEEP-}" ] || rm -rf --one-file-system "$root"
