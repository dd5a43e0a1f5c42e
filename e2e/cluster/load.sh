#!/usr/bin/env bash
# Import image archives (OCI) into a running node. Usage: load.sh NAME archive.tar...
# An image that the node already has with the same digest is skipped. Each is also known by name@digest.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/cluster.sh"
shift
pid=$(node_pid) || { echo "load.sh: cluster '$name' is not up" >&2; exit 1; }
# Its warning about cgroup v1 would stand on every line.
node_ctr() { CONTAINERD_SUPPRESS_DEPRECATION_WARNINGS=true nsenter --target "$pid" --mount -- "$BIN/ctr" -n k8s.io "$@"; }
present=$(node_ctr images ls | awk 'NR > 1 {print $1 "=" $3}')
for archive in "$@"; do
  read -r reference digest < <(tar -xOf "$archive" index.json | python3 -c '
import json, sys
image = json.load(sys.stdin)["manifests"][0]
print(image["annotations"]["org.opencontainers.image.ref.name"], image["digest"])')
  grep -qxF "$reference=$digest" <<< "$present" && continue
  node_ctr images import "$(realpath "$archive")" >/dev/null
  node_ctr images tag --force "$reference" "${reference%:*}@$digest" >/dev/null
  echo "loaded $reference into cluster '$name'" >&2
done
