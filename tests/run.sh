#!/bin/sh
# Runs every test program and script, and closes with `N passed, N failed, N skipped`.
#   tests/run.sh [BUILD] [--quick] [NAME ...]
# BUILD is the build folder (default: build); --quick leaves out what tests/limits calls slow; NAMEs choose.
# A program counts its own tests (cmocka's TAP lines); a crash or a time-out is one failure more, and its
# output is shown. A script passes with 0 and is skipped with 77.
set -u
cd "$(dirname "$0")/.." || exit 1
build=build quick=no names=''
for word; do
    case $word in
    --quick) quick=yes ;;
    test_*) names="$names $word" ;;
    *) build=$word ;;
    esac
done
build=$(cd "$build" && pwd) || exit 1
export SLUICE_BUILD="$build" SLUICE_BIN="$build/bin" SLUICE_TESTS="$PWD/tests"
if [ -z "${SLUICE_TEST_DATA:-}" ] && [ -d ../shared/data ]; then
    SLUICE_TEST_DATA=$(cd ../shared/data && pwd)
fi
[ -n "${SLUICE_TEST_DATA:-}" ] && export SLUICE_TEST_DATA || unset SLUICE_TEST_DATA
[ -d .deps/bin ] && PATH=$PWD/.deps/bin:$PATH
export CMOCKA_MESSAGE_OUTPUT=TAP
out=$(mktemp) || exit 1
trap 'rm -f "$out"' EXIT
trap 'exit 130' INT TERM
passed=0 failed=0 skipped=0

# Seconds that a test may take: 120, or what tests/limits says; "slow" there is for --quick.
limit_of() { awk -v n="$1" '$1 == n { print $2, $3; found = 1 } END { if (!found) print 120 }' tests/limits; }

wanted() {
    [ -z "$names" ] && return 0
    case " $names " in *" $1 "*) return 0 ;; esac
    return 1
}

show() {
    printf '%s\n' "---- output of $1"
    tail -n 80 "$out"
    printf '%s\n' '----'
}

why() {
    case $1 in
    124 | 137) echo "no end within $2 s" ;;
    *) [ "$1" -gt 128 ] && echo "killed by signal $(($1 - 128))" || echo "exit status $1" ;;
    esac
}

run_program() {
    name=$1 limit=$2
    timeout -k 5 "$limit" "$build/tests/$name" >"$out" 2>&1 </dev/null
    rc=$?
    # "ok 1 - name", "not ok 2 - name", "not ok 3 # SKIP name", and "1..3" before a group's.
    set -- $(awk '/^ok [0-9]+ - / { p++ } /^not ok [0-9]+ - / { f++ } /^not ok [0-9]+ # SKIP/ { s++ }
        /^1\.\.[0-9]+/ { n += substr($0, 4) } END { print p + 0, f + 0, s + 0, n + 0 }' "$out")
    passed=$((passed + $1)) failed=$((failed + $2)) skipped=$((skipped + $3))
    # It must have said that a test failed if it fails, and have run all that it planned if it does not.
    if [ $2 -eq 0 ] && { [ $rc -ne 0 ] || [ $(($1 + $3)) -ne $4 ] || [ $4 -eq 0 ]; }; then
        failed=$((failed + 1))
        [ $rc -ne 0 ] && printf 'FAIL  %s: %s\n' "$name" "$(why $rc "$limit")" ||
            printf 'FAIL  %s: ran %d of %d tests\n' "$name" $(($1 + $3)) "$4"
        show "$name"
    elif [ $2 -ne 0 ]; then
        printf 'FAIL  %s: %d of %d failed, %s\n' "$name" "$2" "$4" "$(why $rc "$limit")"
        show "$name"
    else
        printf 'ok    %s: %d passed, %d skipped\n' "$name" "$1" "$3"
    fi
}

run_script() {
    name=$1 limit=$2
    timeout -k 5 "$limit" "tests/$name.sh" >"$out" 2>&1 </dev/null
    rc=$?
    case $rc in
    0) passed=$((passed + 1)) && printf 'ok    %s\n' "$name" ;;
    77) skipped=$((skipped + 1)) && printf 'skip  %s: %s\n' "$name" "$(tail -n 1 "$out")" ;;
    *)
        failed=$((failed + 1))
        printf 'FAIL  %s: %s\n' "$name" "$(why $rc "$limit")"
        show "$name"
        ;;
    esac
}

# The programs of the present sources: one of a test that was removed may still lie in the build folder.
for source in tests/test_*.c tests/test_*.sh; do
    [ -e "$source" ] || continue
    name=$(basename "${source%.*}")
    wanted "$name" || continue
    set -- $(limit_of "$name")
    if [ "$quick" = yes ] && [ "${2:-}" = slow ]; then
        printf 'skip  %s: slow\n' "$name"
        skipped=$((skipped + 1))
        continue
    fi
    case $source in
    *.c) run_program "$name" "$1" ;;
    *.sh) run_script "$name" "$1" ;;
    esac
done
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ] && [ $((passed + failed)) -gt 0 ]
