#!/usr/bin/env bash
# Builds what tests/gpu.sh needs on a machine with a GPU and without Rust, into a folder that is copied there.
#
#   tests/gpu-pack.sh [--arch sm_90] [--cpu FILE] [--op NAME]... [--out DIR]
#
#   --arch   the GPU's architecture [sm_90]
#   --cpu    a built libep_cpu.so to take [built here, which takes minutes]
#   --op     kernels of this op go into the cache; may be given often [all]; `none` ships no cache
#   --out    the folder [.gpu]
#
# The folder holds bin/ (stripped programs and providers, configs), operators.tar.xz (the tests of ep-ops) and cache.tar.xz
# (compiled kernels). All together must stay below 60 MB. NVRTC is needed here for the cache only; docs/cuda.md says how to
# get it.
set -euo pipefail
cd "$(dirname "$0")/.."

arch=sm_90 cpu='' out=.gpu ops=()
while [ $# -gt 0 ]; do
  case "$1" in
    --arch) arch=$2 ;;
    --cpu) cpu=$2 ;;
    --op) ops+=("$2") ;;
    --out) out=$2 ;;
    *) sed -n '2,13s/^# \{0,1\}//p' "$0"; exit 2 ;;
  esac
  shift 2
done
most_bytes=60000000

target=${CARGO_TARGET_DIR:-target}/release
packages=(-p ep-cli -p ep-cuda-plugin -p ep-gpu-bench -p ep-host -p example-pytorch)
[ -n "$cpu" ] || packages+=(-p ep-cpu-plugin)
cargo build --release "${packages[@]}"

mkdir -p "$out/bin"
for file in ep ep-gpu-bench libep_cuda.so libep_host.so libep_pytorch.so; do
  install -m 755 "$target/$file" "$out/bin/$file"
done
install -m 755 "${cpu:-$target/libep_cpu.so}" "$out/bin/libep_cpu.so"
cc -O2 tests/gpu/bare.c -o "$out/bin/bare" -ldl
strip "$out"/bin/{ep,ep-gpu-bench} "$out"/bin/*.so

# The tests of ep-ops link the CPU provider, each of them: packed they are a quarter as large.
tests=$(cargo test --release -p ep-ops --test operators --test tensors --no-run --message-format json |
  sed -n 's/.*"executable":"\([^"]*\)".*/\1/p')
rm -rf "$out/operators" && mkdir "$out/operators"
for file in $tests; do
  name=$(basename "$file")
  strip -o "$out/operators/${name%-*}" "$file"
done
tar -C "$out/operators" -cf - . | xz --lzma2=preset=3,dict=96MiB >"$out/operators.tar.xz"
rm -r "$out/operators"

# The GPU alone, and with the CPU beside it; names are those of the files.
printf '[[provider]]\nname = "cuda"\npath = "libep_cuda.so"\n' >"$out/bin/cuda.toml"
{
  cat "$out/bin/cuda.toml"
  printf '\n[[provider]]\nname = "cpu"\npath = "libep_cpu.so"\n'
} >"$out/bin/ep.toml"

if [ "${ops[*]:-}" != none ]; then
  export EP_CUDA_CACHE=$PWD/$out/cache
  warm() { "$out/bin/ep" --config "$out/bin/cuda.toml" warm --arch "$arch" "$@"; }
  if [ ${#ops[@]} = 0 ]; then warm; fi
  for op in ${ops[@]+"${ops[@]}"}; do warm --op "$op"; done
  # Kernels are much alike: a dictionary for all of them makes the archive a third as large.
  tar -C "$out/cache" -cf - . | xz --lzma2=preset=3,dict=96MiB >"$out/cache.tar.xz"
fi

bytes=$(du -cb "$out"/bin "$out"/*.tar.xz | sed -n 's/\ttotal$//p')
echo "$out: $bytes bytes to copy"
[ "$bytes" -lt $most_bytes ] || { echo "error: more than $most_bytes bytes; leave ops out with --op" >&2; exit 1; }
