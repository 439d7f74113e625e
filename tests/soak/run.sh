#!/bin/sh
# make soak: tests/soak/run.sh BUILD MINUTES [SEED]. The shared test data's odd images are used where there are any.
set -eu
data=${SLUICE_TEST_DATA:-../shared/data}
exec "$1/soak" "bin=$1/bin" "minutes=$2" ${3:+"seed=$3"} $([ ! -d "$data/odd/warn" ] || echo "odd=$(cd "$data" && pwd)/odd/warn")
