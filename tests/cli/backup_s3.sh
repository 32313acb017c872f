#!/usr/bin/env bash
# backup_s3.sh MAKE_CHECKPOINT TEST_STORE BIN: the backup commands against a real S3 server on the
# loopback, with signatures checked: rclone's, whose objects are files below a folder. It comes with
# the Python of the tests (tests/run.sh installs it); without it the test is skipped.
set -uo pipefail
make=$1
claims=$2
PATH=$3:$PATH
rclone=${HOLDFAST_TEST_RCLONE:-$(dirname "${HOLDFAST_TEST_PYTHON:-/nonexistent/python3}")/rclone}
if [ ! -x "$rclone" ]; then
    echo 'SKIP: no rclone beside the Python of the tests (HOLDFAST_TEST_PYTHON) to serve S3'
    exit 77
fi
home=$(mktemp -d "${TMPDIR:-/tmp}/holdfast s3.XXXXXX")
servers=()
trap 'for server in "${servers[@]}"; do kill "$server" 2>/dev/null; done; rm -rf "$home"' EXIT
cd "$home" || exit 2
failures=0

export AWS_ACCESS_KEY_ID=holdfast-test AWS_SECRET_ACCESS_KEY='odd/secret+with=signs'
export XDG_STATE_HOME=$home/state NO_PROXY=127.0.0.1 no_proxy=127.0.0.1
export AWS_CONFIG_FILE=$home/config AWS_SHARED_CREDENTIALS_FILE=$home/credentials
unset AWS_PROFILE AWS_SESSION_TOKEN AWS_REGION AWS_DEFAULT_REGION AWS_CA_BUNDLE AWS_ENDPOINT_URL_S3
mkdir -p far/bucket
# serve [OPTIONS]: starts a server of the folder "far" and sets AWS_ENDPOINT_URL.
serve() {
    local log=server${#servers[@]}.log
    "$rclone" --config "$home/rclone.conf" serve s3 --addr 127.0.0.1:0 \
        --auth-key "$AWS_ACCESS_KEY_ID,$AWS_SECRET_ACCESS_KEY" "$@" far >"$log" 2>&1 &
    servers+=($!)
    for _ in $(seq 100); do
        AWS_ENDPOINT_URL=$(sed -n 's|.*\(https\{0,1\}://127\.0\.0\.1:[0-9]*\).*|\1|p' "$log" | head -n 1)
        [ -z "$AWS_ENDPOINT_URL" ] || break
        sleep 0.1
    done
    [ -n "$AWS_ENDPOINT_URL" ] || { cat "$log" && exit 1; }
    export AWS_ENDPOINT_URL
}
serve

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

fail() {
    printf 'FAILED: %s\n' "$*"
    failures=$((failures + 1))
}

same_tree() {
    diff -r "$1" "$2" >diff.txt || fail "$1 and $2 differ: $(head -n 3 diff.txt)"
}

# The uploads that the server holds open, as another client sees them.
open_uploads() {
    "$rclone" --config "$home/rclone.conf" backend list-multipart-uploads \
        ":s3,provider=Rclone,endpoint='$AWS_ENDPOINT_URL',env_auth=true:bucket" 2>uploads.txt |
        grep -c UploadId
}

# What every store must do.
HOLDFAST_TEST_STORE=s3://bucket/claims "$claims" --jobs 2 >claims.txt 2>&1 ||
    fail "the claims of a store: $(cat claims.txt)"

# Round trips: one PUT, many parts, an odd prefix; a second push and pull.
"$make" save 10 run-a 100000 && "$make" save 20 run-a 20000000 || exit 2
odd='s3://bucket/a b+c%20d/ü (1)'
for store in s3://bucket/plain/ "$odd"; do
    rm -rf restored
    expect 0 'pushed step_0000020' holdfast-backup push save "$store"
    expect 0 'there already' holdfast-backup push save "$store"
    expect 0 'pushed step_0000010' holdfast-backup push save "$store" --all
    expect 0 'step_0000010' holdfast-backup list "$store"
    expect 0 'verified' holdfast-backup verify "$store"
    expect 0 'pulled step_0000020' holdfast-backup pull "$store" restored
    expect 0 'pulled step_0000010' holdfast-backup pull "$store" restored --step 10
    same_tree save/step_0000010 restored/step_0000010
    same_tree save/step_0000020 restored/step_0000020
done
[ -e 'far/bucket/a b+c%20d/ü (1)/step_0000020/manifest.json' ] || fail 'the prefix is not literal'
"$make" foreign 20 run-b 1000
expect 1 "run 'run-a' there, run 'run-b' here" holdfast-backup push foreign "$odd"
expect 0 'step_0000010' holdfast-backup prune "$odd" --keep-last 1
expect 0 'verified' holdfast-backup verify "$odd"
[ ! -e 'far/bucket/a b+c%20d/ü (1)/step_0000010' ] || fail 'prune left step 10'

# Who may do what, and the way keys and places are found.
AWS_SECRET_ACCESS_KEY=wrong expect 1 'SignatureDoesNotMatch' holdfast-backup list s3://bucket/plain
AWS_ACCESS_KEY_ID=stranger expect 1 'refuses' holdfast-backup push save s3://bucket/plain
expect 1 "no bucket 'unknown'" holdfast-backup push save s3://unknown/plain
expect 1 "no bucket 'unknown'" holdfast-backup list s3://unknown
expect 10 'no checkpoint' holdfast-backup verify s3://bucket/nothing
expect 10 '' holdfast-backup pull s3://bucket/nothing nowhere
expect 2 "'..' part" holdfast-backup list s3://bucket/a/../b
printf '[default]\nregion = nowhere\n[profile lab]\nendpoint_url = %s\n' "$AWS_ENDPOINT_URL" >config
printf '[lab]\naws_access_key_id=%s\naws_secret_access_key = %s\n' "$AWS_ACCESS_KEY_ID" \
    "$AWS_SECRET_ACCESS_KEY" >credentials
AWS_ACCESS_KEY_ID='' AWS_ENDPOINT_URL='' AWS_PROFILE=lab \
    expect 0 'complete' holdfast-backup list s3://bucket/plain
AWS_ENDPOINT_URL='' expect 0 'complete' holdfast-backup list s3://bucket/plain --profile lab
AWS_ENDPOINT_URL='' expect 1 'no whole answer' \
    holdfast-backup list s3://bucket/plain --endpoint-url http://127.0.0.1:1

# Damage at the far side is found by verify and by pull, and mended by push.
printf 'X' | dd of=far/bucket/plain/step_0000020/tp01_pp00_dp00.h5 bs=1 seek=9000000 conv=notrunc \
    2>/dev/null
expect 12 'damaged' holdfast-backup verify s3://bucket/plain
expect 0 '' holdfast-backup verify s3://bucket/plain --quick
expect 12 'damaged' holdfast-backup pull s3://bucket/plain fresh
[ ! -e fresh/step_0000020 ] || fail 'a damaged pull is visible'
truncate -s 5000000 far/bucket/plain/step_0000020/tp01_pp00_dp00.h5
expect 12 'damaged' holdfast-backup verify s3://bucket/plain
expect 0 'pushed step_0000020' holdfast-backup push save s3://bucket/plain
expect 0 'verified' holdfast-backup verify s3://bucket/plain

# More objects than a server lists at once.
mkdir -p far/bucket/full/step_0000001
(cd far/bucket/full/step_0000001 && seq -f 'stray%05g' 1 1500 | xargs touch)
expect 0 'pushed step_0000010' holdfast-backup push save s3://bucket/full --step 10
expect 0 'step_0000010' holdfast-backup list s3://bucket/full
grep -q 'step_0000001' out.txt || fail 'a list of several pages lost its first'
expect 0 '' holdfast-backup prune s3://bucket/full --keep-last 1
[ -z "$(ls -A far/bucket/full/step_0000001 2>/dev/null)" ] || fail 'prune left strays'

# TLS: an authority that the system does not know is refused, and the message names the mend.
plain=$AWS_ENDPOINT_URL
if command -v openssl >/dev/null; then
    openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out ca.pem -days 2 \
        -subj /CN=holdfast-test -addext subjectAltName=IP:127.0.0.1 2>/dev/null
    serve --cert ca.pem --key key.pem
    expect 1 'name a file of its authority by --ca' holdfast-backup push save s3://bucket/tls
    expect 0 'pushed step_0000020' holdfast-backup push save s3://bucket/tls --ca ca.pem
    AWS_CA_BUNDLE=ca.pem expect 0 'verified' holdfast-backup verify s3://bucket/tls
    expect 2 "no CA file 'missing.pem'" holdfast-backup list s3://bucket/tls --ca missing.pem
else
    echo 'SKIP: no openssl program to make a certificate, so TLS is not tried'
fi
AWS_ENDPOINT_URL=$plain

# SIGKILL at random moments of push: nothing half looks whole, the next push completes, and no open
# upload is left to pay for.
seen=0
for i in $(seq 15); do
    store=s3://bucket/killed$i # a new one: the server must not see files vanish
    holdfast-backup push save "$store" >/dev/null 2>&1 &
    pid=$!
    for _ in $(seq $((i % 2 * 500))); do # every other one certainly in the midst of an upload
        [ -z "$(ls -A state/holdfast/uploads 2>/dev/null)" ] || break
        sleep 0.002
    done
    sleep "0.$(printf %03d $((RANDOM % (i % 2 ? 40 : 250))))"
    kill -KILL $pid 2>/dev/null
    wait $pid 2>/dev/null
    [ "$(open_uploads)" = 0 ] || seen=$((seen + 1))
    if [ -e "far/bucket/killed$i/step_0000020/manifest.json" ]; then
        expect 0 'verified' holdfast-backup verify "$store"
    fi
    expect 0 '' holdfast-backup push save "$store"
    expect 0 'verified' holdfast-backup verify "$store"
    [ "$(open_uploads)" = 0 ] || fail "kill $i left an open upload: $(cat uploads.txt)"
    [ -z "$(ls -A state/holdfast/uploads)" ] || fail "kill $i left an entry in the journal"
done
[ "$seen" -gt 0 ] || fail 'no kill met an open upload'
exit $((failures > 0))
