"""Who submitted a run is stamped by the newest API that the cluster has, and nowhere twice; the walls refuse, and are asked about
nothing but what is ours. e2e/tests/api/submitter.rs and walls.rs try them."""
import re
import unittest

from chart import NAMESPACE, find, render

GROUP = "admissionregistration.k8s.io"
OPERATOR = f"'system:serviceaccount:{NAMESPACE}:agentrun-operator'"
GATEWAY = f"'system:serviceaccount:{NAMESPACE}:agentrun-gateway'"


def served(*versions):
    return [f"--api-versions={GROUP}/{version}/MutatingAdmissionPolicy" for version in versions]


def admission(values="", *arguments):
    return [o for o in render(values, *arguments) if o["apiVersion"].startswith(GROUP)]


class Submitter(unittest.TestCase):
    def test_by_what_the_cluster_has(self):
        for versions, expected in (
            (("v1beta1", "v1"), {("MutatingAdmissionPolicy", "v1"), ("MutatingAdmissionPolicyBinding", "v1")}),
            (("v1beta1",), {("MutatingAdmissionPolicy", "v1beta1"), ("MutatingAdmissionPolicyBinding", "v1beta1")}),
            ((), {("ValidatingAdmissionPolicy", "v1"), ("ValidatingAdmissionPolicyBinding", "v1")}),
        ):
            with self.subTest(versions or "neither"):
                found = [o for o in admission("", *served(*versions)) if o["metadata"]["name"] == "agentrun-submitter"]
                self.assertEqual({(o["kind"], o["apiVersion"].removeprefix(f"{GROUP}/")) for o in found}, expected)
                [policy] = [o["spec"] for o in found if not o["kind"].endswith("Binding")]
                self.assertEqual(policy["failurePolicy"], "Fail")
                self.assertIn(GATEWAY, policy["matchConditions"][-1]["expression"])
                [rule] = policy["matchConstraints"]["resourceRules"]
                self.assertEqual((rule["apiGroups"], rule["resources"]), (["agentrun.dev"], ["agentruns"]))

    def test_off(self):
        for versions in ((), ("v1",)):
            self.assertEqual(admission("by-hand.yaml", *served(*versions)), [])

    def test_the_gateway_that_may_name_people_is_the_one_of_the_release(self):
        find(render(), "ServiceAccount", "agentrun-gateway")


class Walls(unittest.TestCase):
    def policies(self, prefix):
        found = [o for o in admission("", "--set", "admission.submitter=false") if o["metadata"]["name"].startswith(prefix)]
        return {o["metadata"]["name"]: o["spec"] for o in found if o["kind"] == "ValidatingAdmissionPolicy"}, \
               {o["metadata"]["name"]: o["spec"] for o in found if o["kind"] == "ValidatingAdmissionPolicyBinding"}

    def test_each_fails_closed_is_bound_and_refuses(self):
        policies, bindings = self.policies("")
        self.assertGreater(len(policies), 5)
        self.assertEqual(set(policies), {binding["policyName"] for binding in bindings.values()})
        for name, binding in bindings.items():
            with self.subTest(name):
                self.assertEqual(binding["validationActions"], ["Deny"])
        for name, policy in policies.items():
            with self.subTest(name):
                self.assertEqual(policy["failurePolicy"], "Fail")
                for validation in policy["validations"]:
                    self.assertTrue(validation.get("message") or validation.get("messageExpression"), validation["expression"])

    def test_pods_of_others_never_meet_them(self):
        """Each policy about Pods selects them by a label of ours, in itself or in all its bindings; or, where the API server shows
        none, by name."""
        policies, bindings = self.policies("agentrun-sandbox")
        for name, policy in policies.items():
            with self.subTest(name):
                bound = [binding.get("matchResources", {}) for binding in bindings.values() if binding["policyName"] == name]
                selectors = [policy["matchConstraints"].get("objectSelector") or match.get("objectSelector") for match in bound]
                by_label = all(s and s["matchExpressions"][0]["key"].startswith("agentrun.dev/") for s in selectors)
                by_name = [c["name"] for c in policy.get("matchConditions", [])] == ["by-name"]
                self.assertTrue(by_label or by_name)

    def test_who_makes_sandboxes(self):
        policies, _ = self.policies("agentrun-sandbox-labels")
        self.assertIn(OPERATOR, policies["agentrun-sandbox-labels"]["validations"][0]["expression"])

    def test_what_may_be_added_to_a_sandbox(self):
        arguments = ["--set-json", 'admission.allowedAnnotations=["k8s.ovn.org/pod-networks"]', "--set-json", 'admission.allowedLabels=["team"]']
        [policy] = [o for o in admission("", *arguments) if o["metadata"]["name"] == "agentrun-sandbox-metadata" and "variables" in o["spec"]]
        expressions = {v["name"]: v["expression"] for v in policy["spec"]["variables"]}
        self.assertIn('"karpenter.sh/do-not-disrupt","k8s.ovn.org/pod-networks"]', expressions["annotations"])
        self.assertIn('["team"]', expressions["labels"])

    def test_each_field_of_a_runs_status_has_its_writer(self):
        """A field that is new in the CRD belongs to the operator, to the gateway, or, by rules of its own, to both."""
        policies, _ = self.policies("agentrun-run-status")
        expressions = {v["name"]: v["expression"] for v in policies["agentrun-run-status"]["variables"]}
        fields = {name: re.findall(r"'(\w+)'", expressions[f"{name}Fields"]) for name in ("operator", "gateway")}
        crd = find(render(), "CustomResourceDefinition", "agentruns.agentrun.dev")
        status = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
        both = ["budget", "requestsText", "costText"]
        self.assertEqual(sorted(fields["operator"] + fields["gateway"] + both), sorted(status))

    def test_off(self):
        for switch, prefixes in (("sandboxes", ("agentrun-sandbox",)), ("status", ("agentrun-run", "agentrun-policy"))):
            left = [o["metadata"]["name"] for o in admission("", "--set", f"admission.{switch}=false")]
            with self.subTest(switch):
                self.assertTrue(left)
                self.assertEqual([name for name in left if name.startswith(prefixes)], [])
