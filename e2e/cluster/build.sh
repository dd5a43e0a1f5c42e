#!/usr/bin/env bash
# Build the programs of the local cluster from their Go modules (the Go module proxy is all that is needed).
# Usage: build.sh [module...]      prints the folder that holds the programs, as its last line
# Each module's output is kept under ~/.cache/agentrun/cluster/<module>-<key>, keyed by its go.mod, go.sum, recipe and the
# Go version, and is linked into ~/.cache/agentrun/cluster/bin. About 15 minutes on two cores with empty caches, a second
# afterwards.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cache=${AGENTRUN_CACHE:-$HOME/.cache/agentrun}/cluster
bin=$cache/bin
. "$here/progress.sh"

go_build() { # module, output file or folder, packages...
  local module=$1 target=$2; shift 2
  (cd "$here/go/$module" && CGO_ENABLED=${cgo:-0} GOFLAGS=-mod=readonly GOWORK=off go build -trimpath ${tags:+-tags "$tags"} -ldflags "-s -w ${ldflags:-}" -o "$target" "$@")
}

# One recipe a module; $1 is the output folder. Its text, without comments, is part of the module's key.
build_kubernetes() {
  local stamp=k8s.io/component-base/version
  ldflags="-X $stamp.gitVersion=v1.36.3 -X $stamp.gitMajor=1 -X $stamp.gitMinor=36" \
    go_build kubernetes "$1/" k8s.io/kubernetes/cmd/{kube-apiserver,kube-controller-manager,kube-scheduler,kube-proxy,kubelet,kubectl}
}
build_etcd() { go_build etcd "$1/etcd" go.etcd.io/etcd/server/v3; }
build_containerd() {
  ldflags="-X github.com/containerd/containerd/v2/version.Version=2.2.9" \
    go_build containerd "$1/" github.com/containerd/containerd/v2/cmd/{containerd,containerd-shim-runc-v2,ctr}
}
build_runc() {
  cgo=1 tags="seccomp urfave_cli_no_docs netgo osusergo" ldflags="-extldflags -static -X main.version=1.3.3" \
    go_build runc "$1/runc" github.com/opencontainers/runc
}
build_cni() {
  local plugin
  mkdir -p "$1/cni"
  for plugin in main/ptp main/loopback ipam/host-local meta/portmap; do
    go_build cni "$1/cni/" "github.com/containernetworking/plugins/plugins/$plugin" || return
  done
}
build_helm() { go_build helm "$1/helm" helm.sh/helm/v4/cmd/helm; }
build_kube_network_policies() { go_build kube-network-policies "$1/kube-network-policies" sigs.k8s.io/kube-network-policies/cmd; }
build_coredns() { go_build coredns "$1/coredns" github.com/coredns/coredns; }

modules=(etcd cni runc containerd kube-network-policies coredns helm kubernetes)
[ $# -gt 0 ] || set -- "${modules[@]}"
for module in "$@"; do
  [ -f "$here/go/$module/go.mod" ] || { echo "build.sh: unknown module '$module'; known: ${modules[*]}" >&2; exit 2; }
done
command -v go >/dev/null || { echo "build.sh: no 'go' on PATH; Go 1.26 or newer builds the local cluster" >&2; exit 1; }

mkdir -p "$bin/cni"
# One build at a time on a machine, whoever asks.
exec 9>"$cache/.lock"
flock -n 9 || { echo "waiting for another build of the cluster's programs to end" >&2; flock 9; }

build() { # module, output folder
  "build_${1//-/_}" "$2" 2> >(grep -v '^go: downloading' >&2)
}
number=0
for module in "$@"; do
  number=$((number + 1))
  recipe=build_${module//-/_}
  key=$({ cat "$here/go/$module/go.mod" "$here/go/$module/go.sum"; declare -f go_build "$recipe"; go env GOVERSION; } | sha256sum | cut -c1-16)
  out=$cache/$module-$key
  if [ ! -d "$out" ]; then
    echo "[$number/$#] building $module (once a machine)" >&2
    rm -rf "$out.part"; mkdir -p "$out.part"
    progress "[$number/$#] building $module" build "$module" "$out.part"
    mv "$out.part" "$out"
  fi
  (cd "$out" && find . -type f) | while read -r file; do ln -sfn "$out/${file#./}" "$bin/${file#./}"; done
done
echo "$bin"
