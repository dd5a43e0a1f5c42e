#!/usr/bin/env bash
# One real Kubernetes node in namespaces of its own: network, mounts, processes, host name. Needs root and build.sh's programs.
# Usage: up.sh [name]      prints the kubeconfig's path as its last line; a node that is up already is used as it is
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/cluster.sh"
[ "$(id -u)" = 0 ] || { echo "up.sh: needs root, for the node's namespaces" >&2; exit 1; }
[ -x "$BIN/kube-apiserver" ] || { echo "up.sh: no $BIN/kube-apiserver; run $here/build.sh first" >&2; exit 1; }

if node_pid >/dev/null && [ -f "$STATE/ready" ] && api_ready; then
  echo "cluster '$name' is up already" >&2
  echo "$KUBECONFIG"; exit 0
fi
"$here/down.sh" "$name"   # what a crash or a restart of the machine left

started=$SECONDS
mkdir -p "$STATE"/{pki,log,etc/cni}
# Chosen and taken under one lock, so that two clusters that start at once never share addresses.
exec 8>"$cache/.slots"; flock 8
addresses "$(choose_slot)"

# --- certificates -------------------------------------------------------------------------------------------------------
cd "$STATE/pki"
cert() { # name, subject, extensions
  openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout "$1.key" -out "$1.csr" -subj "$2" 2>/dev/null
  openssl x509 -req -in "$1.csr" -CA ca.crt -CAkey ca.key -CAcreateserial -days 365 -out "$1.crt" -extfile <(printf '%s' "$3") 2>/dev/null
}
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout ca.key -out ca.crt -days 365 -subj /CN=ca \
  -addext basicConstraints=critical,CA:TRUE 2>/dev/null
cert apiserver /CN=kube-apiserver "subjectAltName=IP:127.0.0.1,IP:$NODE,IP:$API_SERVICE,DNS:localhost,DNS:kubernetes.default.svc"
cert kubelet /O=system:nodes/CN=system:node:node1 "extendedKeyUsage=clientAuth,serverAuth
subjectAltName=IP:$NODE,DNS:node1"
client=extendedKeyUsage=clientAuth
cert admin /O=system:masters/CN=admin $client
cert apiserver-kubelet /O=system:masters/CN=kube-apiserver-kubelet-client $client
cert controller-manager /CN=system:kube-controller-manager $client
cert scheduler /CN=system:kube-scheduler $client
cert proxy /CN=system:kube-proxy $client
cert front-proxy /CN=front-proxy $client
openssl ecparam -name prime256v1 -genkey -noout -out sa.key
openssl ec -in sa.key -pubout -out sa.pub 2>/dev/null

# --- configuration ------------------------------------------------------------------------------------------------------
kubeconfig() { # certificate name, server address
  cat > "$STATE/etc/$1.kubeconfig" <<K
apiVersion: v1
kind: Config
clusters: [{name: $name, cluster: {server: "https://$2:6443", certificate-authority: $STATE/pki/ca.crt}}]
users: [{name: $1, user: {client-certificate: $STATE/pki/$1.crt, client-key: $STATE/pki/$1.key}}]
contexts: [{name: $name, context: {cluster: $name, user: $1}}]
current-context: $name
K
}
kubeconfig admin "$NODE"
for component in kubelet controller-manager scheduler proxy; do kubeconfig $component 127.0.0.1; done

cgroup_v1=true
[ ! -f /sys/fs/cgroup/cgroup.controllers ] || cgroup_v1=false
cat > "$STATE/etc/kubelet.yaml" <<K
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false          # some build machines have cgroup v1 controllers only
cgroupDriver: cgroupfs
cgroupRoot: /$CGROUP         # so that down.sh can remove all that the node made
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $STATE/pki/ca.crt}}
authorization: {mode: Webhook}
tlsCertFile: $STATE/pki/kubelet.crt
tlsPrivateKeyFile: $STATE/pki/kubelet.key
failSwapOn: false
evictionHard: {memory.available: 100Mi, nodefs.available: 1%}
imageGCHighThresholdPercent: 100
podCIDR: $PODS
clusterDNS: [$DNS_SERVICE]
clusterDomain: cluster.local
seccompDefault: true
maxPods: 200
podLogsDir: $STATE/log/pods  # in the usual place each kubelet removes the logs of the other clusters' Pods
podPidsLimit: 1024           # a fork bomb in a sandbox stays in its Pod
resolvConf: ""
K
cat > "$STATE/etc/containerd.toml" <<K
version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "agentrun.test/pause:1"
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true   # root in a container or a small virtual machine often lacks CAP_SYS_RESOURCE
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ["$BIN/cni"]
    conf_dir = "$STATE/etc/cni"
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
      BinaryName = "$BIN/runc"
K
cat > "$STATE/etc/cni/10-pods.conflist" <<K
{"cniVersion": "1.0.0", "name": "pods", "plugins": [
  {"type": "ptp", "ipMasq": false, "mtu": 1500, "ipam": {"type": "host-local", "dataDir": "/run/cni-ipam", "ranges": [[{"subnet": "$PODS"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
K
sed "s|@DNS_SERVICE@|$DNS_SERVICE|" "$here/addons.yaml" > "$STATE/etc/addons.yaml"
for number in $(seq 8); do
  mkdir -p "$STATE/volumes/$number"
  # `local`, not hostPath: a Pod's fsGroup is then given the folder, as with a real volume.
  cat >> "$STATE/etc/addons.yaml" <<K
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: volume-$number}
spec:
  capacity: {storage: 20Gi}
  accessModes: [ReadWriteOnce]
  local: {path: $STATE/volumes/$number}
  nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [node1]}]}]}}
K
done

# --- the node's own images: built once a machine ------------------------------------------------------------------------
images=$("$here/images.sh")

# --- start --------------------------------------------------------------------------------------------------------------
cp "$here/node.sh" "$STATE/node.sh"   # a copy, since a shell reads its script as it runs
export BIN STATE CGROUP NODE HOST LINK PODS SERVICES KUBECONFIG cgroup_v1 images
setsid unshare --net --mount --pid --uts --ipc --fork --kill-child --mount-proc \
  bash "$STATE/node.sh" > "$STATE/log/node.log" 2>&1 < /dev/null 8>&- &
unshare=$!
give_up() { echo "up.sh: $1; logs are in $STATE/log" >&2; tail -n 5 "$STATE/log/node.log" >&2; exit 1; }
until child=$(node_pid); do
  kill -0 "$unshare" 2>/dev/null || give_up "the node's namespaces could not be made"
  sleep 0.05
done
ip link add "$VETH" type veth peer name eth0 netns "$child"
ip addr add "$HOST/24" dev "$VETH"
ip link set "$VETH" up
ip route replace "$PODS" via "$NODE" dev "$VETH"
ip route replace "$SERVICES" via "$NODE" dev "$VETH"
exec 8>&-

deadline=$((SECONDS + 180)) said=$SECONDS
until [ -f "$STATE/ready" ]; do
  kill -0 "$child" 2>/dev/null || give_up "the node ended"
  [ $SECONDS -lt $deadline ] || give_up "the node did not become ready in 180 s"
  [ $((SECONDS - said)) -lt 20 ] || { said=$SECONDS; echo "starting cluster '$name' … $((SECONDS - started)) s" >&2; }
  sleep 0.1
done
echo "cluster '$name' is ready after $((SECONDS - started)) s" >&2
echo "$KUBECONFIG"
