#!/usr/bin/env python3
"""Show a run as it happens, from the gateway's event stream, and save its patch. Only the Python standard library.

Usage: watch.py NAMESPACE RUN [--patch FILE]        exit status 0 if the run succeeded
Follows GET /v1/namespaces/{ns}/runs/{run}/events, resumes after a cut by `?after=`, and ends at the event `end`.
"""
import argparse
import base64
import http.client
import json
import os
import socket
import ssl
import subprocess
import sys
import time

SYSTEM = "agentrun-system"
GATEWAY = "agentrun-gateway"
COLOURS = {"bold": 1, "dim": 2, "red": 31, "green": 32, "yellow": 33, "blue": 34, "cyan": 36}


def paint(text, *names):
    if not sys.stdout.isatty() and not os.environ.get("FORCE_COLOR"):
        return text
    return "".join(f"\033[{COLOURS[n]}m" for n in names) + text + "\033[0m"


def kubectl(*arguments):
    return subprocess.run(["kubectl", *arguments], check=True, capture_output=True, text=True).stdout.strip()


class Gateway:
    """The people listener, by its Service's address, which is reachable from the machine that the local cluster runs on."""

    def __init__(self, namespace):
        service = json.loads(kubectl("get", "service", GATEWAY, "-n", SYSTEM, "-o", "json"))["spec"]
        self.address = service["clusterIP"]
        self.port = next(p["port"] for p in service["ports"] if p["name"] == "people")
        ca = kubectl("get", "secret", f"{GATEWAY}-tls", "-n", SYSTEM, "-o", r"jsonpath={.data.ca\.crt}")
        self.tls = ssl.create_default_context(cadata=base64.b64decode(ca).decode())
        # A token for this one purpose, of an account that may only read the namespace.
        self.token = kubectl("create", "token", "viewer", "-n", namespace, "--audience", GATEWAY)

    def get(self, path):
        name = f"{GATEWAY}.{SYSTEM}.svc"
        connection = http.client.HTTPSConnection(name, self.port, timeout=60)
        # The name is for the certificate; nothing on this machine resolves it.
        connection.sock = self.tls.wrap_socket(socket.create_connection((self.address, self.port), 60), server_hostname=name)
        connection.request("GET", path, headers={"Authorization": f"Bearer {self.token}", "Accept": "application/x-ndjson"})
        response = connection.getresponse()
        if response.status != 200:
            raise OSError(f"GET {path}: {response.status} {response.read(2000).decode(errors='replace')}")
        return response


def clipped(text, lines=12):
    rows = text.rstrip("\n").splitlines()
    more = [f"… {len(rows) - lines} more lines"] if len(rows) > lines else []
    return rows[:lines] + more


def indent(text, colour="dim", lines=12):
    for row in clipped(text, lines):
        print("      " + paint("│ ", "dim") + paint(row, colour))


class View:
    """One method an event type; an unknown type is shown as it is."""

    def __init__(self):
        self.started = time.monotonic()
        self.phase = None
        self.result = {}
        self.shown = False   # whether the output of the command at hand was shown live

    def line(self, mark, text):
        print(f"{time.monotonic() - self.started:6.1f}s {mark} {text}", flush=True)

    def show(self, kind, data):
        handler = getattr(self, "on_" + kind, None)
        handler(data) if handler else self.line("·", f"{kind} {json.dumps(data)[:200]}")

    def on_phase(self, data):
        self.phase = data.get("phase")
        colour = {"Succeeded": "green", "Failed": "red"}.get(self.phase, "blue")
        detail = " · ".join(x for x in (data.get("reason"), data.get("message")) if x)
        self.line("●", paint(self.phase, "bold", colour) + (f"  {detail}" if detail else ""))

    def on_step(self, data):
        self.line(" ", paint(f"step {data.get('step')} of {data.get('maxSteps')}", "dim"))

    def on_model_call(self, data):
        cost = data.get("costMicros") or 0
        self.line("◆", f"model call to {data.get('model')}: {data.get('inputTokens', 0)} tokens in, {data.get('outputTokens', 0)} out, "
                  f"{cost / 1e6:.6f} spent on it; " + paint(f"requests {data.get('requestsSpent')}/{data.get('requestsLimit')}", "cyan"))

    def on_budget(self, data):
        self.line("◆", paint(f"budget {data.get('gate')}" + (f" ({data['dimension']})" if data.get("dimension") else ""), "cyan"))

    def on_message(self, data):
        self.line("»", data.get("text", "").strip())

    def on_tool_call(self, data):
        self.shown = False
        arguments = data.get("arguments") or {}
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments)
            except ValueError:
                arguments = {"": arguments}
        tool = data.get("tool")
        if tool == "run_command" and isinstance(arguments.get("argv"), list):
            self.line("▸", paint("$ " + " ".join(map(str, arguments["argv"])), "bold"))
            return
        names = [str(arguments[k]) for k in ("path", "pattern", "query") if arguments.get(k)]
        self.line("▸", paint(" ".join([str(tool), *names]), "bold"))
        for key, sign, colour in (("old_text", "-", "red"), ("new_text", "+", "green")):
            for row in clipped(str(arguments.get(key) or "")):
                print("      " + paint(f"{sign} {row}", colour))

    def on_output(self, data):
        self.shown = True
        indent(data.get("text", ""))

    def on_tool_result(self, data):
        output = str(data.get("output", ""))
        if self.shown:   # all but how it ended stands above
            output = output.strip().rpartition("\n")[2]
        indent(output, "dim" if data.get("ok") else "yellow")

    def on_check_started(self, data):
        self.shown = False
        self.line("?", f"check {data.get('name')}: {' '.join(data.get('argv', []))}")

    def on_check_finished(self, data):
        green = data.get("exitCode") == 0
        if not self.shown:
            indent(str(data.get("output", "")), "dim", 6)
        self.line("✔" if green else "✘", paint(f"check {data.get('name')}: " + ("passed" if green else f"exit {data.get('exitCode')}"), "bold", "green" if green else "red"))

    def on_result(self, data):
        self.result = data
        self.line("●", f"verdict {data.get('verdict')}" + (f": {data['message']}" if data.get("message") else ""))

    def on_note(self, data):
        self.line(" ", paint(data.get("text", ""), "dim"))


def follow(gateway, namespace, run, view, deadline):
    after, problem = 0, None
    while time.monotonic() < deadline:
        try:
            stream = gateway.get(f"/v1/namespaces/{namespace}/runs/{run}/events?follow=true&after={after}")
            for raw in stream:
                if not raw.strip():
                    continue   # heartbeat
                event = json.loads(raw)
                if "seq" not in event:
                    continue
                after = event["seq"]
                if event["type"] == "end":
                    return event["data"]
                view.show(event["type"], event["data"])
        except (OSError, http.client.HTTPException, ValueError) as error:
            if str(error) != problem:
                problem = str(error)
                print(paint(f"  (waiting for the event stream: {problem})", "dim"), file=sys.stderr)
        time.sleep(0.5)
    sys.exit(f"the run did not end in time; look at: kubectl describe agentrun {run} -n {namespace}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("namespace")
    parser.add_argument("run")
    parser.add_argument("--patch")
    arguments = parser.parse_args()
    view, gateway = View(), Gateway(arguments.namespace)
    end = follow(gateway, arguments.namespace, arguments.run, view, time.monotonic() + 300)
    print(kubectl("get", "agentrun", arguments.run, "-n", arguments.namespace, "-o", "wide"))
    if end.get("phase") != "Succeeded":
        sys.exit(f"the run ended {end.get('phase')}, {end.get('reason')}")
    if arguments.patch:
        patch = gateway.get(f"/v1/namespaces/{arguments.namespace}/runs/{arguments.run}/patch").read()
        with open(arguments.patch, "wb") as file:
            file.write(patch)


if __name__ == "__main__":
    main()
