#!/usr/bin/env bash
# count.sh CTEST_OUTPUT LASTTEST_LOG CTEST_STATUS: prints the reasons of whatever was skipped, and the
# closing counts. A Criterion program counts with its cases, anything else as one; a program that
# failed without a failing case (a crash, a time-out) counts as one failure.
set -euo pipefail
awk -v status="$3" '
    { gsub(/\033\[[0-9;]*m/, "") }
    FNR == NR { if (/\*\*\*Skipped/) left_out[$4] = 1; next }
    /^[0-9]+\/[0-9]+ Testing: / { bad = 0; seen = 0; name = $3 }
    /\[====\] Synthesis: Tested: / {
        split($0, part, /[:|]/)
        ok += part[5]; bad += part[7] + part[9]; seen = 1
    }
    /^SKIP|^skipped:|^\[SKIP\]/ { print name ": " $0 }
    /^\[SKIP\]/ { skipped++ }
    /^Test Passed\./ { if (name in left_out) skipped++; else if (!seen) ok++ }
    /^Test Failed\./ { failed += bad > 0 ? bad : 1 }
    END {
        if (status != 0 && failed == 0) failed = 1
        printf "%d passed, %d failed, %d skipped\n", ok, failed, skipped
    }' "$1" "$2"
