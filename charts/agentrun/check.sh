#!/usr/bin/env bash
# Check the chart without a cluster: lint and render every documented values file, assert what is rendered, refuse bad values.
# Needs helm and kubectl (e2e/cluster/build.sh builds both). The last line counts the tests.
set -euo pipefail
chart=$(cd "$(dirname "$0")" && pwd)
export PATH=${AGENTRUN_BIN:-${AGENTRUN_CACHE:-$HOME/.cache/agentrun}/cluster/bin}:$PATH
for program in helm kubectl python3; do
  command -v $program >/dev/null || { echo "check.sh: no $program; run e2e/cluster/build.sh" >&2; exit 1; }
done
exec python3 -B "$chart/tests/run.py" "$@"
