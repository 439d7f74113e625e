#!/bin/sh
# A soak of seconds, so that make soak works when it is wanted: its driver, its first rounds, its checks and
# its closing table.
set -u
build=${SLUICE_BUILD:-${1:-build}}
work=$(mktemp -d "${TMPDIR:-/tmp}/sluice-test-soak.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
[ -x "$build/soak" ] || { echo "test_soak: there is no $build/soak: make $build/soak"; exit 1; }
"$build/soak" "bin=$build/bin" minutes=0.3 >"$work/out" 2>&1 </dev/null
rc=$?
cat "$work/out"
[ $rc -eq 0 ] || { echo "test_soak: exit status $rc"; exit 1; }
tail -n 1 "$work/out" | grep -q 'soak: passed$' || { echo 'test_soak: the last line says nothing of passing'; exit 1; }
# Something was done, and it was compared.
grep -q 'same stream and weights as undisturbed' "$work/out" || { echo 'test_soak: no training was compared'; exit 1; }
awk '/ action .* longest/ { table = 1; next } /resume to next step/ { table = 0 }
    table { done += $(NF - 2) } END { exit done < 1 }' "$work/out" || { echo 'test_soak: nothing was done'; exit 1; }
echo 'test_soak: passed'
