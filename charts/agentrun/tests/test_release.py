"""What an installation, an upgrade and an uninstallation leave: CRDs stay, names are fixed, notes warn."""
import pathlib
import re
import tempfile
import unittest

from chart import CHART, NAMESPACE, VALUES, file_arguments, helm, render

KINDS = {"agentruns.agentrun.dev", "agentpolicies.agentrun.dev", "modelproviders.agentrun.dev", "agentrunrecords.agentrun.dev", "agenttemplates.agentrun.dev"}


def notes(*arguments):
    """NOTES as `helm install` would print them, without a cluster."""
    status, text = helm("install", "agentrun", str(CHART), "--namespace", NAMESPACE, "--dry-run=client", "--no-hooks", *arguments)
    if status != 0:
        raise AssertionError(text)
    return text.split("\nNOTES:\n", 1)[1]


class Release(unittest.TestCase):
    def test_the_crds_are_kept_and_can_be_left_out(self):
        found = {o["metadata"]["name"]: o for o in render() if o["kind"] == "CustomResourceDefinition"}
        self.assertEqual(set(found), KINDS)
        for name, crd in found.items():
            with self.subTest(name):
                self.assertEqual(crd["metadata"]["annotations"]["helm.sh/resource-policy"], "keep")
        self.assertEqual([o for o in render("by-hand.yaml") if o["kind"] == "CustomResourceDefinition"], [])

    def test_names_do_not_follow_the_release(self):
        """The TLS name, the operator's lease and the kinds are the cluster's: a second release must collide, not compete."""
        _, text = helm("template", "another", str(CHART), "--namespace", NAMESPACE)
        for line in re.findall(r"^  name: (.*)$", text, re.M):
            self.assertNotIn("another", line)

    def test_everything_namespaced_is_in_the_release_namespace(self):
        cluster = {"ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}
        for values in VALUES:
            for o in render(values):
                # The one grant that only kube-system can give: to read whom the front proxy's certificate is of.
                elsewhere = {"agentrun-gateway-front-proxy": "kube-system"}.get(o["metadata"]["name"], NAMESPACE)
                if o["kind"] not in cluster:
                    self.assertEqual(o["metadata"].get("namespace"), elsewhere, f"{o['kind']}/{o['metadata']['name']}")

    def test_rendering_twice_gives_the_same(self):
        """No random values: an upgrade to the same version with the same values restarts nothing."""
        first, second = (helm("template", "agentrun", str(CHART), "--namespace", NAMESPACE) for _ in range(2))
        self.assertEqual(first, second)

    def test_helm_test_has_something_to_run(self):
        [hook] = [o for o in render() if "helm.sh/hook" in o["metadata"].get("annotations", {})]
        self.assertEqual((hook["kind"], hook["metadata"]["annotations"]["helm.sh/hook"]), ("Pod", "test"))

    def test_the_package_has_no_tests_in_it(self):
        with tempfile.TemporaryDirectory() as folder:
            status, text = helm("package", str(CHART), "--destination", folder)
            self.assertEqual(status, 0, text)
            import tarfile
            names = tarfile.open(next(pathlib.Path(folder).glob("*.tgz"))).getnames()
        self.assertIn("agentrun/values.schema.json", names)
        self.assertEqual([n for n in names if n.startswith(("agentrun/tests", "agentrun/ci", "agentrun/check.sh"))], [])

    def test_notes_warn_of_what_is_risky(self):
        rows = [
            ([], ["no registry serves it", "any Pod of the cluster may talk to port 9443"], ["ARE LOST", "networkPolicy.enabled=false"]),
            (file_arguments("production.yaml"), ["helm test agentrun", "Note admission.submitter: this cluster"], ["WARNING", "Note networkPolicy"]),
            (file_arguments("trial.yaml"), ["ARE LOST"], []),
            (file_arguments("model-in-cluster.yaml"), ["no registry serves it"], ["ARE LOST"]),
            (file_arguments("by-hand.yaml"), ["networkPolicy.enabled=false", "service.type=LoadBalancer", "crds.install=false",
                                              "spec.submittedBy OF A RUN", "WARNING admission.sandboxes=false", "WARNING admission.status=false"], ["Note admission"]),
            (file_arguments("replicas.yaml"), ["are in PostgreSQL and S3"], ["ARE LOST", "WARNING gateway"]),
            (["--set", "log.level=trace"], ["log.level=trace"], []),
        ]
        for arguments, expected, absent in rows:
            with self.subTest(" ".join(map(str, arguments)) or "defaults"):
                text = notes(*arguments)
                for part in expected:
                    self.assertIn(part, text)
                for part in absent:
                    self.assertNotIn(part, text)
