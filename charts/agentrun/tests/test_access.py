"""Roles are exactly what they should be, and NetworkPolicies open exactly what they should."""
import unittest

from chart import NAMESPACE, find, render

SELECTOR = {c: {"app.kubernetes.io/name": "agentrun", "app.kubernetes.io/component": c} for c in ("operator", "gateway")}


def grants(objects, kind, name):
    """{(group, resource, object name or ""): verbs}."""
    found = {}
    for rule in find(objects, kind, name)["rules"]:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                for only in rule.get("resourceNames", [""]):
                    found.setdefault((group, resource, only), set()).update(rule["verbs"])
    return found


class Roles(unittest.TestCase):
    def test_the_gateway_in_the_cluster(self):
        """No Secrets, no Pods but to look at one, no write but status, submitting, cancelling, Events and reviews."""
        self.assertEqual(grants(render(), "ClusterRole", "agentrun-gateway"), {
            ("agentrun.dev", "agentruns", ""): {"get", "list", "watch", "create", "patch"},
            ("agentrun.dev", "agentruns/status", ""): {"patch"},
            ("agentrun.dev", "agentpolicies", ""): {"get", "list", "watch"},
            ("agentrun.dev", "agentpolicies/status", ""): {"patch"},
            ("events.k8s.io", "events", ""): {"create"},
            ("", "pods", ""): {"get"},
            ("authentication.k8s.io", "tokenreviews", ""): {"create"},
            ("authorization.k8s.io", "subjectaccessreviews", ""): {"create"},
        })

    def test_the_gateway_at_home(self):
        """It reads a Secret whose name it knows, and lists none."""
        self.assertEqual(grants(render(), "Role", "agentrun-gateway"), {
            ("agentrun.dev", "modelproviders", ""): {"get", "list", "watch"},
            ("", "secrets", ""): {"get"},
            ("", "secrets", "agentrun-gateway-tls"): {"list", "watch"},
            ("", "secrets", "agentrun-token-keys"): {"list", "watch"},
            ("coordination.k8s.io", "leases", ""): {"create"},
            ("coordination.k8s.io", "leases", "agentrun-gateway"): {"get", "patch"},
        })

    def test_git_credentials(self):
        """Each by its name, in the namespace that was named, and none without."""
        self.assertFalse([o for o in render() if o["metadata"]["name"] == "agentrun-gateway-git"])
        values = ["--set-json", 'gateway.gitSecrets=[{"namespace":"team-a","names":["git-credentials"]}]']
        objects = render("", *values)
        self.assertEqual(grants(objects, "Role", "agentrun-gateway-git"), {("", "secrets", "git-credentials"): {"get"}})
        for kind in ("Role", "RoleBinding"):
            self.assertEqual(find(objects, kind, "agentrun-gateway-git")["metadata"]["namespace"], "team-a")
        self.assertEqual(find(objects, "RoleBinding", "agentrun-gateway-git")["subjects"],
                         [{"kind": "ServiceAccount", "name": "agentrun-gateway", "namespace": NAMESPACE}])

    def test_the_operator_in_the_cluster(self):
        """It makes and removes tickets and reads no Secret; it makes Pods and never enters one."""
        self.assertEqual(grants(render(), "ClusterRole", "agentrun-operator"), {
            ("agentrun.dev", "agentruns", ""): {"get", "list", "watch", "patch", "delete"},
            ("agentrun.dev", "agentruns/status", ""): {"patch"},
            ("agentrun.dev", "agentpolicies", ""): {"get", "list", "watch"},
            ("agentrun.dev", "agentrunrecords", ""): {"get", "list", "create", "patch", "delete"},
            ("", "namespaces", ""): {"get"},
            ("", "pods", ""): {"create", "get", "list", "watch", "delete"},
            ("", "secrets", ""): {"create", "delete"},
            ("networking.k8s.io", "networkpolicies", ""): {"create", "get", "list", "watch", "patch", "delete"},
            ("", "serviceaccounts", ""): {"create", "get"},
            ("events.k8s.io", "events", ""): {"create", "patch"},
            ("apiregistration.k8s.io", "apiservices", ""): {"create"},
            ("apiregistration.k8s.io", "apiservices", "v1alpha1.run.agentrun.dev"): {"get", "patch", "delete"},
            ("rbac.authorization.k8s.io", "clusterroles", "agentrun-operator"): {"get"},
        })

    def test_the_operator_at_home(self):
        """Secrets by name only: provider keys are not among them. cert-manager's authority is none of its business."""
        common = {
            ("agentrun.dev", "modelproviders", ""): {"get", "list", "watch"},
            ("agentrun.dev", "agenttemplates", ""): {"get", "list", "watch"},
            ("coordination.k8s.io", "leases", ""): {"create"},
            ("coordination.k8s.io", "leases", "agentrun-operator"): {"get", "patch"},
            ("", "services", "agentrun-gateway"): {"get"},
            ("discovery.k8s.io", "endpointslices", ""): {"list"},
            ("", "secrets", "agentrun-token-keys"): {"get"},
        }
        for values, certificates in (
            ("", {("", "secrets", "agentrun-ca"): {"get", "update"}, ("", "secrets", "agentrun-gateway-tls"): {"get", "update"}}),
            ("cert-manager.yaml", {("", "secrets", "agentrun-gateway-tls"): {"get"}}),
        ):
            with self.subTest(values or "defaults"):
                self.assertEqual(grants(render(values), "Role", "agentrun-operator"), common | certificates)

    def test_no_wildcards_and_no_escalation(self):
        for o in render():
            for rule in o.get("rules", []) if o["kind"] in ("Role", "ClusterRole") else []:
                with self.subTest(o["metadata"]["name"]):
                    for key in ("apiGroups", "resources", "verbs"):
                        self.assertNotIn("*", rule[key])
                    self.assertFalse({"escalate", "bind", "impersonate"} & set(rule["verbs"]))

    def test_each_binding_is_of_one_account(self):
        bindings = [o for o in render() if o["kind"] in ("RoleBinding", "ClusterRoleBinding")]
        self.assertEqual(len(bindings), 5)
        for o in bindings:
            name = o["metadata"]["name"]
            if name == "agentrun-gateway-front-proxy":
                self.assertEqual(o["subjects"], [{"kind": "ServiceAccount", "name": "agentrun-gateway", "namespace": NAMESPACE}])
                self.assertEqual((o["metadata"]["namespace"], o["roleRef"]["name"]),
                                 ("kube-system", "extension-apiserver-authentication-reader"))
                continue
            self.assertEqual(o["subjects"], [{"kind": "ServiceAccount", "name": name, "namespace": NAMESPACE}])
            self.assertEqual(o["roleRef"]["name"], name)
            self.assertEqual(o["roleRef"]["kind"], o["kind"].removesuffix("Binding"))

    def test_people(self):
        """View reads, edit writes and ends runs, an approver decides, admin forgets; nobody writes policies, providers or status."""
        served = "run.agentrun.dev"
        reading = {("agentrun.dev", kind, ""): {"get", "list", "watch"} for kind in ("agentruns", "agentrunrecords", "agentpolicies")}
        reading |= {(served, f"agentruns/{part}", ""): {"get"} for part in ("events", "log", "approvals", "artifacts", "patch")}
        self.assertEqual(grants(render(), "ClusterRole", "agentrun-view"), reading)
        self.assertEqual(grants(render(), "ClusterRole", "agentrun-edit"), {
            ("agentrun.dev", "agentruns", ""): {"create", "update", "patch", "delete", "deletecollection"},
            (served, "agentruns/cancel", ""): {"create", "update"},
            (served, "agentruns/source", ""): {"create", "update"},
        })
        self.assertEqual(grants(render(), "ClusterRole", "agentrun-admin"), {("agentrun.dev", "agentrunrecords", ""): {"delete"}})
        self.assertEqual(grants(render(), "ClusterRole", "agentrun-approver"), reading | {
            ("agentrun.dev", "agentruns", ""): {"get", "list", "watch", "approve"},
            (served, "agentruns/approvals", ""): {"get", "create"},
        })

    def test_what_is_added_to_the_clusters_own_roles(self):
        """Deciding comes with admin, not with edit: who submits should not thereby approve."""
        prefix = "rbac.authorization.k8s.io/aggregate-to-"
        for values, expected in (
            ("", {"agentrun-view": {"view", "edit", "admin"}, "agentrun-edit": {"edit", "admin"}, "agentrun-admin": {"admin"},
              "agentrun-approver": {"admin"}}),
            ("by-hand.yaml", {}),
        ):
            found = {}
            for o in render(values):
                to = {label.removeprefix(prefix) for label in o["metadata"].get("labels", {}) if label.startswith(prefix)}
                if to:
                    found[o["metadata"]["name"]] = to
            with self.subTest(values or "defaults"):
                self.assertEqual(found, expected)
                find(render(values), "ClusterRole", "agentrun-approver")


class NetworkPolicies(unittest.TestCase):
    def rules(self, values, name, direction):
        """{port: peers}; None = any port, or anybody."""
        found = {}
        for rule in find(render(values), "NetworkPolicy", name)["spec"][direction]:
            for port in rule.get("ports", [{"port": None}]):
                found[port["port"]] = rule.get("from" if direction == "ingress" else "to")
        return found

    def test_selectors_fit_the_pods(self):
        for component, kind in (("operator", "Deployment"), ("gateway", "StatefulSet")):
            name = f"agentrun-{component}"
            policy = find(render(), "NetworkPolicy", name)["spec"]
            self.assertEqual(policy["podSelector"]["matchLabels"], SELECTOR[component])
            self.assertEqual(policy["policyTypes"], ["Ingress", "Egress"])
            workload = find(render(), kind, name)["spec"]
            self.assertEqual(workload["selector"]["matchLabels"], SELECTOR[component])
            self.assertLessEqual(SELECTOR[component].items(), workload["template"]["metadata"]["labels"].items())
            self.assertEqual(find(render(), "Service", name)["spec"]["selector"], SELECTOR[component])

    def test_who_reaches_the_gateway(self):
        sandbox = [{"namespaceSelector": {}, "podSelector": {"matchLabels": {"agentrun.dev/component": "sandbox"}}}]
        monitoring = [{"podSelector": {}}, {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]
        ingress = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ingress"}}}]
        self.assertEqual(self.rules("", "agentrun-gateway", "ingress"),
                         {"sandbox": sandbox, "people": [{"namespaceSelector": {}}], "aggregated": None, "operations": [{"podSelector": {}}]})
        self.assertEqual(self.rules("production.yaml", "agentrun-gateway", "ingress"),
                         {"sandbox": sandbox, "people": ingress, "aggregated": None, "operations": monitoring})
        closed = find(render("", "--set-json", "networkPolicy.peopleFrom=[]"), "NetworkPolicy", "agentrun-gateway")
        self.assertNotIn("people", [port["port"] for rule in closed["spec"]["ingress"] for port in rule["ports"]])

    def test_where_they_get_to(self):
        self.assertEqual(set(self.rules("", "agentrun-operator", "egress")), {443, 6443})
        dns = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}}, "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}}}]
        self.assertEqual(self.rules("", "agentrun-gateway", "egress"), {53: None, 443: None, 6443: None, None: dns})
        model = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "models"}}}]
        self.assertEqual(self.rules("model-in-cluster.yaml", "agentrun-gateway", "egress")[8080], model)
        stores = self.rules("replicas.yaml", "agentrun-gateway", "egress")
        for port, namespace in ((5432, "databases"), (9000, "storage")):
            self.assertEqual(stores[port], [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}])

    def test_policy_ports_are_ports_of_the_container(self):
        for component, kind in (("operator", "Deployment"), ("gateway", "StatefulSet")):
            [c] = find(render(), kind, f"agentrun-{component}")["spec"]["template"]["spec"]["containers"]
            ports = {p["name"]: p["containerPort"] for p in c["ports"]}
            service = {p["name"]: p["port"] for p in find(render(), "Service", f"agentrun-{component}")["spec"]["ports"]}
            self.assertEqual(ports, service)
            self.assertLessEqual(set(self.rules("", f"agentrun-{component}", "ingress")), set(ports))
        self.assertEqual(ports, {"sandbox": 8443, "people": 9443, "aggregated": 7443, "operations": 8081})

    def test_off(self):
        self.assertEqual([o for o in render("by-hand.yaml") if o["kind"] == "NetworkPolicy"], [])
