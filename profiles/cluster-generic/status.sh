#!/usr/bin/env bash
# status.sh JOB: prints a SLURM job's status for Snakemake: running, success or failed, and on stderr how it failed.
set -uo pipefail
if ! answer=$(scontrol --oneliner show job "$1" 2>&1); then
    # An unknown job finished long ago. Any other failure is the controller's, which may answer the next query.
    [[ $answer == *"Invalid job id"* ]] || { echo running && exit; }
    answer=JobState=$(sacct --jobs "$1" --allocations --noheader --format State%20 2>/dev/null | xargs)
fi
case $answer in
    *JobState=COMPLETED*) echo success ;;
    *JobState=PENDING* | *JobState=CONFIGURING* | *JobState=RUNNING* | *JobState=COMPLETING* | *JobState=SUSPENDED*) echo running ;;
    *JobState=REQUEUED* | *JobState=RESIZING* | *JobState=STAGE_OUT* | *JobState=STOPPED*) echo running ;;
    *)
        state=${answer#*JobState=}
        state=${state%% *}
        echo "SLURM job $1 has ended: ${state:-SLURM no longer knows how}" >&2
        echo failed
        ;;
esac
