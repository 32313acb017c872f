#!/usr/bin/env bash
# The first voyage of a new user: installs and builds Holdfast, trains a small GPT on real text with
# 4 rank processes, kills one of them, watches the agent resume, resumes the result in another
# layout, verifies every file, and backs it up and restores it. No GPU; under 6 minutes on 2 cores.
#
#     bash train/quickstart.sh [FOLDER]        default: build/quickstart in the clone
#
# Can be run again: it clears the folder that an earlier run of it made, and no other.
set -euo pipefail
# shellcheck source=tests/setup.sh
. "$(dirname "${BASH_SOURCE[0]}")/../tests/setup.sh"

FIRST_STEPS=200
ALL_STEPS=240
began=$SECONDS

hf_install "${HF_PACKAGES[@]}"
hf_build -DHOLDFAST_TESTS=OFF
PATH=$HF_BUILD/bin:$PATH

home=${1:-$HF_BUILD/quickstart}
if [ -e "$home" ] && [ ! -e "$home/.quickstart" ]; then
    echo "quickstart: '$home' exists and was not made by this script; name another folder" >&2
    exit 2
fi
rm -rf "$home"
mkdir -p "$home"
touch "$home/.quickstart"

hf_say 'tokenizing the King James Bible (4.4 MB) byte by byte'
/usr/games/bible -f 'Gen1:1-Rev22:21' >"$home/bible.txt" 2>/dev/null ||
    bible -f 'Gen1:1-Rev22:21' >"$home/bible.txt"
holdfast preprocess --input "$home/bible.txt" --output-prefix "$home/bible" \
    --tokenizer-type ByteTokenizer --append-eod --workers 2

model=(--num-layers 4 --hidden-size 128 --num-attention-heads 4 --seq-length 128
    --max-position-embeddings 128 --vocab-size 257 --attention-dropout 0.1 --hidden-dropout 0.1
    --data-path "$home/bible_text_document" --split 969,30,1
    --micro-batch-size 4 --global-batch-size 16 --lr 1e-3 --min-lr 1e-4 --lr-decay-style cosine
    --lr-decay-iters "$ALL_STEPS" --lr-warmup-iters 20 --weight-decay 0.1 --clip-grad 1.0
    --log-interval 10 --save "$home/checkpoints" --load "$home/checkpoints" --save-interval 20)

# Kills rank 2 once, when it has done 110 steps.
kill_one_rank() {
    local log=$home/train.log pid
    until grep -q 'iteration  *110/' "$log" 2>/dev/null; do
        sleep 0.1
    done
    pid=$(sed -n '0,/rank 2 of 4 started, pid/s/.*rank 2 of 4 started, pid \([0-9]*\).*/\1/p' "$log")
    if [ -n "$pid" ]; then
        printf '== killing rank 2 (pid %s) with SIGKILL\n' "$pid"
        kill -KILL "$pid"
        touch "$home/killed"
    fi
}

hf_say "training $FIRST_STEPS steps on 4 ranks: TP 2 x PP 1 x DP 2"
: >"$home/train.log"
kill_one_rank &
killer=$!
trap 'kill "$killer" 2>/dev/null || true' EXIT
holdfast run --nproc-per-node 4 --run-dir "$home/run" -- \
    train "${model[@]}" --train-iters "$FIRST_STEPS" --tensor-model-parallel-size 2 2>&1 |
    tee "$home/train.log"
wait "$killer"
[ -e "$home/killed" ] || {
    echo 'quickstart: no rank was killed, so nothing was shown' >&2
    exit 1
}

hf_say "going on to step $ALL_STEPS on 2 ranks: TP 1 x PP 2 x DP 1"
holdfast run --nproc-per-node 2 --run-dir "$home/run-resharded" -- \
    train "${model[@]}" --train-iters "$ALL_STEPS" --pipeline-model-parallel-size 2 2>&1 |
    tee "$home/train-resharded.log"

hf_say 'verifying every byte of every checkpoint'
holdfast ckpt list "$home/checkpoints"
holdfast ckpt verify "$home/checkpoints" --level deep

hf_say 'backing up, and restoring into another folder'
holdfast backup push "$home/checkpoints" "$home/backup"
holdfast backup verify "$home/backup"
holdfast backup pull "$home/backup" "$home/restored"
holdfast ckpt verify "$home/restored" --level deep

seconds=$((SECONDS - began))
first=$(sed -n '0,/lm loss: /s/.*lm loss: \([^ ]*\).*/\1/p' "$home/train.log")
last=$(sed -n 's/.*lm loss: \([^ ]*\).*/\1/p' "$home/train-resharded.log" | tail -n 1)
cat <<SUMMARY

Done in $seconds s. What happened:
  trained   $FIRST_STEPS steps on TP 2 x PP 1 x DP 2, one rank killed by SIGKILL at about step 110
  resumed   by the agent; its report: $(grep -h 'killed by signal' "$home/train.log" | tail -n 1)
  reshaped  to TP 1 x PP 2 x DP 1, then trained to step $ALL_STEPS; loss $first -> $last
  verified, backed up and restored
Where things are:
  checkpoints   $home/checkpoints
  run reports   $home/run, logs in $home/run/logs
  backup        $home/backup, restored to $home/restored
SUMMARY
