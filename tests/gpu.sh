#!/usr/bin/env bash
# Tests and measurements on a machine with a GPU, from what tests/gpu-pack.sh built elsewhere.
#
#   tests/gpu.sh STAGE OUT
#
#   kit           the conformance kit on cuda:0, and on softmax with each strategy forced
#   limits        softmax on both sides of the limits of each strategy
#   large         launches on more than 2^31 elements and 2^32 bytes, compared in windows
#   random        random launches on cuda:0 and on cpu:0, which leave the same
#   two           the second GPU: objects and a quick kit on cuda:1, copies and waits between it and cuda:0
#   sanitize      memcheck, racecheck and initcheck over a reduced suite
#   operators     the tests of ep-ops, on cuda:0 beside the CPU
#   bindings      the Python package beside PyTorch: shared memory, one stream; `ep doctor`
#   bench-ours    the rows of docs/performance.md through the provider
#   bench-peers   the same rows by PyTorch, eager and compiled, some in turns with the provider
#   demo          the digits and the PyTorch example
#
# Writes OUT/STAGE.json after each part, and goes on behind the last one when it is called again; with other binaries it
# begins anew. A call ends within EP_GPU_SECONDS [450]; exit codes: 0 all parts done and well, 1 a part failed, 75 parts
# are left.
#
# Needs python3 (with PyTorch for bench-peers and the example) and, for sanitize, compute-sanitizer. Variables:
# EP_BIN_DIR is the folder with the binaries [.gpu/bin], EP_GPU_CACHE the archive of the cache [cache.tar.xz beside it].
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# = 2 ] || { sed -n '2,25s/^# \{0,1\}//p' "$0"; exit 2; }
exec python3 tests/gpu/stages.py "$1" "$2"
