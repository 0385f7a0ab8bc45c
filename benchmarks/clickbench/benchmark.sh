#!/bin/bash
# Runs ClickBench on minishark, by the driver that all systems share. See README.md.
export BENCH_DOWNLOAD_SCRIPT=download-hits-parquet-single
exec ../lib/benchmark-common.sh
