#!/usr/bin/env bash
# count.sh LASTTEST_LOG CTEST_STATUS: prints the reasons of skipped tests and the closing counts.
# A Criterion program counts with its cases, anything else as one; a program that failed without a
# failing case (a crash, a time-out) counts as one failure.
set -euo pipefail
awk -v status="$2" '
    /^[0-9]+\/[0-9]+ Testing: / { cases = 0; bad = 0; seen = 0; name = $3 }
    /\[====\] Synthesis: Tested: / {
        line = $0
        gsub(/\033\[[0-9;]*m/, "", line)
        split(line, part, /[:|]/)
        cases += part[3]; ok += part[5]; bad += part[7] + part[9]; seen = 1
    }
    /SKIP/ { line = $0; gsub(/\033\[[0-9;]*m/, "", line); print name ": " line }
    /^Test Passed\./ { if (!seen) ok++; failed += bad }
    /^Test Failed\./ { failed += bad > 0 ? bad : 1 }
    /^Test Skipped\./ || /^Test not run/ { skipped++ }
    /\[SKIP\]/ { skipped++ }
    END {
        if (status != 0 && failed == 0) failed = 1
        printf "%d passed, %d failed, %d skipped\n", ok, failed, skipped
    }' "$1"
