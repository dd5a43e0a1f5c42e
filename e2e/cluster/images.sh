#!/usr/bin/env bash
# Build the images that the node itself needs, pause and CoreDNS, once a machine. Prints the archives' paths.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cache=${AGENTRUN_CACHE:-$HOME/.cache/agentrun}
bin=$cache/cluster/bin
images=$cache/images
mkdir -p "$images"

build() { # name:tag, folder with a Containerfile
  local archive=$images/node-${1/:/-}.tar
  buildah bud -q --isolation chroot --timestamp 0 -t "agentrun.test/$1" "$2" >/dev/null
  buildah push -q --disable-compression "agentrun.test/$1" "oci-archive:$archive.part:agentrun.test/$1"
  buildah rmi "agentrun.test/$1" >/dev/null
  mv "$archive.part" "$archive"
}
image() { # name:tag, command that fills a folder, files that it depends on
  local archive=$images/node-${1/:/-}.tar context
  if [ ! -f "$archive" ] || [ -n "$(find -L "${@:3}" -newer "$archive")" ]; then
    context=$(mktemp -d)
    "$2" "$context"
    build "$1" "$context"
    rm -rf "$context"
  fi
  echo "$archive"
}
pause() {
  gcc -O2 -static -s -o "$1/pause" "$here/pause.c"
  printf 'FROM scratch\nCOPY pause /pause\nUSER 65535:65535\nENTRYPOINT ["/pause"]\n' > "$1/Containerfile"
}
coredns() {
  cp -L "$bin/coredns" "$1/coredns"
  printf 'FROM scratch\nCOPY coredns /coredns\nUSER 65532:65532\nENTRYPOINT ["/coredns"]\n' > "$1/Containerfile"
}
exec 9>"$images/.lock"; flock 9
image pause:1 pause "$here/pause.c" "$0"
image coredns:1 coredns "$bin/coredns" "$0"
