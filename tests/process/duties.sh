#!/usr/bin/env bash
# duties.sh BIN: what a training does beside its steps, seen in its log lines: batches that grow,
# schedules that go on after a resume, flags that say what to take from a checkpoint, ends.
set -uo pipefail
PATH=$1:$PATH
home=$(mktemp -d "${TMPDIR:-/tmp}/holdfast-duties.XXXXXX")
export TMPDIR=$home # of the agents' run folders
trap 'kill $(jobs -p) 2>/dev/null; wait; rm -rf "$home"' EXIT
cd "$home" || exit 2
failures=0

fail() {
    printf 'FAILED: %s\n' "$1"
    grep -vE '  [a-z0-9-]+ \.\.\.' "${2:-/dev/null}"
    failures=$((failures + 1))
}

model=(--num-layers 2 --hidden-size 32 --num-attention-heads 4 --seq-length 16
    --max-position-embeddings 16 --vocab-size 61 --mock-data --micro-batch-size 2 --lr 1e-3
    --num-threads 1 --log-interval 1)

# train RANKS CODE OUT FLAGS...: the ranks end with CODE; what they print is in OUT.
train() {
    local ranks=$1 code=$2 out=$3 got
    shift 3
    if [ "$ranks" = 1 ]; then
        timeout -s KILL 60 holdfast train "${model[@]}" "$@" >"$out" 2>&1
    else
        timeout -s KILL 60 holdfast run --nproc-per-node "$ranks" -- train "${model[@]}" "$@" \
            >"$out" 2>&1
    fi
    got=$?
    [ "$got" = "$code" ] || fail "$* left with $got, wanted $code" "$out"
}

# steps OUT...: iteration, consumed samples, learning rate, batch and loss of every log line.
steps() {
    sed -n 's/.*\] iteration *\([0-9]*\).*consumed samples: *\([0-9]*\) .*learning rate: \([^ ]*\) .*batch size: *\([0-9]*\) .*lm loss: \([^ ]*\) .*/\1 \2 \3 \4 \5/p' "$@"
}
same() { # WHAT A B
    diff "$2" "$3" >diff.txt || fail "$1: $(cat diff.txt)"
}
says() { # OUT TEXT
    grep -qF -- "$2" "$1" || fail "missing: \"$2\"" "$1"
}

# --- batches that grow ----------------------------------------------------------------------------

ramp=(--train-iters 16 --global-batch-size 16 --rampup-batch-size 4 4 64 --lr-warmup-iters 3
    --eval-interval 5 --eval-iters 1)
train 2 0 whole.out "${ramp[@]}"
steps whole.out | cut -d ' ' -f 2,4 >grown
# Megatron's table for this ramp: samples after each step, its batch.
printf '%s\n' '4 4' '8 4' '12 4' '16 4' '20 4' '24 4' '32 8' '40 8' '48 8' '60 12' '72 12' '88 16' \
    '104 16' '120 16' '136 16' '152 16' >table
same 'the ramp is not Megatron'\''s' table grown
save=(--save ramp --load ramp --save-interval 100)
train 2 0 first.out "${ramp[@]}" "${save[@]}" --exit-interval 8
train 2 0 second.out "${ramp[@]}" "${save[@]}"
steps whole.out >whole
steps first.out second.out >parts
same 'a resume inside the ramp' whole parts
grep 'validation loss at' whole.out >whole
cat first.out second.out | grep 'validation loss at' >parts
same 'validation inside the ramp' whole parts

[ "$failures" = 0 ] || exit 1
echo 'all duties are done'
