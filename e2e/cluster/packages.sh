#!/usr/bin/env bash
# Install the Debian packages that the local cluster, the images and the tests use, if any is missing. Needs root.
set -euo pipefail
packages=(
  build-essential ca-certificates git libc6-dev libseccomp-dev pkg-config python3   # compiling
  iproute2 iptables nftables kmod openssl procps util-linux                         # the node
  buildah mmdebstrap                                                                # images
  postgresql                                                                        # tests of shared stores
)
missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q '^install ok installed$' || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0
command -v apt-get >/dev/null || { echo "packages.sh: needs a Debian machine; missing: ${missing[*]}" >&2; exit 1; }
[ "$(id -u)" = 0 ] || { echo "packages.sh: run as root to install: ${missing[*]}" >&2; exit 1; }
echo "installing ${missing[*]}" >&2
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends "${missing[@]}" >&2
