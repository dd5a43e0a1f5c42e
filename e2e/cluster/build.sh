#!/usr/bin/env bash
# Build the programs of the local cluster from their Go modules (the Go module proxy is all that is needed).
# Usage: build.sh [module...]      prints the folder that holds the programs, as its last line
# Each module's output is kept under ~/.cache/agentrun/cluster/<module>-<key>, keyed by its go.mod, go.sum, the Go version
# and this file; it is linked into ~/.cache/agentrun/cluster/bin. About 12 minutes on two cores with empty caches,
# a second afterwards.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cache=${AGENTRUN_CACHE:-$HOME/.cache/agentrun}/cluster
bin=$cache/bin
mkdir -p "$bin/cni"
# One build at a time on a machine, whoever asks.
exec 9>"$cache/.lock"
flock 9

kubernetes_version=v1.36.3
kubernetes_stamp="-X k8s.io/component-base/version.gitVersion=$kubernetes_version -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=36"

go_build() { # module, output file or folder, packages...
  local module=$1 target=$2; shift 2
  (cd "$here/go/$module" && CGO_ENABLED=${cgo:-0} GOFLAGS=-mod=readonly GOWORK=off go build -trimpath ${tags:+-tags "$tags"} -ldflags "-s -w ${ldflags:-}" -o "$target" "$@")
}

compile() { # module, output folder
  local out=$2
  case $1 in
    kubernetes) ldflags=$kubernetes_stamp go_build "$1" "$out/" k8s.io/kubernetes/cmd/{kube-apiserver,kube-controller-manager,kube-scheduler,kube-proxy,kubelet,kubectl} ;;
    etcd) go_build "$1" "$out/etcd" go.etcd.io/etcd/server/v3 ;;
    containerd) ldflags="-X github.com/containerd/containerd/v2/version.Version=2.2.9" go_build "$1" "$out/" github.com/containerd/containerd/v2/cmd/{containerd,containerd-shim-runc-v2,ctr} ;;
    runc) cgo=1 tags="seccomp urfave_cli_no_docs netgo osusergo" ldflags="-extldflags -static -X main.version=1.3.3" go_build "$1" "$out/runc" github.com/opencontainers/runc ;;
    cni) mkdir -p "$out/cni"; for plugin in main/ptp main/loopback ipam/host-local meta/portmap; do go_build "$1" "$out/cni/" "github.com/containernetworking/plugins/plugins/$plugin"; done ;;
    helm) go_build "$1" "$out/helm" helm.sh/helm/v4/cmd/helm ;;
    kube-network-policies) go_build "$1" "$out/kube-network-policies" sigs.k8s.io/kube-network-policies/cmd ;;
    *) echo "build.sh: unknown module '$1'; known: $(ls "$here/go" | tr '\n' ' ')" >&2; exit 2 ;;
  esac
}

[ $# -gt 0 ] || set -- etcd cni runc containerd kube-network-policies helm kubernetes
command -v go >/dev/null || { echo "build.sh: no 'go' on PATH; Go 1.26 or newer is needed to build the local cluster" >&2; exit 1; }
number=0
for module in "$@"; do
  number=$((number + 1))
  [ -d "$here/go/$module" ] || compile "$module" /nonexistent
  key=$({ cat "$here/go/$module/go.mod" "$here/go/$module/go.sum" "$0"; go version; } | sha256sum | cut -c1-16)
  out=$cache/$module-$key
  if [ ! -d "$out" ]; then
    echo "[$number/$#] building $module from its Go module (once a machine)" >&2
    started=$(date +%s)
    rm -rf "$out.part"; mkdir -p "$out.part"
    compile "$module" "$out.part"
    mv "$out.part" "$out"
    echo "[$number/$#] built $module in $(($(date +%s) - started)) s" >&2
  fi
  (cd "$out" && find . -type f) | while read -r file; do ln -sfn "$out/$file" "$bin/$file"; done
done
echo "$bin"
