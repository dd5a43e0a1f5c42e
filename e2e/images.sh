#!/usr/bin/env bash
# Build our images from the Containerfiles into OCI archives, and list them. Programs must have been built (`make programs`).
# Usage: images.sh        prints the path of a JSON file {name: {image, digest, archive}}
#        images.sh inputs  only fills target/image-inputs, for a `docker build` of one's own
# A tag is derived from what the image is made of, so an image is built only when it changed and a node never runs a stale one.
set -euo pipefail
cd "$(dirname "$0")/.."
profile=${AGENTRUN_PROFILE:-release}
built=${CARGO_TARGET_DIR:-target}/x86_64-unknown-linux-gnu/$([ "$profile" = dev ] && echo debug || echo "$profile")
archives=${AGENTRUN_CACHE:-$HOME/.cache/agentrun}/images
inputs=target/image-inputs programs=target/image-inputs/programs
mkdir -p "$archives" "$programs"
exec 9>"$archives/.lock"
flock -n 9 || { echo "waiting for another build of images" >&2; flock 9; }

rootfs=$(sandbox-image/toolchain.sh)
[ "$rootfs" -ot "$inputs/toolchain.tar" ] || cp "$rootfs" "$inputs/toolchain.tar"
# Which agents' images are built; CI's by default.
read -ra harnesses <<< "${AGENTRUN_HARNESSES-pi claude-code}"
for harness in "${harnesses[@]}"; do
  layer=$(harnesses/layer.sh "$harness")
  [ "$layer" -ot "$inputs/harness-$harness.tar" ] || cp "$layer" "$inputs/harness-$harness.tar"
done
cmp -s /etc/ssl/certs/ca-certificates.crt "$inputs/ca-certificates.crt" || cp /etc/ssl/certs/ca-certificates.crt "$inputs/"
for program in operator gateway runner executor scripted-model; do
  cmp -s "$built/agentrun-$program" "$programs/agentrun-$program" || cp "$built/agentrun-$program" "$programs/"
done
[ "${1:-}" != inputs ] || exit 0

entries=() build_args=()
image() { # name, tag or - for one derived from the content, Containerfile, files that it copies; `build_args` go along
  local name=$1 tag=$2 recipe=$3; shift 3
  local key reference archive digest
  key=$(sha256sum "$recipe" "$@" | cut -d' ' -f1 | sha256sum | cut -c1-12)
  [ "$tag" != - ] || tag=$key
  reference=agentrun.test/$name:$tag archive=$archives/$name-$key.tar
  if [ ! -f "$archive" ]; then
    echo "building image $reference" >&2
    buildah bud -q "${build_args[@]}" --isolation chroot --timestamp 0 --ignorefile .dockerignore -t "$reference" -f "$recipe" . >/dev/null
    buildah push -q --disable-compression "$reference" "oci-archive:$archive.part:$reference"
    buildah rmi "$reference" >/dev/null
    mv "$archive.part" "$archive"
    ls -t "$archives/$name"-*.tar | tail -n +4 | xargs -r rm -f   # the last three are enough to go back and forth
  fi
  touch "$archive"
  digest=$(tar -xOf "$archive" index.json | grep -o 'sha256:[0-9a-f]*' | head -1)
  entries+=("  \"$name\": {\"image\": \"$reference\", \"digest\": \"$digest\", \"archive\": \"$archive\"}")
}
image operator - operator/Containerfile "$programs/agentrun-operator"
image gateway - gateway/Containerfile "$programs/agentrun-gateway" "$inputs/ca-certificates.crt"
image runner - sandbox-image/runner.Containerfile "$programs/agentrun-runner" "$programs/agentrun-executor"
image scripted-model demo e2e/scripted-model/Containerfile "$programs/agentrun-scripted-model"
image toolchain demo sandbox-image/toolchain.Containerfile "$inputs/toolchain.tar"
for harness in "${harnesses[@]}"; do
  build_args=(--build-arg "HARNESS=$harness")
  image "harness-$harness" demo harnesses/Containerfile "$inputs/toolchain.tar" "$inputs/harness-$harness.tar"
done

list=target/images.json
{ echo "{"; (IFS=,; printf '%s\n' "${entries[*]}" | sed 's/},  /},\n  /g'); echo "}"; } > $list.part
mv $list.part $list
echo "$PWD/$list"
