#!/usr/bin/env bash
# Make the root file system of the demo's toolchain image from Debian's packages. Prints the archive's path. Needs root.
# Kept outside the repository, keyed by this file, since it takes a minute and changes only with it.
set -euo pipefail
cache=${AGENTRUN_CACHE:-$HOME/.cache/agentrun}/toolchain
key=$(sha256sum < "$0" | cut -c1-16)
rootfs=$cache/$key.tar
if [ ! -f "$rootfs" ]; then
  echo "making the toolchain image's root file system (once a machine)" >&2
  mkdir -p "$cache"
  # SOURCE_DATE_EPOCH: the same packages give the same bytes.
  SOURCE_DATE_EPOCH=0 mmdebstrap --quiet --skip=output/dev --variant=essential --include=python3,git,bash,libstdc++6,coreutils,diffutils,findutils,grep,sed \
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/doc/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt='path-exclude=/usr/share/info/*' \
    --customize-hook='rm -rf "$1"/var/cache/* "$1"/var/lib/apt "$1"/var/log/* "$1"/etc/resolv.conf "$1"/etc/hostname' \
    bookworm "$cache/part.tar" ${AGENTRUN_DEBIAN_MIRROR:+"$AGENTRUN_DEBIAN_MIRROR"} >&2
  mv "$cache/part.tar" "$rootfs"
fi
echo "$rootfs"
