#!/usr/bin/env bash
# The demo: a real one-node cluster, the chart, three manifests, a run from failing test to checked patch. Needs root and Debian.
# Run it again as often as you like; `make demo-down` removes the cluster.
set -euo pipefail
cd "$(dirname "$0")/.."
. e2e/cluster/cluster.sh demo
. e2e/cluster/progress.sh
mkdir -p target/demo
export AGENTRUN_HARNESSES=   # the built-in agent does
programs=${CARGO_TARGET_DIR:-$PWD/target}/x86_64-unknown-linux-gnu/release   # kubectl finds kubectl-agentrun there
export PATH=$BIN:$programs:$PATH KUBECONFIG
total=9 number=0
say() { number=$((number + 1)); printf '\n\e[1m[%d/%d] %s\e[0m\n' "$number" "$total" "$1"; }

say "Debian packages"
e2e/cluster/packages.sh
say "Kubernetes, from its Go modules (about 15 minutes, once a machine)"
e2e/cluster/build.sh >/dev/null
say "AgentRun's programs and images"
if [ -t 2 ]; then make --no-print-directory programs   # cargo shows how far it is
else progress "compiling" make --no-print-directory programs CARGO_TERM_QUIET=true; fi
e2e/images.sh >/dev/null
say "A one-node cluster in namespaces of its own"
e2e/cluster/up.sh demo >/dev/null
say "helm install"
e2e/install.sh demo --hide-notes
kubectl apply -f examples/scripted-model.yaml >/dev/null
# The tag stays the same, so the digest is what makes a new image roll out.
digest=$(python3 -c 'import json; print(json.load(open("target/images.json"))["scripted-model"]["digest"])')
kubectl -n scripted-model set env deployment/scripted-model "IMAGE_DIGEST=$digest" >/dev/null
kubectl -n scripted-model rollout status deployment/scripted-model --timeout=2m >/dev/null

say "Three manifests: a policy, a provider, a run"
# Its record would keep the same run from running twice.
kubectl delete agentrun,agentrunrecord fix-discount -n team-a --ignore-not-found --timeout=60s 2>/dev/null || true
for manifest in policy provider run; do
  echo "\$ kubectl apply -f examples/$manifest.yaml"
  kubectl apply -f examples/$manifest.yaml
done

say "The run, live"
echo '$ kubectl agentrun watch fix-discount -n team-a'
kubectl agentrun watch fix-discount -n team-a
kubectl agentrun patch fix-discount -n team-a > target/demo/fix.patch

say "The patch, applied to the original tree"
rm -rf target/demo/shop; cp -r examples/shop target/demo/shop
cat target/demo/fix.patch
echo
echo '$ python3 -m unittest discover      # before'
(cd target/demo/shop && python3 -B -m unittest discover 2>&1 | tail -n 3) || true
echo '$ git apply ../fix.patch'
# An own repository, so that git does not take the path for one of the repository around it.
(cd target/demo/shop && git init -q . && git apply --verbose ../fix.patch)
echo '$ python3 -m unittest discover      # after'
(cd target/demo/shop && python3 -B -m unittest discover 2>&1 | tail -n 3)

say "A person decides: the same task under a policy that asks"
echo '$ kubectl apply -f examples/policy-approvals.yaml'
kubectl apply -f examples/policy-approvals.yaml
# Somebody else than who submits, with the role for it.
kubectl create rolebinding lead -n team-a --clusterrole=agentrun-approver --user=lead@example.com --dry-run=client -o yaml | kubectl apply -f - >/dev/null
echo '$ kubectl agentrun rerun fix-discount -n team-a'
again=$(kubectl agentrun rerun fix-discount -n team-a)
echo "$again"
kubectl wait --for=condition=AwaitingApproval "agentrun/$again" -n team-a --timeout=2m >/dev/null
echo '$ kubectl agentrun approvals -n team-a'
kubectl agentrun approvals -n team-a
id=$(kubectl get agentrun "$again" -n team-a -o jsonpath='{.status.approvals[?(@.state=="pending")].id}')
echo "\$ kubectl agentrun approve $again $id -n team-a --as lead@example.com"
kubectl agentrun approve "$again" "$id" -n team-a --as lead@example.com
echo "\$ kubectl agentrun wait $again -n team-a"
kubectl agentrun wait "$again" -n team-a
kubectl get agentrun "$again" -n team-a -o jsonpath='{range .status.approvals[*]}approval {.id}: {.state}, decided by {.decidedBy}{"\n"}{end}'

cat <<TEXT

Look around:
  export KUBECONFIG=$KUBECONFIG PATH=$BIN:$programs:\$PATH
  kubectl agentrun why fix-discount -n team-a
  kubectl agentrun logs $again -n team-a
  kubectl get agentruns -A -o wide
  kubectl describe agentrun fix-discount -n team-a
  kubectl get pods -A
The patched tree is in target/demo/shop. Run \`make demo\` again for another run; \`make demo-down\` removes the cluster.
TEXT
