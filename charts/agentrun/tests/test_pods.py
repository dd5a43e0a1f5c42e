"""Every Pod of the chart keeps to the restricted Pod security standard and runs the image, arguments and volume it should."""
import unittest

from chart import VALUES, default_values, find, pod_specs, render


def container(values, kind, name):
    [only] = find(render(values), kind, name)["spec"]["template"]["spec"]["containers"]
    return only


class Pods(unittest.TestCase):
    def test_restricted(self):
        for values in VALUES:
            for name, spec in pod_specs(render(values)):
                with self.subTest(f"{values or 'defaults'} {name}"):
                    walls = spec["securityContext"]
                    self.assertIs(walls["runAsNonRoot"], True)
                    self.assertEqual((walls["runAsUser"], walls["runAsGroup"]), (65532, 65532))
                    self.assertEqual(walls["seccompProfile"], {"type": "RuntimeDefault"})
                    for key in ("hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace"):
                        self.assertNotIn(key, spec)
                    self.assertIs(spec["enableServiceLinks"], False)
                    for volume in spec.get("volumes", []):
                        self.assertNotIn("hostPath", volume)
                    for c in spec["containers"] + spec.get("initContainers", []):
                        self.assertIs(c["securityContext"]["allowPrivilegeEscalation"], False)
                        self.assertIs(c["securityContext"]["readOnlyRootFilesystem"], True)
                        self.assertEqual(c["securityContext"]["capabilities"], {"drop": ["ALL"]})
                        self.assertNotIn("privileged", c["securityContext"])
                        self.assertIn("memory", c["resources"]["limits"])
                        self.assertIn("cpu", c["resources"]["requests"])
                        for port in c.get("ports", []):
                            self.assertNotIn("hostPort", port)

    def test_only_operator_and_gateway_get_a_kubernetes_token(self):
        objects = render()
        for o in objects:
            if o["kind"] == "ServiceAccount":
                self.assertIs(o["automountServiceAccountToken"], False)
        for name, spec in pod_specs(objects):
            expected = {"Deployment/agentrun-operator": "agentrun-operator", "StatefulSet/agentrun-gateway": "agentrun-gateway"}.get(name)
            with self.subTest(name):
                self.assertEqual((spec["automountServiceAccountToken"], spec.get("serviceAccountName")), (expected is not None, expected))

    def test_images(self):
        version = "0.1.0"
        digest = {"operator": "1", "gateway": "2", "runner": "3"}
        rows = [("", lambda c: f"agentrun.test/{c}:{version}"), ("production.yaml", lambda c: f"registry.example.com/agentrun/{c}@sha256:{digest[c] * 64}")]
        for values, image in rows:
            with self.subTest(values or "defaults"):
                operator = container(values, "Deployment", "agentrun-operator")
                self.assertEqual(operator["image"], image("operator"))
                self.assertIn(f"--runner-image={image('runner')}", operator["args"])
                self.assertEqual(container(values, "StatefulSet", "agentrun-gateway")["image"], image("gateway"))
        named = render("", "--set", "images.gateway.repository=other.example.com:5000/gw,images.gateway.tag=v7")
        [gateway] = find(named, "StatefulSet", "agentrun-gateway")["spec"]["template"]["spec"]["containers"]
        self.assertEqual(gateway["image"], "other.example.com:5000/gw:v7")
        for name, spec in pod_specs(render("production.yaml")):
            self.assertEqual(spec["imagePullSecrets"], [{"name": "registry"}], name)

    def test_one_gateway_with_one_store(self):
        rows = {
            "": ("claim", "10Gi"),
            "production.yaml": ("claim", "50Gi"),
            "trial.yaml": ("emptyDir", "1Gi"),
            "model-in-cluster.yaml": ("claim", "1Gi"),
            "existing-claim.yaml": ("agentrun-data", None),
        }
        for values, (kind, size) in rows.items():
            with self.subTest(values or "defaults"):
                spec = find(render(values), "StatefulSet", "agentrun-gateway")["spec"]
                self.assertEqual(spec["replicas"], 1)
                [mount] = [m for m in spec["template"]["spec"]["containers"][0]["volumeMounts"] if m["name"] == "data"]
                self.assertIn(f"--data-dir={mount['mountPath']}", spec["template"]["spec"]["containers"][0]["args"])
                claims = spec.get("volumeClaimTemplates", [])
                volumes = [v for v in spec["template"]["spec"].get("volumes", []) if v["name"] == "data"]
                if kind == "claim":
                    self.assertEqual((len(claims), len(volumes)), (1, 0))
                    self.assertEqual(claims[0]["spec"]["resources"]["requests"]["storage"], size)
                    self.assertEqual(claims[0]["spec"].get("storageClassName"), "fast" if values == "production.yaml" else None)
                elif kind == "emptyDir":
                    self.assertEqual((claims, volumes), ([], [{"name": "data", "emptyDir": {"sizeLimit": size}}]))
                else:
                    self.assertEqual((claims, volumes), ([], [{"name": "data", "persistentVolumeClaim": {"claimName": kind}}]))

    def test_several_gateways_share_their_stores(self):
        spec = find(render("replicas.yaml"), "StatefulSet", "agentrun-gateway")["spec"]
        self.assertEqual((spec["replicas"], spec["podManagementPolicy"], spec["updateStrategy"]), (3, "Parallel", {"type": "RollingUpdate"}))
        self.assertNotIn("volumeClaimTemplates", spec)
        pod = spec["template"]["spec"]
        gateway = pod["containers"][0]
        for argument in (
            "--database-url-file=/etc/agentrun/postgresql/url", "--database-ca-file=/etc/agentrun/postgresql/ca.crt",
            "--s3-endpoint=https://minio.storage.svc:9000", "--s3-bucket=agentrun", "--s3-region=us-east-1", "--s3-prefix=production",
            "--s3-ca-file=/etc/agentrun/s3/ca.crt",
        ):
            self.assertIn(argument, gateway["args"])
        self.assertFalse({"--s3-allow-http", "--s3-virtual-host"} & set(gateway["args"]))
        secrets = {e["name"]: e["valueFrom"]["secretKeyRef"] for e in gateway["env"] if "secretKeyRef" in e.get("valueFrom", {})}
        self.assertEqual(secrets, {name: {"name": "agentrun-objects", "key": name} for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")})
        volumes = {v.pop("name"): v for v in map(dict, pod["volumes"])}
        self.assertEqual(volumes["data"], {"emptyDir": {"sizeLimit": "2Gi"}})
        self.assertEqual([source["secret"]["name"] for source in volumes["postgresql"]["projected"]["sources"]], ["agentrun-database", "company-ca"])
        self.assertEqual(volumes["s3"]["secret"]["secretName"], "company-ca")
        self.assertEqual({m["name"] for m in gateway["volumeMounts"]}, set(volumes))
        self.assertEqual({c["topologyKey"] for c in pod["topologySpreadConstraints"]}, {"kubernetes.io/hostname", "topology.kubernetes.io/zone"})

    def test_one_gateway_with_shared_stores(self):
        """What is not said is not rendered: no authority, no prefix, and nobody to wait for."""
        stores = '{"postgresql":{"secretName":"a","key":"dsn"},"s3":{"endpoint":"http://s3:9000","bucket":"runs","secretName":"b","allowHttp":true,"virtualHost":true}}'
        objects = render("", "--set-json", f"gateway.stores={stores}", "--set-json", "networkPolicy.s3.ports=[9443]")
        spec = find(objects, "StatefulSet", "agentrun-gateway")["spec"]
        pod = spec["template"]["spec"]
        arguments = pod["containers"][0]["args"]
        self.assertLessEqual({"--s3-allow-http", "--s3-virtual-host"}, set(arguments))
        self.assertFalse([a for a in arguments if a.startswith(("--database-ca", "--s3-ca", "--s3-prefix", "--shutdown-delay"))])
        [database] = pod["volumes"][1]["projected"]["sources"]
        self.assertEqual(database["secret"], {"name": "a", "items": [{"key": "dsn", "path": "url"}]})
        self.assertEqual([v["name"] for v in pod["volumes"]], ["data", "postgresql"])
        self.assertNotIn("minReadySeconds", spec)
        self.assertNotIn("topologySpreadConstraints", pod)

    def test_the_gateway_may_drain_before_it_is_killed(self):
        """First come the delay of several replicas, then the drain, then what is left to write down."""
        for values, delay, drain in (("", 0, default_values()["gateway"]["drainSeconds"]), ("production.yaml", 0, 120), ("replicas.yaml", 5, 300)):
            spec = find(render(values), "StatefulSet", "agentrun-gateway")["spec"]
            pod = spec["template"]["spec"]
            self.assertIn(f"--drain-seconds={drain}", pod["containers"][0]["args"])
            self.assertEqual(f"--shutdown-delay-seconds={delay}" in pod["containers"][0]["args"], delay > 0)
            self.assertEqual(spec.get("minReadySeconds", 0), delay)
            self.assertGreaterEqual(pod["terminationGracePeriodSeconds"], delay + drain + 15)

    def test_who_makes_certificates(self):
        for values, operator_does in (("", True), ("cert-manager.yaml", False), ("cert-manager-issuer.yaml", False)):
            with self.subTest(values or "defaults"):
                self.assertIn(f"--manage-certificates={str(operator_does).lower()}", container(values, "Deployment", "agentrun-operator")["args"])
                names = {(o["kind"], o["metadata"]["name"]) for o in render(values) if o["apiVersion"].startswith("cert-manager.io/")}
                own = {("Issuer", "agentrun-self-signed"), ("Issuer", "agentrun-ca"), ("Certificate", "agentrun-ca")}
                serving = {("Certificate", "agentrun-gateway")}
                self.assertEqual(names, set() if operator_does else serving | (own if values == "cert-manager.yaml" else set()))
        certificate = find(render("cert-manager-issuer.yaml"), "Certificate", "agentrun-gateway")["spec"]
        self.assertEqual(certificate["issuerRef"], {"name": "company-ca", "kind": "ClusterIssuer", "group": "cert-manager.io"})
        self.assertEqual(certificate["secretName"], "agentrun-gateway-tls")
        self.assertIn("agentrun-gateway.agentrun-system.svc", certificate["dnsNames"])

    def test_a_disruption_budget_only_where_there_is_something_to_keep(self):
        for values, expected in (("", []), ("production.yaml", ["agentrun-operator"]), ("replicas.yaml", ["agentrun-gateway"])):
            found = [o for o in render(values) if o["kind"] == "PodDisruptionBudget"]
            self.assertEqual([o["metadata"]["name"] for o in found], expected)
        self.assertEqual(found[0]["spec"]["maxUnavailable"], 1)
        workload = find(render("replicas.yaml"), "StatefulSet", "agentrun-gateway")["spec"]
        self.assertEqual(found[0]["spec"]["selector"], workload["selector"])

    def test_arguments_of_ones_own_come_last(self):
        self.assertEqual(container("by-hand.yaml", "StatefulSet", "agentrun-gateway")["args"][-3:], [
            "--allowed-host=agents.example.com", "--allowed-origin=https://agents.example.com", "--max-in-flight-per-run=8"])

    def test_no_secret_is_rendered(self):
        for values in VALUES:
            self.assertEqual([o["metadata"]["name"] for o in render(values) if o["kind"] == "Secret"], [], values)
