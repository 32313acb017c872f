#!/usr/bin/env bash
# bad_input.sh BIN: wrong flags, broken data, damaged and foreign checkpoints, full and forbidden
# folders, busy leases and stops, met through `holdfast train` alone and through `holdfast run`:
# the documented exit code, one message that says what, where and what to do, and nothing lost.
set -uo pipefail
PATH=$1:$PATH
home=$(mktemp -d "${TMPDIR:-/tmp}/holdfast bad.XXXXXX")
export TMPDIR=$home # of the agents' run folders
trap 'kill $(jobs -p) 2>/dev/null; wait; umount "$home/small" 2>/dev/null; rm -rf "$home"' EXIT
cd "$home" || exit 2
failures=0
LIMIT_S=60 # a command that takes longer hangs

fail() {
    printf 'FAILED: %s\n' "$1"
    grep -vE '  [a-z0-9_]+ \.\.\.|iteration  ' out.txt # all but the arguments and the steps
    failures=$((failures + 1))
}

# expect CODE TEXT COMMAND...: the exit code, and a text in what it prints ("" any).
expect() {
    local code=$1 text=$2 got
    shift 2
    timeout -s KILL $LIMIT_S "$@" >out.txt 2>&1
    got=$?
    if [ "$got" != "$code" ] || { [ -n "$text" ] && ! grep -qF -- "$text" out.txt; }; then
        fail "$*: exit code $got, wanted $code and \"$text\""
    fi
}

# And another text in what the last command printed.
also() {
    grep -qF -- "$1" out.txt || fail "missing: \"$1\""
}

# refused CODE TEXT FLAGS...: by a rank alone, in one message at the end, and by RANKS under the
# agent, whose last line names the same cause; no rank is started twice.
RANKS=2
refused() {
    local code=$1 text=$2
    shift 2
    expect "$code" "$text" holdfast train "${model[@]}" "$@"
    [ "$(sed '/^holdfast train: /,$!d' out.txt | wc -l)" = 1 ] || fail 'not one message at the end'
    refused_run "$code" "$text" "$@"
}
refused_run() {
    local code=$1 text=$2
    shift 2
    expect "$code" "$text" holdfast run --nproc-per-node $RANKS -- train "${model[@]}" "$@"
    tail -n 1 out.txt | grep -qF -- "$text" || fail "the last line does not say \"$text\""
    ! grep -q 'generation 2: rank' out.txt || fail 'started again for nothing'
}

# What a folder holds: names and contents, but for the lease and readers' pins.
tree() {
    (cd "$1" && find . -path './.owner*' -prune -o -path './.pins*' -prune -o \
        \( -type f -exec md5sum {} + \) -o -print | sort)
}
# unchanged FOLDER: as it was when `tree FOLDER >FOLDER.tree` looked.
unchanged() {
    tree "$1" | diff "$1.tree" - >diff.txt || fail "'$1' is changed: $(cat diff.txt)"
}
absent() {
    [ ! -e "$1" ] || fail "'$1' is there"
}
flip() { # FILE: another content in its middle, longer than any gap between two tensors
    yes | dd of="$1" bs=1000 seek=$(($(stat -c %s "$1") / 3000)) count=20 iflag=fullblock \
        conv=notrunc 2>/dev/null
}
# wait_for TEXT FILE: until a running command has said it.
wait_for() {
    local try
    for ((try = 0; try < LIMIT_S * 20; try++)); do
        ! grep -qF -- "$1" "$2" 2>/dev/null || return 0
        sleep 0.05
    done
    cp "$2" out.txt
    fail "'$1' never came"
}
rank_pid() { # RANK FILE
    sed -n "s/.*rank $1 of .* started, pid \([0-9]*\).*/\1/p" "$2" | tail -n 1
}
# ended PID CODE FILE: of a command in the background.
ended() {
    local got
    wait "$1"
    got=$?
    cp "$3" out.txt
    [ "$got" = "$2" ] || fail "left with $got, wanted $2"
}
final_hash() {
    sed -n 's/.*final state hash \(0x[0-9a-f]*\) .*/\1/p' out.txt
}

seq 60 | sed 's/.*/{"text": "line & of a text that is read again and again and again"}/' >text.jsonl
holdfast preprocess --input text.jsonl --output-prefix data --tokenizer-type ByteTokenizer \
    --append-eod || exit 2
# shellcheck disable=SC2054 # the comma is an argument's
model=(--num-layers 2 --hidden-size 32 --num-attention-heads 4 --seq-length 32
    --max-position-embeddings 32 --vocab-size 257 --micro-batch-size 2 --global-batch-size 4
    --lr 1e-3 --lr-decay-style constant --num-threads 1 --split 1,0,0 --log-interval 1)
data=(--data-path data_text_document)
ten=(--train-iters 10 "${data[@]}")
save=(--save save --save-interval 2)

# --- flags ----------------------------------------------------------------------------------------

refused 2 "unknown option '--num-layer'; did you mean '--num-layers'?" "${ten[@]}" --num-layer 4
refused 2 '--rampup-batch-size' "${ten[@]}" --rampup-batch-size 16 8 1000
refused 2 'unexpected argument' stray "${ten[@]}"
refused 2 "'--train-iters'" "${data[@]}" --train-iters many
refused 2 '--attention-dropout' "${ten[@]}" --attention-dropout 1.5
refused 2 '--lr-decay-style' "${ten[@]}" --lr-decay-style triangle
refused 2 '--hidden-size 30 is not a multiple of --num-attention-heads 4' "${ten[@]}" \
    --hidden-size 30
refused 2 '--max-position-embeddings 32 is less than --seq-length 64' "${ten[@]}" --seq-length 64
refused 2 '--train-iters 10 and --train-samples 40' "${ten[@]}" --train-samples 40
refused 2 '--train-iters 0 and --train-samples 0' "${data[@]}"
refused 2 '--mock-data' "${ten[@]}" --mock-data
refused 2 '--mock-data' --train-iters 10
refused 2 '--save-interval' "${ten[@]}" --save save
refused 2 '--ckpt-step 4' "${ten[@]}" --ckpt-step 4
refused 2 '--min-lr 1 is more than --lr 0.001' "${ten[@]}" --min-lr 1
refused 1 "no device 'gpu9'" "${ten[@]}" --device gpu9
expect 2 '--num-layers' holdfast train --train-iters 10
expect 2 'multiple' holdfast train "${model[@]}" "${ten[@]}" --tensor-model-parallel-size 2
RANKS=3
refused_run 2 '--num-attention-heads 4 is not a multiple of --tensor-model-parallel-size 3' \
    "${ten[@]}" --tensor-model-parallel-size 3
refused_run 2 '3 ranks are not a multiple of --tensor-model-parallel-size 2' "${ten[@]}" \
    --tensor-model-parallel-size 2
refused_run 2 '--pipeline-model-parallel-size 3 is more than --num-layers 2' "${ten[@]}" \
    --pipeline-model-parallel-size 3
refused_run 2 '--global-batch-size 4 is not a multiple of --micro-batch-size 2 x DP 3' "${ten[@]}"
RANKS=2
expect 2 '--nproc-per-node' holdfast run --nproc-per-nod 2 -- train "${model[@]}" "${ten[@]}"
expect 2 'no command' holdfast run --nproc-per-node 2
expect 2 "no command 'trian'" holdfast trian
expect 2 'RANK' env RANK=2 WORLD_SIZE=2 holdfast train "${model[@]}" "${ten[@]}"
expect 2 'holdfast run' env RANK=0 WORLD_SIZE=2 holdfast train "${model[@]}" "${ten[@]}"

# --- data -----------------------------------------------------------------------------------------

flags=(--train-iters 10 "${save[@]}" --load save --data-path)
mkdir folder
cp data_text_document.idx half.idx
refused 1 "looked for 'folder.idx' and 'folder.bin'; 'folder' is a folder" "${flags[@]}" folder
refused 1 "without '.bin'" "${flags[@]}" data_text_document.bin
refused 1 "did you mean './data_text_document'?" "${flags[@]}" data
refused 1 "'half.bin' is not" "${flags[@]}" half
for cut in idx bin; do
    cp data_text_document.idx cut.idx && cp data_text_document.bin cut.bin
    truncate -s -10 cut.$cut
    refused 1 "'cut.$cut'" "${flags[@]}" cut
done
cat data_text_document.bin data_text_document.bin >cut.bin # of another .idx
refused 1 "'cut.bin' has $(stat -c %s cut.bin) bytes" "${flags[@]}" cut
cp data_text_document.idx cut.idx
printf 'NOTMAGIC' | dd of=cut.idx conv=notrunc 2>/dev/null
refused 1 "'cut.idx'" "${flags[@]}" cut
refused 1 'the vocabulary' --vocab-size 100 "${flags[@]}" data_text_document
: >empty.idx && : >empty.bin
refused 1 "'empty.idx'" "${flags[@]}" empty
echo '{"text": ""}' >none.jsonl
holdfast preprocess --input none.jsonl --output-prefix none --tokenizer-type ByteTokenizer \
    >/dev/null 2>&1
refused 1 "none_text_document" "${flags[@]}" none_text_document
absent save

# --- checkpoints ----------------------------------------------------------------------------------

expect 0 'saved step 10' holdfast run --nproc-per-node 2 --run-dir first -- train "${model[@]}" \
    "${ten[@]}" "${save[@]}"
tree save >save.tree
resume=("${data[@]}" "${save[@]}" --load save)

# Started again at the end: nothing to do, nothing written.
expect 0 'the training is done' holdfast train "${model[@]}" --train-iters 10 "${resume[@]}"
expect 0 'the training is done' holdfast run --nproc-per-node 2 --run-dir first -- train \
    "${model[@]}" --train-iters 10 "${resume[@]}"
unchanged save

# Another model's, another run's, a step that is not there.
refused 14 '--hidden-size' --train-iters 20 "${resume[@]}" --hidden-size 64
refused 14 '--seed' --train-iters 20 "${resume[@]}" --seed 7
refused 10 'step 7' --train-iters 20 "${resume[@]}" --ckpt-step 7
refused 2 "'save' holds checkpoints up to step 10" --train-iters 20 "${data[@]}" "${save[@]}"
also 'or --from-scratch'
refused 10 "no checkpoint in 'nowhere', and --save 'save' is another directory" --train-iters 20 \
    "${data[@]}" "${save[@]}" --load nowhere
refused 10 "no checkpoint in 'folder'" --train-iters 20 "${data[@]}" --load folder
refused 10 'and --exit-on-missing-checkpoint is given' --train-iters 20 "${data[@]}" \
    --save nowhere --save-interval 2 --load nowhere --exit-on-missing-checkpoint
refused 2 "'save/latest' is a file" --train-iters 20 "${data[@]}" --load save/latest
absent nowhere
unchanged save

# From scratch loses nothing: the old steps have other names.
cp -a save scratch
scratch=("${data[@]}" --save scratch --save-interval 2 --from-scratch)
expect 0 'saved step 2' holdfast train "${model[@]}" --train-iters 2 "${scratch[@]}"
for step in 2 4 6 8 10; do
    name=$(printf 'step_%07d' $step)
    diff -r save/"$name" scratch/rejected-"$name"-2 >diff.txt || fail "$(cat diff.txt)"
done

# Damage in the newest: its reason, and the one before it is used, alone and where the agent
# remembers the commit; the damaged one is set aside. `first` is what the agent remembers.
# shellcheck disable=SC2317 # called by its name in the list below
cut_short() { truncate -s -1 "$1"; }
again=(--train-iters 12 "${data[@]}" --save damaged --load damaged --save-interval 2)
while read -r how file reason; do
    for runner in '' 'holdfast run --nproc-per-node 2 --run-dir again --'; do
        rm -rf damaged again
        cp -a save damaged && cp -a first again
        "$how" "damaged/step_0000010/$file"
        # shellcheck disable=SC2086
        expect 0 "passing over checkpoint 'damaged/step_0000010': " \
            ${runner:-holdfast} train "${model[@]}" "${again[@]}"
        also "$reason"
        also "resumed from 'damaged/step_0000008'"
        also 'saved step 12'
        expect 0 '' holdfast ckpt verify damaged --level deep
        [ -e damaged/rejected-step_0000010-2 ] || fail 'the damaged one is not set aside'
    done
done <<'CASES'
flip tp00_pp00_dp01.h5 'damaged/step_0000010/tp00_pp00_dp01.h5' is damaged
cut_short tp00_pp00_dp00.h5 file 'damaged/step_0000010/tp00_pp00_dp00.h5' has
cut_short manifest.json 'damaged/step_0000010/manifest.json'
rm tp00_pp00_dp00.h5 file 'damaged/step_0000010/tp00_pp00_dp00.h5' is missing
CASES

# Asked for by step or name, a damaged one is not replaced by another.
damaged=(--train-iters 12 "${data[@]}" --save elsewhere --save-interval 2)
rm -rf damaged && cp -a save damaged && flip damaged/step_0000008/tp00_pp00_dp01.h5
tree damaged >damaged.tree
refused 12 'is damaged' "${damaged[@]}" --load damaged --ckpt-step 8
refused 12 'is damaged' "${damaged[@]}" --load damaged/step_0000008
unchanged damaged

# Only damaged ones: a list of them, and no step 0.
for file in damaged/step_*/tp00_pp00_dp00.h5; do
    flip "$file"
done
tree damaged >damaged.tree
refused 10 "no usable checkpoint in 'damaged'" "${damaged[@]}" --load damaged
also "the newest: 'damaged/step_0000010/tp00_pp00_dp00.h5' is damaged"
also '--from-scratch'
for step in 02 04 06 08 10; do
    rm damaged/step_00000$step/tp00_pp00_dp00.h5
done
tree damaged >damaged.tree
refused 10 "no usable checkpoint in 'damaged'" "${damaged[@]}" --load damaged
unchanged damaged
absent elsewhere

# What the agent remembers has vanished: never step 0, and never quietly an older step.
rm -rf damaged/step_*
refused_again() {
    rm -rf again && cp -a first again
    expect 10 'this run has committed step 10' holdfast run --nproc-per-node 2 --run-dir again \
        -- train "${model[@]}" --train-iters 12 "${data[@]}" --save "$1" --load "$1" \
        --save-interval 2
}
refused_again damaged
refused_again gone
cp -a save less && rm -r less/step_0000010
refused_again less

# --- a busy lease, kills and stops ----------------------------------------------------------------

# starts LOG RUN_DIR FLAGS...: ranks under the agent in the background.
starts() {
    local log=$1 run_dir=$2
    shift 2
    : >"$log"
    holdfast run --nproc-per-node 2 --run-dir "$run_dir" -- train "${model[@]}" "${data[@]}" "$@" \
        >"$log" 2>&1 &
}

starts owner.txt owner --train-iters 1000000 --save busy --save-interval 2 --keep-last 1
owner=$!
wait_for 'saved step 10 ' owner.txt
refused 11 "'busy' is written by" --train-iters 1000000 "${data[@]}" --save busy --load busy \
    --save-interval 10
also ', and not by '
also 'or give each its own --save'

# Others may read meanwhile; the owner's retention takes nothing away under them.
for ((i = 0; i < 3; i++)); do
    expect 0 "resumed from 'busy/step_" holdfast train "${model[@]}" --train-iters 1000000 \
        "${data[@]}" --load busy --save "reader-$i" --save-interval 10 --exit-interval 1
done
[ -z "$(ls -A busy/.pins)" ] || fail 'a pin is left behind'

# SIGTERM to the agent: a committed save and 75; no process stays.
rank=$(rank_pid 1 owner.txt)
kill -TERM $owner
ended $owner 75 owner.txt
also 'start the same command again to go on'
! kill -0 "$rank" 2>/dev/null || fail "rank 1 (pid $rank) lives on"
expect 0 '' holdfast ckpt verify busy --level deep

# Started while the owner makes its last save: what it saved counts, although this run had looked
# before. The owner's next beat may come first and the run be refused: then it is tried again.
for ((try = 0; try < 20; try++)); do
    rm -rf overlap
    starts owner.txt "owner-$try" --train-iters 1000000 --save overlap --save-interval 1000000
    owner=$!
    wait_for 'iteration       ' owner.txt
    starts heir.txt "heir-$try" --train-iters 1 --save overlap --load overlap --save-interval 1
    heir=$!
    wait_for "watching the owner of 'overlap'" heir.txt
    kill -TERM $owner
    ended $owner 75 owner.txt
    wait $heir
    got=$?
    cp heir.txt out.txt
    if [ "$got" = 0 ]; then
        also 'looking again'
        also 'the training is done'
        break
    fi
    [ "$got" = 11 ] || fail "the heir left with $got"
done
[ "$got" = 0 ] || fail 'the heir was refused each time'
! ls overlap/rejected-* >/dev/null 2>&1 || fail 'commits of the owner were set aside'

# Stopped and started again it ends as if nothing had been.
straight=(--train-iters 600 --save straight --load straight --save-interval 1000)
starts straight.txt straight-run "${straight[@]}"
ended $! 0 straight.txt
undisturbed=$(final_hash)
rm -rf straight
starts stop.txt stop-run "${straight[@]}"
stopped=$!
wait_for 'iteration       10/' stop.txt
kill -TERM $stopped
ended $stopped 75 stop.txt
starts stop.txt stop-run "${straight[@]}"
ended $! 0 stop.txt
[ "$(final_hash)" = "$undisturbed" ] || fail "not $undisturbed"

# --load A --save B: after a commit to B, B is what a restart goes on from.
tree save >save.tree
starts move.txt move-run --train-iters 200 --load save --save moved --save-interval 20
moving=$!
wait_for 'saved step 40 ' move.txt
kill -KILL "$(rank_pid 1 move.txt)"
ended $moving 0 move.txt
also "resumed from 'save/step_0000010'"
also "[gen 2 rank 0]"
grep -q "^\[gen 2 rank 0\].* resumed from 'moved/step_" move.txt || fail 'not from B'
unchanged save

# --- no room, no permission -----------------------------------------------------------------------

mkdir small
if mount -t tmpfs -o size=4m tmpfs small 2>/dev/null; then
    expect 1 'bytes free, but one checkpoint takes' holdfast train "${model[@]}" "${ten[@]}" \
        --hidden-size 256 --save small/save --save-interval 2
    also 'make room, or give another --save'
    expect 93 'bytes free, but one checkpoint takes' holdfast run --nproc-per-node 2 -- train \
        "${model[@]}" "${ten[@]}" --hidden-size 256 --save small/save --save-interval 2
    absent small/save/step_0000002
    rm -rf small/save
    # It fills while the training runs: older checkpoints stay whole, the last save's failure tells.
    expect 1 'is not saved: ' holdfast train "${model[@]}" --train-iters 30 "${data[@]}" \
        --save small/save --save-interval 2
    also 'training goes on'
    also 'No space left on device'
    also 'iteration       30/      30'
    tail -n 1 out.txt | grep -q 'the last step 30 is not saved; newest .* why: .*No space left' ||
        fail 'the last line does not say why'
    expect 0 '' holdfast ckpt verify small/save --level deep
    [ -z "$(ls -A small/save/.epoch-* 2>/dev/null)" ] || fail 'half a checkpoint stays'
    # And where there is room again, it goes on from there.
    rm -rf small/save/step_0000002 small/save/step_0000004
    expect 0 'saved step 30 ' holdfast train "${model[@]}" --train-iters 30 "${data[@]}" \
        --save small/save --load small/save --save-interval 30
else
    echo 'SKIP: cannot mount a small tmpfs, so a full disk is not tried'
fi

: >a-file
refused 2 "'a-file' is a file" "${ten[@]}" --save a-file --save-interval 2
as_nobody=()
if [ "$(id -u)" = 0 ]; then
    as_nobody=(setpriv --reuid 65534 --regid 65534 --clear-groups)
fi
mkdir locked && cp -a save locked/save && chmod -R a+rX . && chmod 700 "$home"/first
mkdir -m 777 runs
if "${as_nobody[@]}" test -r data_text_document.idx && ! "${as_nobody[@]}" test -w locked; then
    tree locked/save >locked.tree
    for target in locked/new locked/save; do
        expect 1 'Permission denied' "${as_nobody[@]}" holdfast train "${model[@]}" \
            --train-iters 20 "${data[@]}" --load locked/save --save $target --save-interval 2
        also "'$target"
        expect 1 'Permission denied' "${as_nobody[@]}" holdfast run --nproc-per-node 2 --run-dir \
            runs/$RANDOM -- train "${model[@]}" --train-iters 20 "${data[@]}" --load locked/save \
            --save $target --save-interval 2
    done
    mv locked.tree locked.save.tree
    tree locked/save | diff locked.save.tree - >diff.txt || fail "$(cat diff.txt)"
    absent locked/new
    # The newest is whole, but not for this user: no older one is taken for it.
    cp -a save private && chmod 000 private/step_0000010/manifest.json && chmod 777 private
    expect 1 "checkpoint 'private/step_0000010' is not readable here" "${as_nobody[@]}" holdfast \
        train "${model[@]}" --train-iters 20 "${data[@]}" --load private --save private \
        --save-interval 2
    also '--ckpt-step'
    [ -e private/step_0000010 ] || fail 'it was set aside'
else
    echo 'SKIP: no other user to be, so forbidden folders are not tried'
fi

exit $((failures > 0))
