# Sourced. progress LABEL COMMAND... runs a command that may be silent for minutes and says every 20 s that it goes on.
# The command stays in the foreground, so that Ctrl-C reaches it. `set -e` does not hold inside it.
progress() {
  local label=$1 started=$SECONDS status=0 bell beat; shift
  exec {bell}<> <(:)   # nothing is in this pipe until the command has ended
  while ! read -rt 20 -u "$bell"; do
    kill -0 $$ 2>/dev/null || exit 0
    echo "$label … $((SECONDS - started)) s" >&2
  done & beat=$!
  "$@" || status=$?
  echo >&"$bell"; wait "$beat"; exec {bell}>&-
  [ "$status" = 0 ] || return "$status"
  echo "$label: done in $((SECONDS - started)) s" >&2
}
