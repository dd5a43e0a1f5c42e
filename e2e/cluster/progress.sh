# Sourced. progress LABEL COMMAND... runs a command that may be silent for minutes and says every 20 s that it goes on.
progress() {
  local label=$1 pid started=$SECONDS said=$SECONDS; shift
  "$@" & pid=$!
  while kill -0 "$pid" 2>/dev/null; do
    sleep 0.5
    [ $((SECONDS - said)) -lt 20 ] || { said=$SECONDS; echo "$label … $((SECONDS - started)) s" >&2; }
  done
  wait "$pid" || return
  echo "$label: done in $((SECONDS - started)) s" >&2
}
