#!/usr/bin/env bash
# The figures of one GPU that README.md asks for, in parts that end within ten minutes each.
#
#     bash benchmarks/engine/gpu.sh OUT kernels poisson gpt2 growth parity attacks
#     DEVICE=cpu bash benchmarks/engine/gpu.sh OUT poisson growth parity    # a try: tiny models, few of them
#
# Everything is printed as it comes, and kept in OUT. A part that fails does not keep the others from running.
set -u
out=$1
shift
device=${DEVICE:-cuda}
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$out"
export PYTHONUNBUFFERED=1 PYTHONPYCACHEPREFIX=${PYTHONPYCACHEPREFIX:-$out/pycache}

run() { python "$here/$1.py" --device "$device" "${@:2}"; }

parts() { # script, graphs, processes, seconds, more: several processes on one GPU, each compiling for itself
    export OMP_NUM_THREADS=1 TORCHINDUCTOR_COMPILE_THREADS=1
    for part in $(seq 0 $(($3 - 1))); do
        run "$1" --graphs "$2" --part "$part/$3" --jsonl "$out/$1.jsonl" "${@:4}" > "$out/$1.$part.log" 2>&1 &
    done
    wait
}

kernels() { python -m pytest -q "$here/../../tests/sgd/test_kernels.py"; }

poisson() {
    if [ "$device" = cpu ]; then run poisson --size tiny --warm 0 --rounds 1 --steps 2; return; fi
    run poisson --graphs traced --texts same --warm 12 --rounds 9 --json "$out/poisson.json"
}

gpt2() { run run --models gpt2,gpt2-tied --engines plain,compiled,ours-compiled,vmap --no-errors --rounds 15; }

growth() {
    if [ "$device" = cpu ]; then tiny=--tiny; else tiny=; fi
    run growth --lines "$out/growth.jsonl" --seconds 560 $tiny
    python "$here/growth.py" --lines "$out/growth.jsonl" --figure "$out/growth.png"
}

parity() {
    if [ "$device" = cpu ]; then parts parity traced 2 --match bare; else parts parity compiled 14 --seconds 500; fi
    python "$here/parity.py" --read "$out/parity.jsonl"
}

attacks() { parts attacks compiled 3; tail -n 3 "$out"/attacks.*.log; }

for part in "$@"; do
    echo "== $part, $(date +%T)"
    "$part" 2>&1 | tee "$out/$part.log"
done
