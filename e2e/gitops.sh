#!/usr/bin/env bash
# Test what we ship for GitOps tools, in their own languages: gitops/ is a Go module. Prints cargo's result line, so that
# test.sh counts the tests.
set -uo pipefail
cd "$(dirname "$0")/../gitops"
if ! command -v go >/dev/null; then
  echo "gitops.sh: SKIPPED, no 'go' on PATH: nothing says whether Argo CD, Flux and kstatus read our objects right" >&2
  exit 0
fi
log=$(mktemp); trap 'rm -f "$log"' EXIT
GOFLAGS=-mod=readonly GOWORK=off go test -count=1 -v . > "$log" 2>&1; status=$?
passed=$(grep -cE '^ *--- PASS' "$log") failed=$(grep -cE '^ *--- FAIL' "$log")
[ "$status" = 0 ] || grep -vE '^ *(--- PASS|=== RUN)' "$log" | tail -n 60
[ "$status" = 0 ] || [ "$failed" != 0 ] || failed=1   # it did not compile
echo "test result: $([ "$status" = 0 ] && echo ok || echo FAILED). $passed passed; $failed failed;"
exit "$status"
