"""Renders the chart, and reads what came out. YAML is turned into JSON by kubectl, so only Python's standard library is used."""
import functools
import json
import os
import pathlib
import subprocess
import textwrap

CHART = pathlib.Path(__file__).resolve().parent.parent
NAMESPACE = "agentrun-system"
# Every documented values file, and those of the local cluster; "" is the defaults.
VALUES = ["", *sorted(path.name for path in (CHART / "ci").glob("*.yaml")), "../../../e2e/values.yaml"]


def helm(verb, *arguments):
    """The exit status and everything that helm printed."""
    done = subprocess.run(["helm", verb, *arguments], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def template(*arguments):
    return helm("template", "agentrun", str(CHART), "--namespace", NAMESPACE, *arguments)


def file_arguments(values):
    return ["--values", str(CHART / "ci" / values)] if values else []


def parse(yaml):
    """The objects in some YAML. kubectl's --local talks to no server."""
    done = subprocess.run(
        ["kubectl", "label", "--local", "--overwrite", "-f", "-", "-o", "json", "check=1"],
        input=yaml, capture_output=True, text=True, check=True, env={"KUBECONFIG": "/dev/null", "PATH": os.environ["PATH"]},
    )
    objects, decoder, rest = [], json.JSONDecoder(), done.stdout.strip()
    while rest:
        value, end = decoder.raw_decode(rest)
        objects.append(value)
        rest = rest[end:].strip()
    return objects


@functools.cache
def render(values="", *arguments):
    """The objects of the chart with a documented values file and further helm arguments."""
    status, text = template(*file_arguments(values), *arguments)
    if status != 0:
        raise AssertionError(f"helm template with {values or 'the defaults'} {arguments}:\n{text}")
    return parse(text)


@functools.cache
def default_values():
    """values.yaml."""
    text = textwrap.indent((CHART / "values.yaml").read_text(), "  ")
    return parse(f"apiVersion: check/v1\nkind: Values\nmetadata: {{name: values}}\nvalues:\n{text}")[0]["values"]


def schema():
    return json.loads((CHART / "values.schema.json").read_text())


def find(objects, kind, name):
    """The one object of this kind and name."""
    [found] = [o for o in objects if o["kind"] == kind and o["metadata"]["name"] == name]
    return found


def pod_specs(objects):
    """(description, Pod spec) of everything that makes Pods."""
    for o in objects:
        if o["kind"] in ("Deployment", "StatefulSet", "Job", "DaemonSet"):
            yield f"{o['kind']}/{o['metadata']['name']}", o["spec"]["template"]["spec"]
        elif o["kind"] == "Pod":
            yield f"Pod/{o['metadata']['name']}", o["spec"]
