#!/usr/bin/env bash
# Everything that needs a real GPU, in under four minutes on one: conformance, examples, memory by the plan and
# by the driver, times of steps beside PyTorch. Prints one table last; all output goes to a log.
#
#     tests/gpu/run.sh [--binaries FOLDER] [--log FILE] [--software]
#
# --binaries   holds `tg`, and `cuda` (the test) or `deps/cuda-*`; without it both are built first
# --software   runs on the software device instead, at small sizes: to try this script
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
binaries="" log="$root/target/gpu.log" software=0
while [ $# -gt 0 ]; do
  case "$1" in
    --binaries) binaries=$(cd "$2" && pwd); shift 2 ;;
    --log) log=$2; shift 2 ;;
    --software) software=1; shift ;;
    *) echo "usage: run.sh [--binaries FOLDER] [--log FILE] [--software]" >&2; exit 2 ;;
  esac
done
mkdir -p "$(dirname "$log")"
: >"$log"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
rows=() failed=0
row() { rows+=("$1|$2|$3"); echo "== $1: $2 $3" | tee -a "$log"; }
bad() { failed=1; row "$1" "FAILED" "$2"; }

if [ -z "$binaries" ]; then
  echo "== building" | tee -a "$log"
  (cd "$root" && cargo build --release --bin tg && cargo test --release --no-run --test cuda) >>"$log" 2>&1 ||
    { tail -5 "$log"; echo "the build failed: $log"; exit 1; }
  binaries=$root/target/release
fi
tg=$binaries/tg
cuda=$binaries/cuda
[ -x "$cuda" ] || cuda=$(ls -t "$binaries"/deps/cuda-* 2>/dev/null | grep -v '\.d$' | head -1)
[ -x "$tg" ] && [ -x "$cuda" ] || { echo "no \`tg\` or no test \`cuda\` in $binaries"; exit 1; }

# The clock starts when the binaries are there.
limit=$([ $software = 1 ] && echo 1200 || echo 230)
SECONDS=0
within() { # within MOST COMMAND…: no longer than MOST seconds, nor than what is left
  local left=$((limit - SECONDS)) most=$1
  shift
  [ "$left" -gt 1 ] || return 124
  timeout $((left < most ? left : most)) "$@"
}
now() { date +%s.%N; }
since() { awk -v a="$1" -v b="$(now)" 'BEGIN { printf "%.2f", b - a }'; }

if [ $software = 1 ]; then
  sh "$root/tests/softdevice/build.sh" "$work/device"
  export TG_CUDA_LIBRARIES=$work/device TG_CACHE_DIR=$work/cache
  gpt=(LAYERS=2 D=32 HEADS=2 CONTEXT=16 BATCH=2 VOCABULARY=50) steps=4
  blocks=(DEPTH=5 C=16 BATCH=3 SIZE=5 LR=1e-5)
  convnet=(C=8 BLOCKS=1 CLASSES=10 BATCH=2 SIZE=32)
  filter=products
else
  export TG_TEST_REAL_GPU=1
  gpt=() steps=20 blocks=() convnet=() filter=""
  nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader >>"$log" 2>&1
fi
device=$("$tg" devices 2>&1 | tee -a "$log" | grep '^cuda:0')
[ -n "$device" ] || { "$tg" devices; echo "no device"; exit 1; }
row device "${device#cuda:0 }" ""

# Conformance: the cases of the CPU, in planned and in guarded memory. What runs the command on the software
# device is left out.
start=$(now)
within 90 "$cuda" $filter --skip devices:: --skip collectives:: --skip examples:: --skip flights:: --skip launches:: --skip script:: >"$work/conformance" 2>&1
status=$?
cat "$work/conformance" >>"$log"
result=$(grep '^test result' "$work/conformance" | sed 's/test result: //; s/; 0 ignored.*//')
if [ $status = 0 ]; then row conformance "$result" "$(since "$start") s"
elif [ $status = 124 ]; then bad conformance "out of time after $(grep -c '\.\.\. ok' "$work/conformance") cases"
else bad conformance "$result $(grep '^test .*FAILED' "$work/conformance" | head -3 | tr '\n' ' ')"; fi

# Examples, on the device and on the CPU.
example() { # example FILE SETS…
  local file=$1 sets=() start
  shift
  for set in "$@"; do sets+=(--set "$set"); done
  within 60 "$tg" run --device cpu "$root/examples/$file" "${sets[@]}" >"$work/cpu" 2>>"$log"
  start=$(now)
  if within 60 "$tg" run --device cuda --stats "$root/examples/$file" "${sets[@]}" >"$work/cuda" 2>"$work/stats"; then
    cat "$work/stats" >>"$log"
    row "example $file" "$(since "$start") s" "$(awk 'NR == FNR { a[FNR] = $0; next } a[FNR] != $0 { n++ } END { print n + 0 }' "$work/cpu" "$work/cuda") of $(wc -l <"$work/cuda") lines differ from the CPU's in some digit"
  else
    cat "$work/stats" >>"$log"
    bad "example $file" "$(grep -m1 error "$work/stats")"
  fi
}
example blocks.tg DEPTH=5 C=16 BATCH=3 SIZE=5 STEPS=4 LR=1e-5
if [ $software = 0 ]; then
  example digits.tg
  example convnet.tg
  example gpt.tg LAYERS=1 D=64 HEADS=2 CONTEXT=32 LR=4e-3 SAMPLE=40
fi

# Collectives between GPUs, where there are several.
gpus=$("$tg" devices 2>>"$log" | grep -c '^cuda:')
if [ "$gpus" -gt 1 ]; then
  ranks=$((gpus < 4 ? gpus : 4)) start=$(now)
  within 60 "$tg" run --world $ranks --device cpu "$root/examples/ranks.tg" >"$work/cpu" 2>>"$log"
  if within 60 "$tg" run --world $ranks --device cuda --stats "$root/examples/ranks.tg" >"$work/cuda" 2>"$work/stats"; then
    cat "$work/stats" >>"$log"
    row "NCCL, $ranks ranks" "$(since "$start") s" "$(cat "$work/cuda"); the CPU: $(cat "$work/cpu");$(grep -m1 -o '[0-9]* collectives.*' "$work/stats")"
  else
    cat "$work/stats" >>"$log"
    bad "NCCL, $ranks ranks" "$(grep -m1 error "$work/stats" || echo 'out of time')"
  fi
else
  row NCCL "one GPU" "needs several"
fi

# Milliseconds a step: the difference of a long and a short run, both with kernels from the disk.
timed() { # timed NAME FILE RECORD SETS…
  local name=$1 file=$2 record=$3 sets=() few=3 many=$((3 + steps)) start short long
  shift 3
  for set in "$@"; do sets+=(--set "$set"); done
  export TG_CUDA_RECORD=$record
  for n in $few $few $many; do
    start=$(now)
    within 60 "$tg" run --device cuda --stats "$file" "${sets[@]}" --set STEPS=$n >>"$log" 2>"$work/stats" ||
      { cat "$work/stats" >>"$log"; bad "$name" "$(grep -m1 error "$work/stats" || echo 'out of time')"; return; }
    short=${long:-0} long=$(since "$start")
  done
  cat "$work/stats" >>"$log"
  row "$name" "$(awk -v a="$short" -v b="$long" -v n="$steps" 'BEGIN { printf "%.2f ms a step", (b - a) / n * 1000 }')" \
    "$(sed -n 's/^stats: `train`: \([0-9]* launches\)[^;]*; \(.*\)$/\1; \2/p' "$work/stats")"
}
timed "gpt, replayed" "$here/gpt.tg" 1 "${gpt[@]}"
timed "gpt, eager" "$here/gpt.tg" 0 "${gpt[@]}"
timed "blocks, replayed" "$root/examples/blocks.tg" 1 "${blocks[@]}"
timed "blocks, eager" "$root/examples/blocks.tg" 0 "${blocks[@]}"
timed "convnet, bf16, replayed" "$here/convnet.tg" 1 "${convnet[@]}"
row "blocks, plan" "$("$tg" plan --target cuda --json "$root/examples/blocks.tg" 2>>"$log" |
  grep -m1 -o '"peak_bytes": *[0-9]*' | grep -o '[0-9]*' | awk '{ printf "%.1f MiB", $1 / 1048576 }')" "peak at full size"

if [ $software = 0 ] && python3 -c 'import torch' 2>/dev/null; then
  torch() { within "$1" python3 "$here/torch_steps.py" "${@:2}" 2>>"$log" | tail -1; }
  row "gpt, PyTorch eager" "$(torch 60)" ""
  row "convnet, PyTorch eager" "$(torch 60 --convolutions)" ""
  row "gpt, PyTorch compiled" "$(torch 90 --compile)" ""
else
  row "PyTorch" "not installed" ""
fi

echo
echo "took $SECONDS s; log: $log"
for line in "${rows[@]}"; do
  IFS='|' read -r name value note <<<"$line"
  printf '%-24s %-36s %s\n' "$name" "$value" "$note"
done | tee -a "$log"
exit $failed
