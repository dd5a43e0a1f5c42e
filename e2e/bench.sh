#!/usr/bin/env bash
# The benchmarks, on a cluster of their own that goes when they end. AGENTRUN_KEEP=1 leaves it up.
set -euo pipefail
cd "$(dirname "$0")/.."
trap '[ -n "${AGENTRUN_KEEP:-}" ] || e2e/cluster/down.sh bench' EXIT
trap 'exit 130' INT TERM
AGENTRUN_KUBECONFIG=$(e2e/cluster/up.sh bench); export AGENTRUN_KUBECONFIG
e2e/install.sh bench
litellm=$(bench/references.sh); [ -z "$litellm" ] || export AGENTRUN_LITELLM=$litellm
programs=${CARGO_TARGET_DIR:-$PWD/target}/x86_64-unknown-linux-gnu/release
AGENTRUN_PROGRAMS=$programs "$programs/agentrun-bench" "$@"
