#!/usr/bin/env bash
# Installs what the workflow needs: PCP and Redis where they are missing, the workflow's environment (.venv) and, apart from
# it, the server's (.server-venv: vLLM's CPU build, GuideLLM, LMCache, Valkey). What is there already is left alone.
# usage: bash scripts/setup.sh [pcp] [redis] [workflow] [server] [execution] [execution-kubernetes] [test] [test-s3]
#        (default: pcp redis workflow server)
# KVEVAL_PYTHON: the Python to use instead of the newest of python3.13, python3.12, python3.11, python3.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib_setup.sh

(($#)) || set -- pcp redis workflow server
exec 9<. # two set-ups at once would destroy each other's work
flock --nonblock 9 || { say "another set-up is running here: waiting for it" && flock 9; }
for part in "$@"; do
    case $part in
        pcp) ensure_pcp ;;
        redis) ensure_redis ;;
        workflow) ensure_env workflow .venv 1 install_workflow envs/workflow.lock ;;
        server)
            has_library libnuma.so.1 || ensure_packages "vLLM needs libnuma, which is missing" libnuma1
            ensure_env server .server-venv 4 install_server envs/torch.lock envs/server.lock
            ensure_packages_in "LMCache and Valkey" .server-venv envs/lmcache.lock
            ;;
        execution | execution-kubernetes) ensure_packages_in "plugins for clusters" .venv "envs/$part.lock" ;;
        test | test-s3) ensure_packages_in "test requirements" .venv "envs/$part.lock" ;;
        *) fail "unknown part $part: pcp, redis, workflow, server, execution, execution-kubernetes, test, test-s3 are known" ;;
    esac
done
