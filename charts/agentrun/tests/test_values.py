"""Documented values render; unknown and wrong ones are refused with a message that names them; schema and values agree."""
import json
import pathlib
import tempfile
import unittest

from chart import CHART, VALUES, default_values, file_arguments, helm, render, schema, template

# helm's --set-json argument, and what the refusal must say.
REFUSED = [
    ('nonsense=1', ["additional properties 'nonsense' not allowed"]),
    ('gateway.persistance={"enabled":false}', ["/gateway", "'persistance' not allowed"]),
    ('gateway.persistence.enable=false', ["/gateway/persistence", "'enable' not allowed"]),
    ('gateway.persistence.enabled="no"', ["/gateway/persistence/enabled", "want boolean"]),
    ('gateway.persistence.accessModes=["ReadWriteMany"]', ["/gateway/persistence/accessModes/0", "'ReadWriteOnce'"]),
    ('gateway.persistence.size="plenty"', ["/gateway/persistence/size", "'plenty' does not match"]),
    ('gateway.replicas=2', ["gateway.replicas is 2", "the embedded store is of one process", "gateway.stores.postgresql"]),
    ('gateway.replicas=17', ["/gateway/replicas", "got 17, want 16"]),
    ('gateway.replicas=0', ["/gateway/replicas", "got 0, want 1"]),
    ('gateway.drainSeconds=0', ["/gateway/drainSeconds", "got 0, want 1"]),
    ('gateway.shutdownDelaySeconds=61', ["/gateway/shutdownDelaySeconds", "got 61, want 60"]),
    ('gateway.stores.postgresql.secretName="a"', ["gateway.stores.s3 is not", "Set both or neither"]),
    ('gateway.stores.s3={"endpoint":"https://s3.example.com","bucket":"runs","secretName":"a"}', ["postgresql.secretName is not", "Set both or neither"]),
    ('gateway.stores={"postgresql":{"secretName":"a"},"s3":{"endpoint":"https://s3.example.com","secretName":"a"}}', ["gateway.stores.s3.bucket is empty"]),
    ('gateway.stores={"postgresql":{"secretName":"a"},"s3":{"endpoint":"http://s3.example.com","bucket":"runs","secretName":"a"}}', ["allowHttp=true"]),
    *[(f'gateway.stores={{"postgresql":{{"secretName":"a"}},"s3":{{"endpoint":"{endpoint}","bucket":"runs","secretName":"a","allowHttp":true}}}}',
       [f"endpoint has port {port}", "networkPolicy.s3.ports"])
      for endpoint, port in [("https://s3.example.com:9000", 9000), ("http://s3.example.com", 80), ("http://minio.storage.svc:9000", 9000)]],
    ('gateway.stores.s3.endpoint="s3.example.com"', ["/gateway/stores/s3/endpoint", "does not match"]),
    ('gateway.stores.s3.bucket="Runs"', ["/gateway/stores/s3/bucket", "does not match"]),
    ('gateway.stores.postgresql.url="postgres://u:p@h/d"', ["/gateway/stores/postgresql", "'url' not allowed"]),
    ('gateway.retentionDays=0', ["/gateway/retentionDays", "got 0, want 1"]),
    ('gateway.service.type="ExternalName"', ["/gateway/service/type", "'ClusterIP'"]),
    ('gateway.podLabels={"app.kubernetes.io/component":"operator"}', ["/gateway/podLabels/app.kubernetes.io~1component"]),
    ('gateway.podLabels={"agentrun.dev/component":"sandbox"}', ["/gateway/podLabels/agentrun.dev~1component"]),
    ('gateway.allowedHosts=["https://agents.example.com"]', ["/gateway/allowedHosts/0", "does not match"]),
    ('gateway.allowedOrigins=["*"]', ["/gateway/allowedOrigins/0", "does not match"]),
    ('operator.replicas=0', ["/operator/replicas", "got 0, want 1"]),
    ('operator.resources={"limit":{"memory":"1Gi"}}', ["/operator/resources", "'limit' not allowed"]),
    ('operator.resources={"limits":{"memory":"lots"}}', ["/operator/resources/limits/memory", "'lots' does not match"]),
    ('operator.resources={"limits":{"memry":"1Gi"}}', ["/operator/resources/limits", "'memry' not allowed"]),
    ('operator.tolerations=[{"key":"a","effects":"NoSchedule"}]', ["/operator/tolerations/0", "'effects' not allowed"]),
    ('operator.affinity={"podAffinty":{}}', ["/operator/affinity", "'podAffinty' not allowed"]),
    ('operator.extraArgs=["rm -rf"]', ["/operator/extraArgs/0", "does not match"]),
    ('images.pullPolicy="Sometimes"', ["/images/pullPolicy", "'IfNotPresent'"]),
    ('images.registry="https://registry.example.com"', ["/images/registry", "does not match"]),
    ('images.registry=""', ["/images/registry", "does not match"]),
    ('images.runner.tag="a b"', ["/images/runner/tag", "does not match"]),
    ('images.runner.digest="sha256:abc"', ["/images/runner/digest", "does not match"]),
    ('images.pullSecrets=["registry"]', ["/images/pullSecrets/0", "want object"]),
    ('images.executor={"tag":"1"}', ["/images", "'executor' not allowed"]),
    ('certManager.issuerRef={"name":"x","kind":"Isuer"}', ["/certManager/issuerRef/kind", "'Issuer'"]),
    ('certManager.duration="90 days"', ["/certManager/duration", "does not match"]),
    ('networkPolicy.peopleFrom=[{}]', ["/networkPolicy/peopleFrom/0", "minProperties"]),
    ('networkPolicy.peopleFrom=[{"namespaceSelecter":{}}]', ["/networkPolicy/peopleFrom/0", "'namespaceSelecter' not allowed"]),
    ('networkPolicy.apiServerPorts=[]', ["/networkPolicy/apiServerPorts", "minItems"]),
    ('networkPolicy.providerPorts=[70000]', ["/networkPolicy/providerPorts/0", "got 70,000, want 65,535"]),
    ('networkPolicy.s3.ports=[]', ["/networkPolicy/s3/ports", "minItems"]),
    ('networkPolicy.postgresql.to=[{}]', ["/networkPolicy/postgresql/to/0", "minProperties"]),
    ('networkPolicy.gatewayExtraEgress=[{}]', ["/networkPolicy/gatewayExtraEgress/0", "minProperties"]),
    ('log.level="info; rm"', ["/log/level", "does not match"]),
    ('log.format="xml"', ["/log/format", "'json'"]),
    ('admission.submitter="yes"', ["/admission/submitter", "want boolean"]),
    ('admission.sandboxes="yes"', ["/admission/sandboxes", "want boolean"]),
    ('admission.allowedAnnotations=["*"]', ["/admission/allowedAnnotations/0", "does not match"]),
    ('admission.allowedLabels=["a/b/c"]', ["/admission/allowedLabels/0", "does not match"]),
    ('rbac.aggregate="yes"', ["/rbac/aggregate", "want boolean"]),
    ('crds.instal=true', ["/crds", "'instal' not allowed"]),
]


class Values(unittest.TestCase):
    def test_documented_values_pass_lint_and_render(self):
        for values in VALUES:
            with self.subTest(values or "defaults"):
                status, text = helm("lint", str(CHART), "--strict", "--namespace", "agentrun-system", *file_arguments(values))
                self.assertEqual(status, 0, text)
                self.assertGreater(len(render(values)), 8)

    def test_each_documented_file_opens_with_a_comment(self):
        for path in (CHART / "ci").glob("*.yaml"):
            with self.subTest(path.name):
                self.assertTrue(path.read_text().startswith("# "))

    def test_wrong_values_are_refused_by_name(self):
        for argument, expected in REFUSED:
            with self.subTest(argument):
                status, text = template("--set-json", argument)
                self.assertNotEqual(status, 0, "accepted")
                for part in expected:
                    self.assertIn(part, text)

    def test_every_object_of_the_schema_refuses_unknown_keys(self):
        free = {"global", "nodeAffinity", "podAffinity", "podAntiAffinity"}   # Kubernetes' own, checked by the API server

        def walk(node, path):
            if isinstance(node, list):
                return [walk(item, path) for item in node]
            if not isinstance(node, dict):
                return None
            if node.get("type") == "object" and path[-1] not in free:
                with self.subTest("/".join(path)):
                    self.assertIn("additionalProperties", node)
                    self.assertIsNot(node["additionalProperties"], True)
            return [walk(item, [*path, key]) for key, item in node.items()]

        walk(schema(), ["values"])

    def test_schema_and_values_have_the_same_keys(self):
        whole = schema()

        def resolve(node):
            return resolve(whole["$defs"][node["$ref"].rsplit("/", 1)[1]]) if "$ref" in node else node

        def keys(node, values, path):
            node = resolve(node)
            if "properties" not in node or values == {}:   # a map of the user's own keys, or one whose keys are optional
                return
            with self.subTest(path or "values"):
                self.assertEqual(set(node["properties"]) - {"global"}, set(values))
            for key, value in values.items():
                if isinstance(value, dict) and key in node["properties"] and key not in ("resources",):
                    keys(node["properties"][key], value, f"{path}/{key}")

        keys(whole, default_values(), "")

    def test_every_value_has_a_comment(self):
        lines = (CHART / "values.yaml").read_text().splitlines()
        for number, line in enumerate(lines):
            if not line.strip() or line.lstrip().startswith(("#", "- ")) or line.endswith(":") and not line.startswith(" "):
                continue
            above = number - 1
            # Siblings may share the comment above the first; a section's name speaks for itself.
            while above >= 0 and lines[above].strip() and not lines[above].lstrip().startswith("#"):
                above -= 1
            with self.subTest(line.strip()):
                self.assertTrue(above >= 0 and lines[above].lstrip().startswith("#"), "no comment above")

    def test_as_part_of_another_chart(self):
        with tempfile.TemporaryDirectory() as folder:
            parent = pathlib.Path(folder) / "parent"
            (parent / "charts").mkdir(parents=True)
            (parent / "Chart.yaml").write_text("apiVersion: v2\nname: parent\nversion: 0.1.0\n")
            (parent / "charts" / "agentrun").symlink_to(CHART)
            (parent / "values.yaml").write_text(json.dumps({"global": {"a": 1}, "agentrun": {"operator": {"replicas": 2}}}))
            status, text = helm("template", "parent", str(parent))
            self.assertEqual(status, 0, text)
            self.assertIn("replicas: 2", text)
