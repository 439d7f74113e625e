#!/bin/sh
# Runs every test program and script, and closes with `N passed, N failed, N skipped`.
#   tests/run.sh [BUILD] [-jN] [--quick] [NAME ...]
# BUILD is the build folder (default: build); -jN runs N tests at a time (default: one); --quick leaves out what
# tests/limits calls slow; NAMEs choose.
# A program counts its own tests (cmocka's TAP lines); a crash or a time-out is one failure more, and its
# output is shown. A script passes with 0 and is skipped with 77.
set -u
cd "$(dirname "$0")/.." || exit 1
build=build quick=no names='' jobs=1
for word; do
    case $word in
    --quick) quick=yes ;;
    -j[1-9]*) jobs=${word#-j} ;;
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
# A folder a test, made by who runs it: its output, what is said of it, its counts, and the pid of its timeout.
work=$(mktemp -d) || exit 1
workers=
leave() {
    [ -n "$workers" ] && kill $workers 2>/dev/null
    for pid in "$work"/*/pid; do [ -e "$pid" ] && kill "$(cat "$pid")" 2>/dev/null; done
    wait
    rm -rf "$work"
}
trap leave EXIT
trap 'exit 130' INT TERM

# Seconds that a test may take: 240, or what tests/limits says; "slow" there is for --quick.
limit_of() { awk -v n="$1" '$1 == n { print $2, $3; found = 1 } END { if (!found) print 240 }' tests/limits; }

wanted() {
    [ -z "$names" ] && return 0
    case " $names " in *" $1 "*) return 0 ;; esac
    return 1
}

show() {
    printf '%s\n' "---- output of $1"
    tail -n 80 "$work/$1/out"
    printf '%s\n' '----'
}

why() {
    case $1 in
    124 | 137) echo "no end within $2 s" ;;
    *) [ "$1" -gt 128 ] && echo "killed by signal $(($1 - 128))" || echo "exit status $1" ;;
    esac
}

# count NAME PASSED FAILED SKIPPED
count() { echo "$2 $3 $4" >"$work/$1/count"; }

# limited NAME LIMIT COMMAND: its exit status in rc.
limited() {
    timeout -k 5 "$2" "$3" >"$work/$1/out" 2>&1 </dev/null &
    echo $! >"$work/$1/pid"
    wait $!
    rc=$?
    rm -f "$work/$1/pid"
}

run_program() {
    name=$1 limit=$2
    limited "$name" "$limit" "$build/tests/$name"
    # "ok 1 - name", "not ok 2 - name", "not ok 3 # SKIP name", and "1..3" before a group's.
    set -- $(awk '/^ok [0-9]+ - / { p++ } /^not ok [0-9]+ - / { f++ } /^not ok [0-9]+ # SKIP/ { s++ }
        /^1\.\.[0-9]+/ { n += substr($0, 4) } END { print p + 0, f + 0, s + 0, n + 0 }' "$work/$name/out")
    # It must have said that a test failed if it fails, and have run all that it planned if it does not.
    if [ $2 -eq 0 ] && { [ $rc -ne 0 ] || [ $(($1 + $3)) -ne $4 ] || [ $4 -eq 0 ]; }; then
        count "$name" "$1" 1 "$3"
        [ $rc -ne 0 ] && printf 'FAIL  %s: %s\n' "$name" "$(why $rc "$limit")" ||
            printf 'FAIL  %s: ran %d of %d tests\n' "$name" $(($1 + $3)) "$4"
        show "$name"
    elif [ $2 -ne 0 ]; then
        count "$name" "$1" "$2" "$3"
        printf 'FAIL  %s: %d of %d failed, %s\n' "$name" "$2" "$4" "$(why $rc "$limit")"
        show "$name"
    else
        count "$name" "$1" 0 "$3"
        printf 'ok    %s: %d passed, %d skipped\n' "$name" "$1" "$3"
    fi
}

run_script() {
    name=$1 limit=$2
    limited "$name" "$limit" "tests/$name.sh"
    case $rc in
    0) count "$name" 1 0 0 && printf 'ok    %s\n' "$name" ;;
    77) count "$name" 0 0 1 && printf 'skip  %s: %s\n' "$name" "$(tail -n 1 "$work/$name/out")" ;;
    *)
        count "$name" 0 1 0
        printf 'FAIL  %s: %s\n' "$name" "$(why $rc "$limit")"
        show "$name"
        ;;
    esac
}

# One test after the other, of those that nobody else has taken. The programs of the present sources: one of a
# test that was removed may still lie in the build folder.
work_on() {
    for source in tests/test_*.c tests/test_*.sh; do
        [ -e "$source" ] || continue
        name=$(basename "${source%.*}")
        wanted "$name" && mkdir "$work/$name" 2>/dev/null || continue
        set -- $(limit_of "$name")
        if [ "$quick" = yes ] && [ "${2:-}" = slow ]; then
            count "$name" 0 0 1
            printf 'skip  %s: slow\n' "$name"
            continue
        fi
        case $source in
        *.c) run_program "$name" "$1" ;;
        *.sh) run_script "$name" "$1" ;;
        esac >"$work/$name/said"
        cat "$work/$name/said"
    done
}

while [ "$jobs" -gt 0 ]; do
    work_on &
    workers="$workers $!"
    jobs=$((jobs - 1))
done
wait $workers
workers=
# A test that was taken and has no count was not run to its end.
for name in "$work"/test_*; do
    [ -e "$name/count" ] || echo '0 1 0' >"$name/count"
done
set -- $(cat "$work"/*/count 2>/dev/null | awk '{ p += $1; f += $2; s += $3 } END { print p + 0, f + 0, s + 0 }')
echo "$1 passed, $2 failed, $3 skipped"
[ $2 -eq 0 ] && [ $1 -gt 0 ]
