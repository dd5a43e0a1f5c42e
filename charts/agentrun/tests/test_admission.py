"""Who submitted a run is stamped by the newest API that the cluster has, and nowhere twice. e2e/tests/api/submitter.rs tries both."""
import unittest

from chart import NAMESPACE, find, render

GROUP = "admissionregistration.k8s.io"


def served(*versions):
    return [f"--api-versions={GROUP}/{version}/MutatingAdmissionPolicy" for version in versions]


class Submitter(unittest.TestCase):
    def test_by_what_the_cluster_has(self):
        for versions, expected in (
            (("v1beta1", "v1"), {("MutatingAdmissionPolicy", "v1"), ("MutatingAdmissionPolicyBinding", "v1")}),
            (("v1beta1",), {("MutatingAdmissionPolicy", "v1beta1"), ("MutatingAdmissionPolicyBinding", "v1beta1")}),
            ((), {("ValidatingAdmissionPolicy", "v1"), ("ValidatingAdmissionPolicyBinding", "v1")}),
        ):
            with self.subTest(versions or "neither"):
                found = [o for o in render("", *served(*versions)) if o["apiVersion"].startswith(GROUP)]
                self.assertEqual({(o["kind"], o["apiVersion"].removeprefix(f"{GROUP}/")) for o in found}, expected)
                for o in found:
                    self.assertEqual(o["metadata"]["name"], "agentrun-submitter")
                [policy] = [o["spec"] for o in found if not o["kind"].endswith("Binding")]
                self.assertEqual(policy["failurePolicy"], "Fail")
                self.assertIn(f"'system:serviceaccount:{NAMESPACE}:agentrun-gateway'", policy["matchConditions"][-1]["expression"])
                [rule] = policy["matchConstraints"]["resourceRules"]
                self.assertEqual((rule["apiGroups"], rule["resources"]), (["agentrun.dev"], ["agentruns"]))

    def test_off(self):
        for versions in ((), ("v1",)):
            self.assertEqual([o for o in render("by-hand.yaml", *served(*versions)) if o["apiVersion"].startswith(GROUP)], [])

    def test_the_gateway_that_may_name_people_is_the_one_of_the_release(self):
        find(render(), "ServiceAccount", "agentrun-gateway")
