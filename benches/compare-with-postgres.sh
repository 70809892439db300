#!/usr/bin/env bash
# compare-with-postgres.sh PGBIN DIR [SCALE] [RUNS]
# The same rows through heapscan (each IO method; buffered warm and direct cold) and through psql on a server of PGBIN:
# select sum(octet_length(filler)) from pgbench_accounts, no parallel workers. Prints a table: medians of wall and CPU
# seconds. DIR gets the generated cluster (kept) and a copy for the server (removed). As root the server runs as
# $HEAPSCAN_PGUSER (default: nobody).
set -euo pipefail
pgbin=${1:?folder of the server\'s programs} dir=${2:?folder for the data} scale=${3:-50} runs=${4:-5}
tool=${HEAPSCAN:-$(dirname "$0")/../target/release/heapscan}
user=${HEAPSCAN_PGUSER:-nobody}
major=$("$pgbin/postgres" --version | sed -E 's/.* ([0-9]+)\..*/\1/')
mkdir -p "$dir"
cluster=$dir/pgbench-$major-$scale
[ -f "$cluster/global/pg_control" ] || "$tool" generate pgbench --scale "$scale" --version "$major" "$cluster"

as() { if [ "$(id -u)" = 0 ]; then runuser -u "$user" -- "$@"; else "$@"; fi; }
median() { sort -n | awk '{ v[NR] = $1 } END { print NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }'; }
query="sum(octet_length(filler))"
out=$(mktemp -d) copy=$dir/server-copy sock=$(mktemp -d)
started=0
cleanup() {
  [ $started = 0 ] || as "$pgbin/pg_ctl" -D "$copy" -m immediate stop >/dev/null 2>&1 || true
  rm -rf "$copy" "$sock" "$out"
}
trap cleanup EXIT
rm -rf "$copy" && cp -a "$cluster" "$copy"
printf '%s\n' "listen_addresses = ''" "unix_socket_directories = '$sock'" "max_parallel_workers_per_gather = 0" \
  "autovacuum = off" "fsync = off" "jit = off" >>"$copy/postgresql.auto.conf"
echo "local all all trust" >"$copy/pg_hba.conf"
[ "$(id -u)" != 0 ] || chown -R "$user" "$copy" "$sock"
chmod 700 "$copy"

ours() { # ours LABEL ARGS...: one run of the tool; appends "wall cpu" to the label's file
  local label=$1
  shift
  "$tool" scan "$cluster" pgbench_accounts --agg "$query" --stats json "$@" 2>"$out/stats" >"$out/answer"
  [ "$(cat "$out/answer")" = $((scale * 100000 * 84)) ] || { echo "wrong answer: $(cat "$out/answer")" >&2; exit 1; }
  awk -F'[:,]' '/"wall_seconds"/ { w = $2 + 0 } /"user_seconds"/ { u = $2 + 0 } /"system_seconds"/ { s = $2 + 0 } END { print w, u + s }' \
    "$out/stats" >>"$out/$label"
}
psql_run() { # psql_run LABEL: one run in a session of its own; CPU is that of its backend, in ticks of 10 ms
  local label=$1
  cat >"$out/script" <<P
select pg_backend_pid() as pid \gset
\setenv PID :pid
explain select $query from pgbench_accounts;
\! awk '{ print "cpu", (\$14 + \$15) / 100 }' /proc/\$PID/stat
\timing on
select $query from pgbench_accounts;
\timing off
\! awk '{ print "cpu", (\$14 + \$15) / 100 }' /proc/\$PID/stat
P
  timeout 120 psql -X -q -At -h "$sock" -U postgres -d pgbench -f "$out/script" >"$out/printed" 2>&1
  awk '/^cpu/ { c[++n] = $2 } /^Time:/ { t = $2 } END { print t / 1000, c[2] - c[1] }' "$out/printed" >>"$out/$label"
}
serve() { # serve SHARED_BUFFERS
  as "$pgbin/pg_ctl" -D "$copy" -o "-c shared_buffers=$1" -l "$sock/log" -w start >/dev/null
  started=1
}
unserve() {
  as "$pgbin/pg_ctl" -D "$copy" -m fast stop >/dev/null
  started=0
}

methods=(sync worker io_uring tokio_uring)
cat "$cluster"/base/*/* >/dev/null # warm
serve 128MB
psql_run warmup
for _ in $(seq "$runs"); do
  for m in "${methods[@]}"; do
    ours "heapscan-$m-warm" --io-method "$m"
    ours "heapscan-$m-direct" --io-method "$m" --io-direct
  done
  psql_run "psql-warm"
done
unserve
serve $((scale * 16 + 256))MB
psql_run warmup
psql_run warmup
for _ in $(seq "$runs"); do
  psql_run "psql-hot"
done
unserve

echo "| row | wall s (median of $runs) | min | CPU s (median) |"
echo "|---|---|---|---|"
for f in heapscan-{sync,worker,io_uring,tokio_uring}-{warm,direct} psql-warm psql-hot; do
  [ -f "$out/$f" ] || continue
  echo "| $f | $(cut -d' ' -f1 "$out/$f" | median) | $(cut -d' ' -f1 "$out/$f" | sort -n | head -1) | $(cut -d' ' -f2 "$out/$f" | median) |"
done
