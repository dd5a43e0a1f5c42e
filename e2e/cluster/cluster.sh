# Sourced by up.sh, down.sh and load.sh: what belongs to the cluster that $1 names (default: demo).
# Clusters live side by side: each has a slot, a slice of the addresses kept for benchmarks (198.18.0.0/15, nobody's).
name=${1:-${AGENTRUN_CLUSTER:-demo}}
[[ $name =~ ^[a-z][a-z0-9]{0,9}$ ]] || { echo "cluster name '$name': 1 to 10 lower-case letters and digits, a letter first" >&2; exit 2; }
cache=${AGENTRUN_CACHE:-$HOME/.cache/agentrun}
BIN=$cache/cluster/bin
STATE=${AGENTRUN_STATE:-$cache/state/$name}
VETH=ar-$name
CGROUP=agentrun-$name
KUBECONFIG=$STATE/etc/admin.kubeconfig

addresses() { # slot, 0 to 15
  local base=$(($1 * 16))
  HOST=198.18.$base.1 NODE=198.18.$base.2 LINK=198.18.$base.0/24
  PODS=198.18.$((base + 1)).0/24
  SERVICES=198.19.$base.0/20 API_SERVICE=198.19.$base.1 DNS_SERVICE=198.19.$base.10
}

choose_slot() { # demo and test have their own, anyone else takes the first that is free
  local slot
  case $name in demo) echo 0; return ;; test) echo 1; return ;; esac
  for slot in $(seq 2 15); do
    [ -n "$(ip -4 -o addr show to "198.18.$((slot * 16)).1")" ] || { echo "$slot"; return; }
  done
  echo "all 16 slots for local clusters are taken; see 'ip link | grep ar-'" >&2; return 1
}

# The node's process 1, if it lives. Found by its command line, which no other process has: a number kept in a file may be
# missing after an interrupted start, or belong to another process by now.
node_pid() { pgrep -o -f "^bash $STATE/node\.sh"; }

api_ready() { "$BIN/kubectl" --kubeconfig "$KUBECONFIG" --request-timeout=5s get --raw /readyz >/dev/null 2>&1; }
