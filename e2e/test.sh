#!/usr/bin/env bash
# All tests, as CI runs them; the last line counts them. A step that fails does not hide those after it.
# AGENTRUN_KEEP=1 leaves the test cluster up.
set -uo pipefail
cd "$(dirname "$0")/.."
started=$SECONDS passed=0 failed=0 broken=()
logs=target/test-logs; rm -rf $logs; mkdir -p $logs
export AGENTRUN_BIN=${AGENTRUN_CACHE:-$HOME/.cache/agentrun}/cluster/bin AGENTRUN_IMAGES=$PWD/target/images.json
export CARGO_TERM_COLOR=never
export RUST_BACKTRACE=0   # what a failed test says is worth more than forty frames of its runtime

finish() {
  [ -z "${go_build:-}" ] || kill -- "-$go_build" 2>/dev/null
  [ -n "${AGENTRUN_KEEP:-}" ] || e2e/cluster/down.sh test
}
trap finish EXIT
trap 'exit 130' INT TERM

say() { echo "=== $1 ($((SECONDS - started)) s)"; }
count() { # name, exit status, log: cargo's own result lines count each test, any other step counts as one
  local p f
  read -r p f < <(awk '/^test result:/ {p += $4; f += $6} END {print p + 0, f + 0}' "$3")
  if [ "$p" = 0 ] && [ "$f" = 0 ] && [ "$2" = 0 ]; then p=1; fi
  if [ "$2" != 0 ] && [ "$f" = 0 ]; then f=1; fi   # did not compile, crashed, or is no cargo test
  passed=$((passed + p)) failed=$((failed + f))
  [ "$f" = 0 ] || { broken+=("$1"); echo "FAILED: $1; see $3"; }
  [ "$f" = 0 ]
}
step() { # name, command...
  local name=$1 log status; shift
  log=$logs/${name//[^a-z0-9]/-}.log
  say "$name"
  "$@" 2>&1 | tee "$log"; status=${PIPESTATUS[0]}
  count "$name" "$status" "$log"
}

scripts() { local script; for script in .ci/run e2e/*.sh e2e/cluster/*.sh sandbox-image/*.sh; do bash -n "$script" || return; done; }
programs() { make --no-print-directory programs; }
# Always the whole workspace, since another selection gives dependencies other features and builds them anew.
units() { cargo test --workspace --lib --bins $(e2e/test_targets.py) --no-fail-fast; }
documentation() { cargo test --workspace --doc --no-fail-fast; }
stories() { cargo test --workspace --test stories --no-fail-fast; }

say "packages"
e2e/cluster/packages.sh || { echo "0 passed, 1 failed"; exit 1; }
# The Go build fills the gaps that cargo leaves; on a machine that has it, it ends at once.
# A session of its own, so that all of it can be ended.
setsid nice e2e/cluster/build.sh > $logs/cluster-programs.log 2> >(tee -a $logs/cluster-programs.log >&2) & go_build=$!

step "scripts parse" scripts
step "format" cargo fmt --all --check
step "clippy" cargo clippy --workspace --all-targets -- -D warnings
step "object store of the tests" e2e/s3-server.sh
say "building the tests"
cargo test --workspace --no-run   # a failure is counted by the step that runs them
say "waiting for the cluster's programs"
wait "$go_build"; status=$?; go_build=
count "cluster programs" $status $logs/cluster-programs.log; have_cluster=$status
step "unit and table tests" units
step "documentation tests" documentation
step "examples" e2e/examples.py
step "links in the docs" docs/check.py
step "gitops" e2e/gitops.sh
if [ "$have_cluster" = 0 ]; then step "chart" charts/agentrun/check.sh; fi

if [ "$have_cluster" = 0 ] && step "programs" programs && step "images" e2e/images.sh && step "cluster" e2e/cluster/up.sh test && step "install" e2e/install.sh test; then
  AGENTRUN_KUBECONFIG=$(e2e/cluster/up.sh test 2>/dev/null); export AGENTRUN_KUBECONFIG
  step "stories" stories
  step "uninstall" e2e/uninstall.sh test
else
  failed=$((failed + 1)); broken+=("stories, not run")
fi

say "done"
[ ${#broken[@]} -eq 0 ] || printf 'FAILED: %s\n' "${broken[@]}"
grep -h -A 8 'panicked at' $logs/*.log | head -200 || true   # what failed tests said, once more, where it is found
finish; trap - EXIT
echo "$passed passed, $failed failed" | tee target/test-summary
[ "$failed" = 0 ]
