#!/usr/bin/env python3
"""Print cargo's arguments for every integration test of the workspace but the stories, which need the node."""
import json
import subprocess

metadata = subprocess.run(["cargo", "metadata", "--no-deps", "--format-version", "1"], check=True, capture_output=True).stdout
targets = {t["name"] for p in json.loads(metadata)["packages"] for t in p["targets"] if "test" in t["kind"]}
print(*(f"--test={name}" for name in sorted(targets - {"stories"})))
