#!/bin/sh
# What needs a GPU, in one command (make test-gpu): the test programs test_cuda_* and those that compare with golden
# files, single operations under compute-sanitizer, and whole trainings. Closes with a table and `N passed, N failed, N skipped`; under 8 minutes on one H200.
#   tests/gpu/run.sh [BUILD] [PART ...]     parts: units, sanitize, runs (default: all)
# Logs of what failed, or all with KEEP=folder, are shown or kept.
set -u
cd "$(dirname "$0")/../.." || exit 1
build=build parts=''
for word; do
    case $word in
    units | sanitize | runs) parts="$parts $word" ;;
    *) build=$word ;;
    esac
done
[ -n "$parts" ] || parts='units sanitize runs'
build=$(cd "$build" && pwd) || exit 1
export SLUICE_BUILD="$build" SLUICE_BIN="$build/bin" SLUICE_TESTS="$PWD/tests" CMOCKA_MESSAGE_OUTPUT=TAP
if [ -z "${SLUICE_TEST_DATA:-}" ] && [ -d ../shared/data ]; then
    SLUICE_TEST_DATA=$(cd ../shared/data && pwd)
fi
[ -n "${SLUICE_TEST_DATA:-}" ] && export SLUICE_TEST_DATA || unset SLUICE_TEST_DATA
devices=$("$build/bin/sluice" devices 2>&1) || {
    echo "$devices"
    echo 'make test-gpu needs a GPU'
    exit 4
}
echo "$devices"
work=${KEEP:-$(mktemp -d)} || exit 1
mkdir -p "$work"
trap '[ -n "${KEEP:-}" ] || rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
began=$(date +%s)
passed=0 failed=0 skipped=0
: >"$work/table"

# line NAME RESULT SECONDS WHAT
line() { printf '%-44s %-5s %5s s  %s\n' "$@" | tee -a "$work/table"; }

show() {
    echo "---- output of $1"
    grep -v '^ok ' "$work/$1.log" | tail -n 60
    echo '----'
}

# counts LOG: passed, failed, skipped, planned.
counts() {
    awk '/^ok [0-9]+ - / { p++ } /^not ok [0-9]+ - / { f++ } /# SKIP/ { s++ }
        /^1\.\.[0-9]+/ { n += substr($0, 4) } END { print p + 0, f + 0, s + 0, n + 0 }' "$1"
}

# units PROGRAM ..: all at a time, for their CPU twins take most of the time; each counts its own tests.
units() {
    for program; do
        (
            since=$(date +%s)
            timeout -k 5 200 "$build/tests/$program" >"$work/$program.log" 2>&1 </dev/null
            echo "$? $(($(date +%s) - since))" >"$work/$program.rc"
        ) &
    done
    wait
    for program; do
        read -r rc took <"$work/$program.rc"
        set -- $(counts "$work/$program.log")
        passed=$((passed + $1)) skipped=$((skipped + $3))
        if [ "$rc" -eq 0 ] && [ $(($1 + $3)) -eq "$4" ] && [ "$4" -gt 0 ]; then
            [ "$1" -gt 0 ] && result=ok || result=skip
            line "$program" $result "$took" "$1 passed, $3 skipped"
        else
            failed=$((failed + ($2 > 0 ? $2 : 1)))
            line "$program" FAIL "$took" "exit status $rc, $1 passed, $2 failed of $4"
            show "$program"
        fi
    done
}

# command NAME LIMIT COMMAND ..: 0 passes, 77 is skipped; the log's last line is shown.
command_line() {
    name=$1 limit=$2
    shift 2
    since=$(date +%s)
    timeout -k 5 "$limit" "$@" >"$work/$name.log" 2>&1 </dev/null
    rc=$?
    said=$(tail -n 1 "$work/$name.log")
    case $rc in
    0) passed=$((passed + 1)) && line "$name" ok $(($(date +%s) - since)) "$said" ;;
    77) skipped=$((skipped + 1)) && line "$name" skip $(($(date +%s) - since)) "$said" ;;
    *)
        failed=$((failed + 1))
        line "$name" FAIL $(($(date +%s) - since)) "exit status $rc"
        show "$name"
        ;;
    esac
}

# compute-sanitizer on the tests of single operations, all programs of a tool at a time. A program has passed when
# the tool says so at its end, and tests have run under it: one that cannot attach, or that hides the GPU, has shown
# nothing.
sanitize() {
    tool=$1 more=
    shift
    [ "$tool" = memcheck ] && more='--padding 64'
    for program; do
        (
            since=$(date +%s)
            SLUICE_TEST_SANITIZE=1 timeout -k 5 150 compute-sanitizer --tool "$tool" $more --error-exitcode 99 \
                --log-file "$work/$tool.$program.said" "$build/tests/$program" \
                >"$work/$tool.$program.log" 2>&1 </dev/null
            echo "$? $(($(date +%s) - since))" >"$work/$tool.$program.rc"
        ) &
    done
    wait
    for program; do
        name=$tool.$program
        read -r rc took <"$work/$name.rc"
        set -- $(counts "$work/$name.log")
        ran=$1 of=$4
        sum=$(grep 'ERROR SUMMARY\|RACECHECK SUMMARY' "$work/$name.said" 2>/dev/null | tail -n 1)
        sum=${sum#========= } clean=no
        case $sum in *'ERROR SUMMARY: 0 errors'* | *'RACECHECK SUMMARY: 0 hazards'*) clean=yes ;; esac
        if [ "$rc" -eq 0 ] && [ $clean = yes ] && [ "$ran" -gt 0 ]; then
            passed=$((passed + 1))
            line "$name" ok "$took" "$ran of $of tests; $sum"
        else
            failed=$((failed + 1))
            line "$name" FAIL "$took" "exit status $rc, $ran of $of tests; ${sum:-no summary of the tool}"
            cat "$work/$name.said" >>"$work/$name.log" 2>/dev/null
            show "$name"
        fi
    done
}

for part in $parts; do
    case $part in
    units)
        units $(cd tests && ls test_cuda_*.c | sed 's/\.c$//') test_model_golden test_block_golden test_train_golden test_bench
        for source in tests/test_cuda_*.sh; do
            [ -e "$source" ] && command_line "$(basename "$source" .sh)" 150 "$source"
        done
        ;;
    sanitize)
        if command -v compute-sanitizer >/dev/null; then
            ours='test_cuda_maps test_cuda_bn test_cuda_attention test_cuda_nms test_cuda_loss test_cuda_optim'
            sanitize memcheck $ours test_cuda_conv
            sanitize racecheck $ours
            sanitize initcheck $ours
        else
            skipped=$((skipped + 1))
            line compute-sanitizer skip 0 'it is not installed'
        fi
        ;;
    runs)
        # run_deeppcb trains for 4 minutes.
        for source in tests/gpu/run_*.sh; do command_line "$(basename "$source" .sh)" 320 "$source"; done
        ;;
    esac
done
echo
cat "$work/table"
echo "$passed passed, $failed failed, $skipped skipped in $(($(date +%s) - began)) s"
[ $failed -eq 0 ] && [ $passed -gt 0 ]
