#!/bin/sh
# Runs the PLE operations' GPU tests under compute-sanitizer: no access out of bounds, no race in
# shared memory. Usage: tools/sanitize_ple.sh [PYTHON]
set -eu
cd "$(dirname "$0")/.."
python=${1:-python3}
# Every tensor is an allocation of its own, so that a stray access cannot land in a neighbour.
export PYTORCH_NO_CUDA_MEMORY_CACHING=1
tests="tests/ple/test_run.py tests/ple/test_export.py"
for tool in memcheck racecheck; do
  echo "== $tool"
  compute-sanitizer --tool "$tool" --target-processes all --error-exitcode 1 \
    "$python" -m pytest -q -x -p no:cacheprovider $tests -k "cuda and not every_offset"
done
