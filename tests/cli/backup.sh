#!/usr/bin/env bash
# backup.sh MAKE_CHECKPOINT BIN: the backup commands as a user meets them: round trips, kills,
# damage, foreign steps, folders without room or permission.
set -uo pipefail
make=$1
PATH=$2:$PATH
home=$(mktemp -d "${TMPDIR:-/tmp}/holdfast backup.XXXXXX")
trap 'umount "$home/small" 2>/dev/null; rm -rf "$home"' EXIT
cd "$home" || exit 2
failures=0

# expect CODE TEXT COMMAND...: the exit code, and a text in what it prints ("" any).
expect() {
    local code=$1 text=$2 got
    shift 2
    "$@" >out.txt 2>&1
    got=$?
    if [ "$got" != "$code" ] || { [ -n "$text" ] && ! grep -qF -- "$text" out.txt; }; then
        printf 'FAILED: %s\n  exit code %s, wanted %s and "%s":\n' "$*" "$got" "$code" "$text"
        cat out.txt
        failures=$((failures + 1))
    fi
}

same_tree() {
    if ! diff -r "$1" "$2" >diff.txt; then
        printf 'FAILED: %s and %s differ\n' "$1" "$2"
        cat diff.txt
        failures=$((failures + 1))
    fi
}

# A round trip, names with spaces, a second push and pull.
"$make" 'my save' 10 run-a 100000 && "$make" 'my save' 20 run-a 100000 || exit 2
expect 0 'pushed step_0000020' holdfast-backup push 'my save' 'my store'
expect 0 'there already' holdfast-backup push 'my save' 'my store'
expect 0 'pushed step_0000010' holdfast-backup push 'my save' dir:'my store' --all
expect 0 'step_0000010' holdfast-backup list 'my store'
expect 0 'verified' holdfast-backup verify 'my store'
expect 0 'pulled step_0000020' holdfast-backup pull 'my store' restored
expect 0 'there already' holdfast-backup pull 'my store' restored
expect 0 '' holdfast-backup pull 'my store' restored --step 10
same_tree 'my save/step_0000010' restored/step_0000010
same_tree 'my save/step_0000020' restored/step_0000020
expect 0 '"type":"complete"' holdfast-backup list 'my store' --json

# A foreign run's step is refused, with both names; nothing is overwritten.
"$make" foreign 20 run-b 100000
expect 1 "run 'run-a' there, run 'run-b' here" holdfast-backup push foreign 'my store'
"$make" occupied 20 run-b 100000
expect 1 'is another checkpoint' holdfast-backup pull 'my store' occupied
same_tree foreign/step_0000020 occupied/step_0000020
mkdir -p claimed/step_0000005 && : >claimed/step_0000005/push-run-z
"$make" five 5 run-a 1000
expect 1 "run 'run-z' is pushing" holdfast-backup push five claimed

# Damage at the far side is found by verify and by pull, and pull shows nothing.
cp -r 'my store' damaged
printf 'X' | dd of=damaged/step_0000020/tp01_pp00_dp00.h5 bs=1 seek=5000 conv=notrunc 2>/dev/null
expect 12 'damaged' holdfast-backup verify damaged
expect 0 '' holdfast-backup verify damaged --quick
expect 12 'damaged' holdfast-backup pull damaged fresh
[ ! -e fresh/step_0000020 ] || { echo 'FAILED: a damaged pull is visible' && failures=1; }
expect 0 '' holdfast-backup pull damaged fresh --step 10
rm damaged/step_0000020/tp01_pp00_dp00.h5
expect 12 'not 100000' holdfast-backup verify damaged
cp -r 'my store' torn
head -c 300 'my store/step_0000020/manifest.json' >torn/step_0000020/manifest.json
expect 0 'pulled step_0000010' holdfast-backup pull torn fallen

# A damaged source is not pushed.
cp -r 'my save' bad
printf 'X' | dd of=bad/step_0000020/tp00_pp00_dp00.h5 bs=1 seek=77 conv=notrunc 2>/dev/null
expect 12 'not pushed' holdfast-backup push bad elsewhere
expect 10 'no checkpoint' holdfast-backup verify elsewhere

# Prune never takes the last whole one.
cp -r 'my store' pruned
expect 0 '(dry run)' holdfast-backup prune pruned --keep-last 1 --dry-run
[ -e pruned/step_0000010/manifest.json ] || { echo 'FAILED: a dry run removed' && failures=1; }
expect 0 'step_0000010' holdfast-backup prune pruned --keep-last 1
expect 0 '' holdfast-backup prune pruned --keep-last 1
expect 0 'verified' holdfast-backup verify pruned
[ ! -e pruned/step_0000010 ] || { echo 'FAILED: prune left step 10' && failures=1; }

# Wrong usage.
expect 2 'unknown command' holdfast-backup shove a b
expect 2 'too few arguments' holdfast-backup push only-one
expect 2 "did you mean '--step'" holdfast-backup pull a b --stpe 3
expect 10 'no checkpoint' holdfast-backup push nowhere store
expect 1 "no store for 'gs://bucket'" holdfast-backup push 'my save' gs://bucket
expect 2 'is no name of a bucket' holdfast-backup list s3:///x
expect 2 'begins with neither' holdfast-backup list s3://bucket --endpoint-url localhost:9000
AWS_CONFIG_FILE=/dev/null AWS_SHARED_CREDENTIALS_FILE=/dev/null AWS_ACCESS_KEY_ID='' \
    expect 1 'no keys for S3' holdfast-backup list s3://bucket
expect 1 'No such file' holdfast-backup list missing
expect 10 'step 99' holdfast-backup pull 'my store' x --step 99

# SIGKILL at 30 random moments: never a half backup that looks whole; the next push completes.
"$make" big 30 run-a 8000000
for i in $(seq 30); do
    rm -rf killed
    holdfast-backup push big killed >/dev/null 2>&1 &
    pid=$!
    sleep "0.0$((RANDOM % 60 + 10))"
    kill -KILL $pid 2>/dev/null
    wait $pid 2>/dev/null
    if [ -e killed/step_0000030/manifest.json ]; then
        expect 0 'verified' holdfast-backup verify killed
    fi
    expect 0 '' holdfast-backup push big killed
    expect 0 'verified' holdfast-backup verify killed
    [ -z "$(ls -A killed/.uploads)" ] || { echo "FAILED: kill $i left an upload" && failures=1; }
    rm -rf pulled
    holdfast-backup pull killed pulled >/dev/null 2>&1 &
    pid=$!
    sleep "0.0$((RANDOM % 30 + 10))"
    kill -KILL $pid 2>/dev/null
    wait $pid 2>/dev/null
    expect 0 '' holdfast-backup pull killed pulled
    same_tree big/step_0000030 pulled/step_0000030
done

# No room: a clean refusal and nothing visible.
mkdir small
if mount -t tmpfs -o size=4m tmpfs small 2>/dev/null; then
    expect 1 'No space left' holdfast-backup push big small/store
    expect 10 '' holdfast-backup verify small/store
    expect 1 'has room for' holdfast-backup pull killed small/save
    [ ! -e small/save/step_0000030 ] || { echo 'FAILED: half a pull' && failures=1; }
else
    echo 'SKIP: cannot mount a small tmpfs, so a full disk is not tried'
fi

# No permission (root may write anywhere).
if [ "$(id -u)" != 0 ]; then
    mkdir locked && chmod 500 locked
    expect 1 'Permission denied' holdfast-backup push big locked/store
else
    : >a-file
    expect 1 'a file of that name' holdfast-backup push big a-file
fi
exit $((failures > 0))
