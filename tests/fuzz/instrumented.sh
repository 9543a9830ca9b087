#!/bin/sh
# The compiler as cargo calls it for this workspace's crates (RUSTC_WORKSPACE_WRAPPER), with coverage of edges and comparisons as
# libFuzzer reads it. What they depend on is built as for every test, and once. Build scripts are programs without libFuzzer.
case " $* " in
*" --crate-name build_script_build "*) exec "$@" ;;
esac
exec "$@" \
    -Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares
