#!/usr/bin/env bash
# Runs the tests of the sparse kernels on kernels that watch their own memory, and end the program at the first mistake:
# AddressSanitizer and UndefinedBehaviorSanitizer. Needs g++, and hatchling beside what the tests need.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

CXX=g++ python hatch_build.py "$folder/kernels.so" \
    -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -g -O1
preloaded="$(g++ -print-file-name=libasan.so) $(g++ -print-file-name=libubsan.so)"

export SECATEUR_KERNELS="$folder/kernels.so"
# Python and PyTorch were not built for leaks to be told apart from what they keep.
export ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1
# Without pytest's capture, which would keep a sanitizer's last words to itself.
LD_PRELOAD="$preloaded" python -m pytest -n 0 -q -s --durations=3 \
    tests/sparse/test_kernels.py tests/sparse/test_packed.py tests/sparse/test_planes.py tests/sparse/test_blocks.py
