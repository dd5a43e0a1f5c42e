#!/usr/bin/env python3
"""examples/run.yaml carries the files of examples/shop inline: check that they are the same, or write them (--write)."""
import pathlib
import re
import sys

root = pathlib.Path(__file__).resolve().parent.parent / "examples"


def inline() -> str:
    blocks = []
    for path in sorted(p for p in (root / "shop").rglob("*.py")):
        content = "".join(" " * 10 + line if line.strip() else line for line in path.read_text().splitlines(keepends=True))
        blocks.append(f"      - path: {path.relative_to(root / 'shop')}\n        content: |\n{content}")
    return "".join(blocks)


manifest = root / "run.yaml"
text = manifest.read_text()
expected = re.sub(r"(?<=      files:\n).*?(?=  allowedPaths:)", lambda _: inline(), text, count=1, flags=re.S)
if "--write" in sys.argv:
    manifest.write_text(expected)
elif text != expected:
    sys.exit("examples/run.yaml differs from examples/shop; run e2e/examples.py --write")
