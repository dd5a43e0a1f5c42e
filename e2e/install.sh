#!/usr/bin/env bash
# Load our images into a cluster and install the chart there. Usage: install.sh NAME [helm arguments...]
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
. "$root/e2e/cluster/cluster.sh"
shift
images=$root/target/images.json
image() { python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))[sys.argv[2]][sys.argv[3]])' "$images" "$1" "$2"; }
mapfile -t archives < <(python3 -c 'import json, sys; print(*(image["archive"] for image in json.load(open(sys.argv[1])).values()), sep="\n")' "$images")
"$root/e2e/cluster/load.sh" "$name" "${archives[@]}"
arguments=()
for i in operator gateway runner; do
  reference=$(image $i image)
  arguments+=(--set-string "images.$i.repository=${reference%:*}" --set-string "images.$i.tag=${reference##*:}")
done
echo "installing the chart into cluster '$name'" >&2
"$BIN/helm" --kubeconfig "$KUBECONFIG" upgrade --install agentrun "$root/charts/agentrun" --namespace agentrun-system --create-namespace \
  --values "$root/e2e/values.yaml" "${arguments[@]}" --wait --timeout 3m "$@" >&2
# Helm does not know of what the operator registers: the aggregated API, once a gateway is ready.
for state in create condition=Available; do
  "$BIN/kubectl" --kubeconfig "$KUBECONFIG" wait apiservice/v1alpha1.run.agentrun.dev --for=$state --timeout=2m >&2
done
