#!/bin/sh
# make soak: tests/soak/run.sh BUILD MINUTES [SEED]. The shared test data's odd images are used where there are any.
set -eu
build=$1 minutes=$2 seed=${3:-}
data=${SLUICE_TEST_DATA:-../shared/data}
set -- "bin=$build/bin" "minutes=$minutes"
[ -z "$seed" ] || set -- "$@" "seed=$seed"
[ ! -d "$data/odd/warn" ] || set -- "$@" "odd=$(cd "$data" && pwd)/odd/warn"
exec "$build/soak" "$@"
