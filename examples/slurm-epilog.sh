#!/usr/bin/env bash
# EpilogSlurmctld of Slurm (slurm.conf): judge the NCCL logs of every job that ended, keep a page where there is something to
# see, and remember the job, healthy or not, so that `ncclforensics history show` names the hosts that return.
# The exit code of the job does not say whether it hung: a job that reached its time limit may end with 0.
# NCCL_LOGS is the folder in which each job has a folder of its own, as in NCCL_DEBUG_FILE=/shared/nccl/$SLURM_JOB_ID/%h.%p.log
# Slurm passes it no PATH and no variable of yours: write other folders, and the place of the program, here.
# An epilog must not fail: whatever happens, this ends with 0.
set -u
program="${NCCLFORENSICS:-ncclforensics}"
folder="${NCCL_LOGS:-/shared/nccl}"
logs="$folder/${SLURM_JOB_ID:?}"
[ -d "$logs" ] || exit 0

umask 077
page="$logs.verdict.json"
timeout 300 "$program" hang "$logs" --quiet --format json -o "$page"
code=$?
if [ $code -eq 1 ]; then
    timeout 300 "$program" report "$logs" --quiet -o "$logs.html" # needs the extra `report`
    [ -e "$logs.html" ] && page="$logs.html"
    logger -t ncclforensics "job $SLURM_JOB_ID: findings, see $page"
elif [ $code -gt 3 ]; then
    logger -t ncclforensics "job $SLURM_JOB_ID: the analysis failed or took too long (exit code $code)"
fi
timeout 600 "$program" history add "$logs" --db "${NCCLFORENSICS_HISTORY:-$folder/history.db}" --quiet
exit 0
