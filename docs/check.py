#!/usr/bin/env python3
"""Every relative link in our Markdown leads to a file, and to a heading of it where it names one. Only the standard library."""
import pathlib
import re
import subprocess
import sys

root = pathlib.Path(__file__).resolve().parent.parent
tracked = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "*.md"], cwd=root, capture_output=True, text=True, check=True)
pages = [root / name for name in tracked.stdout.split()]


def anchors(page):
    """The headings of a page, as code forges turn them into anchors."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M)
    return {re.sub(r"[^\w\- ]", "", h.strip().lower()).replace(" ", "-") for h in re.findall(r"^#+ (.*)$", text, re.M)}


checked, broken = 0, []
for page in pages:
    for target in re.findall(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)", page.read_text()):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        place = (page.parent / name).resolve() if name else page
        checked += 1
        if not place.exists():
            broken.append(f"{page.relative_to(root)}: {target}: no such file")
        elif anchor and anchor not in anchors(place):
            broken.append(f"{page.relative_to(root)}: {target}: no such heading")
print("\n".join([*broken, f"{checked} links in {len(pages)} pages, {len(broken)} broken"]))
sys.exit(1 if broken or not checked else 0)
