#!/usr/bin/env bash
# kills.sh BIN KILLS [SEED]: training with a save after every step, and SIGKILL at random moments of a
# random rank, of all ranks, or of the agent (which is then started again). However often, the run
# ends at the same state as an undisturbed one. CI does 20 kills; by hand: kills.sh BIN 200.
set -uo pipefail
PATH=$1:$PATH
wanted=$2
RANDOM=${3:-$$}
echo "seed ${3:-$$}"
home=$(mktemp -d "${TMPDIR:-/tmp}/holdfast-kills.XXXXXX")
trap 'pkill -KILL -f "$home" 2>/dev/null; rm -rf "$home"' EXIT
cd "$home" || exit 2

train=(train --num-layers 2 --hidden-size 32 --num-attention-heads 4 --seq-length 32
    --max-position-embeddings 32 --vocab-size 257 --mock-data --micro-batch-size 2
    --global-batch-size 8 --lr 1e-3 --train-iters 80 --tensor-model-parallel-size 2
    --save-interval 1 --keep-last 3 --log-interval 20 --num-threads 1)

# run NAME: the whole training, the agent started again when it was killed, or gave up: three kills in
# a row while loading look like one cause. Prints the final hash.
run() {
    local code=137
    while [ "$code" = 137 ] || [ "$code" = 93 ]; do
        holdfast run --nproc-per-node 4 --run-dir "$home/$1.run" --max-restarts 1000 -- \
            "${train[@]}" --save "$home/$1" --load "$home/$1" >>"$1.log" 2>&1
        code=$?
    done
    if [ "$code" != 0 ]; then
        echo "run $1 ended with $code:" && tail -n 30 "$1.log"
        return 1
    fi
    # A run killed after its last commit finds nothing left to do: the checkpoint knows the hash.
    sed -n 's/.*"state_hash":[[:space:]]*"\(0x[0-9a-f]*\)".*/\1/p' "$1/step_0000080/manifest.json"
}

# The ranks or the agent of a run, by their command lines.
ranks_of() {
    pgrep -f "holdfast-train .*--save $home/$1 "
}

# Something dies at once; fails when there was nothing to kill.
kill_something() {
    local pids
    case $((RANDOM % 4)) in
    0) pids=$(pgrep -f "holdfast-recover run .*--run-dir $home/$1.run ") ;;
    1) pids=$(ranks_of "$1") ;;
    *) pids=$(ranks_of "$1" | shuf -n 1 --random-source=<(yes $RANDOM)) ;;
    esac
    # shellcheck disable=SC2086
    [ -n "$pids" ] && kill -KILL $pids 2>/dev/null
}

reference=$(run undisturbed) || { echo "$reference" && exit 1; }
kills=0 round=0
while [ "$kills" -lt "$wanted" ]; do
    round=$((round + 1))
    run "round$round" >"round$round.hash" &
    runner=$!
    while kill -0 $runner 2>/dev/null && [ "$kills" -lt "$wanted" ]; do
        sleep "0.$(printf '%03d' $((RANDOM % 800 + 20)))"
        kill_something "round$round" && kills=$((kills + 1))
    done
    wait $runner
    hash=$(cat "round$round.hash")
    if [ "$hash" != "$reference" ]; then
        echo "after $kills kills round $round ended with '$hash', undisturbed '$reference'"
        tail -n 40 "round$round.log"
        exit 1
    fi
    if ! holdfast ckpt verify "$home/round$round" --level deep >verify.log 2>&1; then
        echo "after $kills kills a checkpoint is damaged:" && cat verify.log
        exit 1
    fi
    rm -rf "$home/round$round" "$home/round$round.run"
done
echo "$kills kills in $round runs: state $reference each time"
