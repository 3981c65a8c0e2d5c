#!/usr/bin/env bash
# Installs what is missing of: PCP, Redis, the workflow's environment (.venv), and a separate environment for
# the server (.server-venv: vLLM's CPU build, GuideLLM, LMCache, Valkey).
# usage: bash scripts/setup.sh [pcp] [redis] [workflow] [server | server-gpu] [execution] [execution-kubernetes] [mlflow] [test] [test-s3]
#        (default: pcp redis workflow server)
#        bash scripts/setup.sh --from DIR     without a network, from what scripts/bundle.sh collected in DIR
# KVEVAL_PYTHON: the Python to use instead of the newest of python3.13, python3.12, python3.11, python3.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib_setup.sh

from=''
if [[ ${1:-} == --from ]]; then
    (($# == 2)) || fail "usage: bash scripts/setup.sh --from DIR"
    from=$(realpath -- "$2") && shift 2
fi
(($#)) || set -- pcp redis workflow server
exec 9<. # two set-ups at once would destroy each other's work
flock --nonblock 9 || { say "another set-up is running here: waiting for it" && flock 9; }
if [[ -n $from ]]; then
    open_bundle "$from"
    if [[ $(fact form) == ready ]]; then
        ensure_pcp
        install_ready
        exit
    fi
    require_complete envs/workflow.lock "$server_lock" "$lmcache_lock"
    set -- pcp workflow server
    [[ $(fact device) == cpu ]] || set -- pcp workflow server-gpu
fi
name_missing "$@"
for part in "$@"; do
    case $part in
        pcp) ensure_pcp ;;
        redis) ensure_redis ;;
        workflow)
            ensure_env workflow .venv 1 install_workflow envs/workflow.lock
            install_command .venv kveval kveval
            install_command .venv pcp-parquet pcp_parquet
            ;;
        server)
            if current .server-venv/.kveval-stamp .server-venv envs/torch-gpu.lock envs/server-gpu.lock; then
                say "server environment (.server-venv): up to date, for GPUs"
                continue
            fi
            has_library libnuma.so.1 || { [[ -n $bundle ]] && ensure_packages_of_bundle libnuma1; } ||
                ensure_packages "vLLM needs libnuma, which is missing" libnuma1
            ensure_env server .server-venv 4 install_server envs/torch.lock envs/server.lock
            ensure_packages_in "LMCache and Valkey" .server-venv envs/lmcache.lock
            ;;
        server-gpu)
            ensure_server_gpu
            [[ ! -f .server-venv/.kveval-env ]] ||
                ensure_packages_in "LMCache and Valkey" .server-venv envs/lmcache-gpu.lock
            ;;
        execution | execution-kubernetes) ensure_packages_in "plugins for clusters" .venv "envs/$part.lock" ;;
        mlflow) ensure_packages_in "MLflow's client" .venv envs/mlflow.lock ;;
        test | test-s3) ensure_packages_in "test requirements" .venv "envs/$part.lock" ;;
        *) fail "unknown part $part: pcp, redis, workflow, server, server-gpu, execution, execution-kubernetes, mlflow, test, test-s3 are known" ;;
    esac
done
