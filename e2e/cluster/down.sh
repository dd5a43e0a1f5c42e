#!/usr/bin/env bash
# End a node and remove all that it made: processes, network, control groups, state. Usage: down.sh [name]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/cluster.sh"
if pid=$(node_pid); then
  kill -9 "$pid"   # process 1 of its namespace: all others in it, containers too, end with it
  for _ in $(seq 100); do kill -0 "$pid" 2>/dev/null || break; sleep 0.1; done
fi
ip link del "$VETH" 2>/dev/null || true
for root in /sys/fs/cgroup/*/"$CGROUP" /sys/fs/cgroup/"$CGROUP"; do
  [ -d "$root" ] || continue
  for _ in $(seq 50); do   # a group can be removed only once its last process is gone
    find "$root" -depth -type d -exec rmdir {} + 2>/dev/null || true
    [ -d "$root" ] || break
    sleep 0.1
  done
  [ ! -d "$root" ] || echo "down.sh: could not remove $root" >&2
done
for _ in $(seq 20); do rm -rf "$STATE" 2>/dev/null && break; sleep 0.1; done
[ ! -e "$STATE" ] || { echo "down.sh: could not remove $STATE" >&2; exit 1; }
