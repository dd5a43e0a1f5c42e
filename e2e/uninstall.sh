#!/usr/bin/env bash
# Uninstall the release of a cluster, as docs/operations.md says, and see that what should go goes and what should stay stays.
# Usage: uninstall.sh NAME
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
. "$root/e2e/cluster/cluster.sh"
kubectl() { "$BIN/kubectl" --kubeconfig "$KUBECONFIG" "$@"; }
failed=0
wrong() { echo "uninstall.sh: $1" >&2; failed=1; }

kubectl delete agentruns.agentrun.dev --all -A --timeout=2m >&2 || wrong "the runs cannot be deleted"
"$BIN/helm" --kubeconfig "$KUBECONFIG" uninstall agentrun --namespace agentrun-system --wait --timeout 3m >&2
# It belongs to the operator's ClusterRole, and goes with it.
kubectl wait --for=delete apiservice/v1alpha1.run.agentrun.dev --timeout=2m >&2 || wrong "the APIService is still there: it blocks the deletion of namespaces"
left=$(kubectl get clusterroles,clusterrolebindings,mutatingadmissionpolicies,validatingadmissionpolicies -o name | grep -i agentrun || true)
[ -z "$left" ] || wrong "these are still there: $left"
[ "$(kubectl get crd -o name | grep -c agentrun.dev)" -ge 4 ] || wrong "the CustomResourceDefinitions went, and with them every record"
kubectl create namespace after-agentrun >&2
kubectl delete namespace after-agentrun --timeout=1m >&2 || wrong "a namespace cannot be deleted any more"
exit $failed
