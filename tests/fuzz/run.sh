#!/bin/sh
# Runs fuzz targets for some seconds each, as many at once as there are CPUs, and closes with a table.
#   tests/fuzz/run.sh FOLDER SECONDS [TARGET ...]
# FOLDER holds the program `fuzz` (make fuzz builds it) and gets corpus/TARGET, which is kept and grows from run
# to run, found/, the inputs that ended a target, and log/TARGET. Fails when something was found.
#   SLUICE_FUZZ=TARGET FOLDER/fuzz FILE     runs one input again
set -u
cd "$(dirname "$0")/../.." || exit 1
folder=$(cd "$1" && pwd) || exit 1
seconds=$2
shift 2
export folder seconds
export ASAN_OPTIONS=abort_on_error=1:allocator_may_return_null=1
export UBSAN_OPTIONS=print_stacktrace=1
if [ -z "${SLUICE_TEST_DATA:-}" ] && [ -d ../shared/data ]; then
    SLUICE_TEST_DATA=$(cd ../shared/data && pwd)
fi
export SLUICE_TEST_DATA="${SLUICE_TEST_DATA:-}"
mkdir -p "$folder/found" "$folder/log" || exit 1
TMPDIR=$(mktemp -d) || exit 1
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT
trap 'exit 130' INT TERM
"$folder/fuzz" >"$TMPDIR/targets" || exit 1
for name; do
    grep -q "^$name " "$TMPDIR/targets" || {
        echo "there is no fuzz target $name; there are:" $(cut -d ' ' -f 1 "$TMPDIR/targets")
        exit 1
    }
done
[ $# -gt 0 ] || set -- $(cut -d ' ' -f 1 "$TMPDIR/targets")

# One target: $1 is its name. The seeds are read where they are; what is new goes into the corpus.
cat >"$TMPDIR/one" <<'ONE'
name=$1
most=$(awk -v n="$name" '$1 == n { print $2 }' "$TMPDIR/targets")
files=$(awk -v n="$name" '$1 == n { print $3 }' "$TMPDIR/targets")
export SLUICE_FUZZ="$name"
mkdir -p "$folder/corpus/$name" "$TMPDIR/seeds/$name"
SLUICE_FUZZ_SEEDS="$TMPDIR/seeds/$name" "$folder/fuzz" || exit 1
set -- "$folder/corpus/$name" "$TMPDIR/seeds/$name"
for more in "tests/fuzz/seeds/$name" "tests/fuzz/regress/$name" "$SLUICE_TEST_DATA/$files"; do
    [ -d "$more" ] && [ "$more" != / ] && set -- "$@" "$more"
done
[ -f "tests/fuzz/$name.dict" ] && set -- "-dict=tests/fuzz/$name.dict" "$@"
# libFuzzer can wait for ever in the report of a timeout that comes while another report is written.
timeout -k 5 $((seconds + 120)) "$folder/fuzz" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=1024 \
    -max_len="$most" -print_final_stats=1 -artifact_prefix="$folder/found/$name-" "$@" >"$folder/log/$name" 2>&1 </dev/null
echo $? >"$TMPDIR/status.$name"
ONE
touch "$TMPDIR/begun"
echo "$# fuzz targets, $seconds s each"
printf '%s\n' "$@" | xargs -n 1 -P "$(nproc)" nice -n 10 sh "$TMPDIR/one"

printf '%-12s %12s %9s %9s %9s  %s\n' target executions per-second edges features result
for name; do
    log=$folder/log/$name
    runs=$(awk '/^stat::number_of_executed_units/ { n = $2 } END { print n }' "$log")
    rate=$(awk '/^stat::average_exec_per_sec/ { n = $2 } END { print n }' "$log")
    seen=$(awk '/ cov: / { for (i = 1; i < NF; i++) { if ($i == "cov:") c = $(i + 1); if ($i == "ft:") f = $(i + 1) } }
        END { print c + 0, f + 0 }' "$log")
    result=ok
    found=$(find "$folder/found" -name "$name-*" -newer "$TMPDIR/begun" | head -n 1)
    if [ -n "$found" ]; then
        result="FOUND $found"
    elif [ "$(cat "$TMPDIR/status.$name" 2>/dev/null)" != 0 ]; then
        result="FAILED: see $log"
    fi
    [ "$result" = ok ] || echo "$result" >>"$TMPDIR/failed"
    set -- $seen
    printf '%-12s %12s %9s %9s %9s  %s\n' "$name" "${runs:-?}" "${rate:-?}" "$1" "$2" "$result"
done
[ ! -e "$TMPDIR/failed" ]
