#!/usr/bin/env bash
# Installs what the workflow needs: PCP where it is missing, the workflow's environment (.venv) and, apart from it, the
# server's (.server-venv: vLLM's CPU build and GuideLLM). What is there already is left alone.
# usage: bash scripts/setup.sh [pcp] [workflow] [server] [test]      (default: pcp workflow server)
# KVEVAL_PYTHON: the Python to use instead of the newest of python3.13, python3.12, python3.11, python3.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib_setup.sh

(($#)) || set -- pcp workflow server
exec 9<. # two set-ups at once would destroy each other's work
flock --nonblock 9 || { say "another set-up is running here: waiting for it" && flock 9; }
for part in "$@"; do
    case $part in
        pcp) ensure_pcp ;;
        workflow) ensure_env workflow .venv 1 install_workflow envs/workflow.lock ;;
        server)
            has_library libnuma.so.1 || ensure_packages "vLLM needs libnuma, which is missing" libnuma1
            ensure_env server .server-venv 4 install_server envs/torch.lock envs/server.lock
            ;;
        test) ensure_test_packages .venv ;;
        *) fail "unknown part $part: pcp, workflow, server and test are known" ;;
    esac
done
