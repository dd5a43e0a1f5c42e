#!/usr/bin/env bash
# Build the object store that tests use, s3s-fs, once a machine and version; its folder is printed.
set -euo pipefail
version=0.14.1
cache=${AGENTRUN_CACHE:-$HOME/.cache/agentrun}/s3-server
if [ "$(cat "$cache/version" 2>/dev/null)" != "$version" ]; then
  build=$(mktemp -d)
  trap 'rm -rf "$build"' EXIT
  echo "building s3s-fs $version" >&2
  # A target folder of its own, and none of our flags: it is no part of the workspace.
  (cd "$build" && CARGO_TARGET_DIR=$build/target CARGO_PROFILE_DEV_DEBUG=0 CARGO_PROFILE_DEV_STRIP=symbols \
    cargo install --quiet s3s-fs --version "$version" --features binary --locked --profile dev --root "$build/root") >&2
  mkdir -p "$cache/bin"
  install -m 755 "$build/root/bin/s3s-fs" "$cache/bin/s3s-fs"
  echo "$version" > "$cache/version"
fi
echo "$cache/bin"
