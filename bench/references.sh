#!/usr/bin/env bash
# Installs what the gateway is measured against: nginx from Debian, and LiteLLM from PyPI into a folder of its own, once a
# machine. Prints the path of the litellm program. What cannot be had is left out loudly; the benchmark says so again.
set -euo pipefail
version=1.90.0
place=${AGENTRUN_CACHE:-$HOME/.cache/agentrun}/bench/litellm-$version

command -v nginx > /dev/null || DEBIAN_FRONTEND=noninteractive apt-get install -y -q nginx-light python3-venv >&2 ||
  echo "SKIPPED: nginx-light could not be installed" >&2
if [ ! -e "$place/installed" ]; then
  rm -rf "$place"
  { python3 -m venv "$place" && "$place/bin/pip" install -q "litellm[proxy]==$version" && touch "$place/installed"; } >&2 ||
    { echo "SKIPPED: LiteLLM $version could not be installed" >&2; exit 0; }
fi
echo "$place/bin/litellm"
