#!/bin/sh
# Tells the collector of a node which Slurm job its GPUs work for, and the job its own name. In slurm.conf, the same script thrice:
#   Prolog=/etc/eadt/eadt.sh
#   Epilog=/etc/eadt/eadt.sh
#   TaskProlog=/etc/eadt/eadt.sh
# In the collector's settings: [collector] assignments_file = "/run/eadt/assignments.json"
set -eu
folder=${EADT_SLURM_FOLDER:-/run/eadt}

# Slurm's names may have characters that a workload's have not.
clean() { printf %s "$1" | tr '[:upper:]' '[:lower:]' | tr -c 'a-z0-9.-' '-'; }

workload=$(clean "${SLURM_JOB_ACCOUNT:-${SLURM_JOB_USER:-slurm}}")/job-$SLURM_JOB_ID

# Puts the lines of all jobs together; readers see the old file or the new one.
publish() {
    {
        printf '['
        cat "$folder"/jobs/* 2>/dev/null | paste -sd, - | tr -d '\n'
        printf ']\n'
    } > "$folder/assignments.json.new"
    mv "$folder/assignments.json.new" "$folder/assignments.json"
}

case "${SLURM_SCRIPT_CONTEXT:-}" in
prolog_slurmd | epilog_slurmd)
    mkdir -p "$folder/jobs"
    # Jobs of one node begin and end at the same time.
    exec 9> "$folder/lock"
    flock 9
    if [ "$SLURM_SCRIPT_CONTEXT" = prolog_slurmd ]; then
        for gpu in $(printf %s "${SLURM_JOB_GPUS:-}" | tr , ' '); do
            printf '{"device": "%s", "workload": "%s"}\n' "$gpu" "$workload"
        done > "$folder/jobs/$SLURM_JOB_ID"
    else
        rm -f "$folder/jobs/$SLURM_JOB_ID"
    fi
    publish
    ;;
prolog_task)
    # What a task prolog prints becomes the task's environment.
    echo "export EADT_WORKLOAD=$workload"
    ;;
*)
    echo "eadt.sh: SLURM_SCRIPT_CONTEXT is '${SLURM_SCRIPT_CONTEXT:-}': it is for Prolog, Epilog and TaskProlog" >&2
    exit 1
    ;;
esac
