#!/usr/bin/env bash
# format.sh ROOT: every C file is as clang-format leaves it. Other versions than 14 (Debian 12's)
# break lines elsewhere, so the check is skipped there.
set -uo pipefail
cd "$1" || exit 2
if ! clang-format --version 2>/dev/null | grep -q 'version 14\.'; then
    echo 'SKIP: no clang-format 14'
    exit 77
fi
find ckpt train recover backup tests \( -name '*.c' -o -name '*.h' -o -name '*.cu' -o -name '*.cc' \) \
    -not -path '*/refs/*' -print0 | xargs -0 clang-format --dry-run -Werror 2>&1 | head -n 40
exit "${PIPESTATUS[1]}"
