#!/usr/bin/env bash
# print_schedule.sh BIN: `holdfast train --print-schedule` alone, for a world that is not there: the
# whole picture, exit code 0, nothing written and no data looked for; wrong flags are still refused.
set -uo pipefail
PATH=$1:$PATH
home=$(mktemp -d "${TMPDIR:-/tmp}/holdfast schedule.XXXXXX")
trap 'rm -rf "$home"' EXIT
mkdir "$home/empty" && cd "$home/empty" || exit 2
failures=0

fail() {
    printf 'FAILED: %s\n' "$1"
    cat "$home/out.txt"
    failures=$((failures + 1))
}

# schedule RANKS FLAGS...
schedule() {
    local ranks=$1
    shift
    timeout -s KILL 60 env RANK=0 WORLD_SIZE="$ranks" holdfast train --num-layers 96 \
        --hidden-size 12288 --num-attention-heads 96 --seq-length 2048 \
        --max-position-embeddings 2048 --vocab-size 50257 --micro-batch-size 1 --train-iters 10 \
        --lr 1e-4 --data-path MISSING --save ckpt --save-interval 5 --print-schedule "$@" \
        >"$home/out.txt" 2>&1
}

cat >"$home/golden.txt" <<'END'
1F1B schedule of 4 stages and 8 micro-batches; a column is the time of a forward, a backward takes 2
stage  0, at most  4 in flight: f0 f1 f2 f3 .  .  .  .  .  .  B0 B0 f4 B1 B1 f5 B2 B2 f6 B3 B3 f7 B4 B4 .  B5 B5 .  B6 B6 .  B7 B7 
stage  1, at most  3 in flight: .  f0 f1 f2 .  .  .  .  B0 B0 f3 B1 B1 f4 B2 B2 f5 B3 B3 f6 B4 B4 f7 B5 B5 .  B6 B6 .  B7 B7 .  .  
stage  2, at most  2 in flight: .  .  f0 f1 .  .  B0 B0 f2 B1 B1 f3 B2 B2 f4 B3 B3 f5 B4 B4 f6 B5 B5 f7 B6 B6 .  B7 B7 .  .  .  .  
stage  3, at most  1 in flight: .  .  .  f0 B0 B0 f1 B1 B1 f2 B2 B2 f3 B3 B3 f4 B4 B4 f5 B5 B5 f6 B6 B6 f7 B7 B7 .  .  .  .  .  .  
33 columns, bubble 27.3 %
END
schedule 64 --tensor-model-parallel-size 8 --pipeline-model-parallel-size 4 --global-batch-size 16 ||
    fail 'not exit code 0'
diff "$home/golden.txt" "$home/out.txt" >"$home/diff.txt" || fail "$(cat "$home/diff.txt")"

# A stage of its own: no idle time; interleaved stages idle less.
schedule 1 --global-batch-size 4 || fail 'one rank: not exit code 0'
grep -q 'bubble 0.0 %' "$home/out.txt" || fail 'one rank idles'
schedule 4 --pipeline-model-parallel-size 4 --global-batch-size 8 \
    --num-virtual-stages-per-pipeline-rank 2 || fail 'chunks: not exit code 0'
grep -q 'bubble 15.8 %' "$home/out.txt" || fail 'chunks: not 3 idle of 3 + 8 x 2'

schedule 6 --pipeline-model-parallel-size 4 --global-batch-size 8
[ $? = 2 ] || fail '6 ranks in stages of 4: not exit code 2'

[ -z "$(ls -A .)" ] || fail "written: $(ls -A .)"
[ $failures = 0 ]
