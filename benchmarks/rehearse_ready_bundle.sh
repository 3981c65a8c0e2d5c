#!/usr/bin/env bash
# Installs a bundle of ready environments (docs/gpu-hosts.md) into a clone of this repository's HEAD, without a network and
# without a GPU, and tries all that can be tried so: kveval, snakemake, GuideLLM's load against its mock server, the modules
# that a server loads on an H100. Prints the seconds and the size of each step as a table; ends at the first failure.
#
#     bash benchmarks/rehearse_ready_bundle.sh BUNDLE PYTHON [CAMPAIGN]
#
# BUNDLE: folder of the parts. PYTHON: an interpreter of the bundle's version with torch and what else it leaves to the host.
# CAMPAIGN: default config/campaigns/gpu-smoke.yaml. Needs root or user namespaces, git, gcc and nm.
set -euo pipefail
(($# >= 2)) || { sed -n '6s/^# *//p' "${BASH_SOURCE[0]}" >&2 && exit 2; }
if [[ -z ${KVEVAL_WITHOUT_NETWORK:-} ]]; then
    namespace=(unshare --net)
    ((EUID == 0)) || namespace+=(--map-root-user)
    KVEVAL_WITHOUT_NETWORK=yes exec "${namespace[@]}" bash "${BASH_SOURCE[0]}" "$@"
fi
ip link set lo up # the load goes over it
bundle=$(realpath -- "$1") campaign=${3:-config/campaigns/gpu-smoke.yaml}
export KVEVAL_PYTHON=$2
repository=$(realpath -- "$(dirname "${BASH_SOURCE[0]}")/..")
place=$(mktemp -d)
trap 'rm -rf -- "$place"' EXIT
rows=()

# step TITLE ACCEPTED_STATUS COMMAND...: runs it with its output in a log, and notes the seconds.
step() {
    local title=$1 accepted=$2 began=$EPOCHREALTIME status=0
    shift 2
    "$@" >"$place/log" 2>&1 || status=$?
    rows+=("| $title | $(awk "BEGIN { printf \"%.1f\", $EPOCHREALTIME - $began }") |")
    sed 's/^/    /' "$place/log"
    ((status == 0 || status == accepted)) || { echo "$title: FAILED, status $status" >&2 && exit 1; }
}

# pretend_driver: makes a libcuda.so.1 with the names that vLLM's libraries want; each answers "no device".
pretend_driver() {
    find .server-venv -path '*/vllm/*.so' -exec nm -D --undefined-only {} + 2>/dev/null |
        sed -n 's/^ *U \(cu[A-Z][A-Za-z0-9_]*\)$/int \1(void) { return 100; }/p' | sort -u >"$place/driver.c"
    mkdir -p "$place/driver"
    gcc -shared -fPIC -Wl,-soname,libcuda.so.1 -o "$place/driver/libcuda.so.1" "$place/driver.c"
}

git clone --quiet "$repository" "$place/clone"
cd "$place/clone"
step "\`setup.sh --from\`" 0 bash scripts/setup.sh --from "$bundle"
sizes="$(du -ch "$bundle"/bundle.tar.* | tail -n 1 | cut -f 1) in $(find "$bundle" -name 'bundle.tar.*' | wc -l) parts;"
sizes+=" on disk .venv $(du -sh .venv | cut -f 1), .server-venv $(du -sh .server-venv | cut -f 1)"
export PATH=$PWD/.venv/bin:$PATH
# 1: errors, because there is no GPU.
step "\`kveval doctor\` (the GPU and its memory are missing)" 1 kveval doctor "$campaign"
step "\`kveval plan\`" 0 kveval plan "$campaign"
step "\`snakemake --dry-run report\`" 0 snakemake report --cores 4 --dry-run --quiet rules --configfile "$campaign"
step "GuideLLM's load, as kveval starts it, against \`guidellm mock-server\`" 0 \
    .venv/bin/python benchmarks/rehearse_load.py "$campaign" .server-venv
step "a driver that is none" 0 pretend_driver
step "modules of a server on an H100, with a pretended one" 0 \
    env LD_LIBRARY_PATH="$place/driver" .server-venv/bin/python benchmarks/rehearse_gpu_imports.py
printf '%s\n' '' '| step | seconds |' '|---|---|' "${rows[@]}" '' "$sizes"
