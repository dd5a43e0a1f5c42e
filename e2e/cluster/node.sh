#!/usr/bin/env bash
# Process 1 of a node, started by up.sh with the node's values in its environment. Everything ends with it.
export PATH=$BIN:$PATH
mount --make-rshared /
mount -t tmpfs tmpfs /run; mkdir -p /run/netns /run/lock
for d in kubelet containerd; do mkdir -p /var/lib/$d "$STATE/$d"; mount --bind "$STATE/$d" /var/lib/$d; done   # the usual paths, but the state is ours
hostname node1
ip link set lo up

if [ "$cgroup_v1" = true ]; then
  for controller in /sys/fs/cgroup/*/; do [ -w "$controller" ] && mkdir -p "$controller/$CGROUP" 2>/dev/null; done
  for f in cpuset.cpus cpuset.mems; do cat /sys/fs/cgroup/cpuset/$f > "/sys/fs/cgroup/cpuset/$CGROUP/$f"; done
else
  mkdir -p "/sys/fs/cgroup/$CGROUP"
  for controller in cpuset cpu io memory pids; do
    echo "+$controller" > /sys/fs/cgroup/cgroup.subtree_control; echo "+$controller" > "/sys/fs/cgroup/$CGROUP/cgroup.subtree_control"
  done 2>/dev/null
fi

until ip link show eth0 >/dev/null 2>&1; do sleep 0.05; done
ip addr add "$NODE/24" dev eth0; ip link set eth0 up; ip route add default via "$HOST"
echo 1 > /proc/sys/net/ipv4/ip_forward

log() { local name=$1; shift; "$@" > "$STATE/log/$name.log" 2>&1 & }
k() { kubectl --kubeconfig "$KUBECONFIG" "$@"; }

# The state is thrown away with the node, so nothing is gained by waiting for the disk.
log etcd etcd --data-dir "$STATE/etcd" --unsafe-no-fsync --log-level warn \
  --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 \
  --listen-peer-urls http://127.0.0.1:2380 --initial-advertise-peer-urls http://127.0.0.1:2380 --initial-cluster default=http://127.0.0.1:2380
log apiserver kube-apiserver --etcd-servers http://127.0.0.1:2379 --bind-address 0.0.0.0 --advertise-address "$NODE" --kubelet-preferred-address-types InternalIP \
  --tls-cert-file "$STATE/pki/apiserver.crt" --tls-private-key-file "$STATE/pki/apiserver.key" --client-ca-file "$STATE/pki/ca.crt" \
  --kubelet-client-certificate "$STATE/pki/apiserver-kubelet.crt" --kubelet-client-key "$STATE/pki/apiserver-kubelet.key" --kubelet-certificate-authority "$STATE/pki/ca.crt" \
  --service-account-issuer https://kubernetes.default.svc --service-account-key-file "$STATE/pki/sa.pub" --service-account-signing-key-file "$STATE/pki/sa.key" \
  --authorization-mode Node,RBAC --enable-admission-plugins NodeRestriction --service-cluster-ip-range "$SERVICES" --allow-privileged=true \
  --requestheader-client-ca-file "$STATE/pki/ca.crt" --requestheader-allowed-names front-proxy --requestheader-username-headers X-Remote-User \
  --requestheader-group-headers X-Remote-Group --requestheader-extra-headers-prefix X-Remote-Extra- \
  --proxy-client-cert-file "$STATE/pki/front-proxy.crt" --proxy-client-key-file "$STATE/pki/front-proxy.key" --enable-aggregator-routing=true
log containerd containerd --config "$STATE/etc/containerd.toml"
until [ -S /run/containerd/containerd.sock ] && ctr version >/dev/null 2>&1; do sleep 0.05; done
for image in $images; do ctr -n k8s.io images import "$image" >/dev/null; done
until k get --raw /readyz >/dev/null 2>&1; do sleep 0.1; done

log controller-manager kube-controller-manager --kubeconfig "$STATE/etc/controller-manager.kubeconfig" --service-account-private-key-file "$STATE/pki/sa.key" \
  --root-ca-file "$STATE/pki/ca.crt" --use-service-account-credentials --leader-elect=false --bind-address 127.0.0.1
log scheduler kube-scheduler --kubeconfig "$STATE/etc/scheduler.kubeconfig" --leader-elect=false --bind-address 127.0.0.1
log kubelet kubelet --config "$STATE/etc/kubelet.yaml" --kubeconfig "$STATE/etc/kubelet.kubeconfig" --hostname-override node1 --node-ip "$NODE"
# Zero conntrack settings: those files are read-only in a network namespace that is not the first.
log proxy kube-proxy --kubeconfig "$STATE/etc/proxy.kubeconfig" --proxy-mode nftables --hostname-override node1 --cluster-cidr "$PODS" --metrics-bind-address 127.0.0.1:10249 \
  --conntrack-max-per-core 0 --conntrack-min 0 --conntrack-tcp-timeout-established 0s --conntrack-tcp-timeout-close-wait 0s

# NetworkPolicy: the engine judges packets from queue 100. It would set the queue up with nftables' own queue statement,
# which small kernels lack, so the same queue is fed by iptables. Nobody listening = packets are dropped.
k apply -f "$STATE/etc/addons.yaml"
k create serviceaccount network-policies -n kube-system
k create clusterrole network-policies --verb=get,list,watch --resource=pods,namespaces,nodes,networkpolicies.networking.k8s.io
k create clusterrolebinding network-policies --clusterrole=network-policies --serviceaccount=kube-system:network-policies
account=/run/secrets/kubernetes.io/serviceaccount; mkdir -p $account
cp "$STATE/pki/ca.crt" $account/ca.crt; printf kube-system > $account/namespace
until k create token network-policies -n kube-system --duration 24h > $account/token 2>/dev/null; do sleep 0.2; done
iptables -t mangle -N NETPOL
iptables -t mangle -A NETPOL -m conntrack --ctstate ESTABLISHED,RELATED -j RETURN
iptables -t mangle -A NETPOL -s "$LINK" -j RETURN                # this node and the machine
iptables -t mangle -A NETPOL -s "${PODS%0/24}1" -j RETURN         # the node as Pods see it: kubelet's probes
iptables -t mangle -A NETPOL -s "$PODS" -j NFQUEUE --queue-num 100
iptables -t mangle -A NETPOL -d "$PODS" -j NFQUEUE --queue-num 100
iptables -t mangle -A POSTROUTING -j NETPOL
iptables -t mangle -A INPUT -s "$PODS" -j NETPOL                 # Pods to the node's own ports, the API server among them
KUBERNETES_SERVICE_HOST=$NODE KUBERNETES_SERVICE_PORT=6443 log network-policies kube-network-policies --hostname-override node1 --nfqueue-id 100 --metrics-bind-address 127.0.0.1:9080

until k get serviceaccount default >/dev/null 2>&1 && k wait --for=condition=Ready node/node1 --timeout=5s >/dev/null 2>&1; do sleep 0.1; done
touch "$STATE/ready"
while sleep 36000; do
  k create token network-policies -n kube-system --duration 24h > $account/token.new 2>/dev/null && mv $account/token.new $account/token
done
