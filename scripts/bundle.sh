#!/usr/bin/env bash
# Collects, on a machine with a network, what scripts/setup.sh --from DIR installs on one without: wheels by lock file and,
# on Debian and Ubuntu, the packages of PCP. See docs/gpu-hosts.md.
# usage: bash scripts/bundle.sh DIR [--cpu | --gpu] [--python 3.12] [--torch host | --torch VERSION] [--part-size 50M]
#   --cpu, --gpu  which server: vLLM's build for CPUs (default) or that for NVIDIA GPUs
#   --python      the other machine's Python (default: this one's); both run Linux on the same architecture
#   --torch       host: the other machine has torch; else the version to include, which must be that of the locks
#   --part-size   size of each file that is written, in the notation of split(1) (default: 1G)
set -euo pipefail
usage() { sed -n '4,8s/^# //p' "${BASH_SOURCE[0]}" >&2 && exit 2; }

device=cpu python='' torch='' part_size=1G folder=''
while (($#)); do
    case $1 in
        --cpu | --gpu) device=${1#--} ;;
        --python | --torch | --part-size)
            (($# > 1)) || usage
            option=${1#--} && printf -v "${option/-/_}" %s "$2" && shift ;;
        -*) usage ;;
        *) [[ -z $folder ]] && folder=$1 || usage ;;
    esac
    shift
done
[[ -n $folder ]] || usage
mkdir -p -- "$folder" && folder=$(realpath -- "$folder")
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib_setup.sh

[[ -z $(ls -A -- "$folder") ]] || fail "$folder is not empty: name a new folder"
[[ $part_size =~ ^[1-9][0-9]*[KMG]?$ ]] || fail "--part-size $part_size is not a size; write 50M, for example"
read -r own interpreter < <(usable_pythons) || fail "no usable Python (3.11 or newer) here"
[[ ${python:=$own} =~ ^3\.(1[1-9])$ ]] || fail "--python $python: 3.11 or newer is needed, 3.12 for example"
[[ $device == gpu || $torch != host ]] || fail "--torch host is for --gpu: vLLM's build for CPUs needs its own torch"
locks_of "$device"
locked=$(sed -n 's/^torch==\([^ ;]*\).*/\1/p' "$torch_lock")
[[ -n $torch ]] || { [[ $device == gpu ]] && torch=host || torch=$locked; }
[[ $torch == host || ${torch%%+*} == "${locked%%+*}" ]] ||
    fail "--torch $torch: the server's lock for --$device needs $locked (config/gpu_releases.yaml), or --torch host"

staging=$(mktemp -d "$folder/.staging-XXXXXX")
trap 'rm -rf -- "$staging"' EXIT
mkdir "$staging/wheels" "$staging/packages"
"$interpreter" -m venv "$staging/env" || fail "$interpreter -m venv failed: is python$own-venv installed?"
log=$folder/bundle.log
logged "preparing" "$log" "$staging/env/bin/python" -m pip install --disable-pip-version-check --no-deps \
    "$(grep -o '^packaging==[^ ;]*' envs/workflow.lock)" || fail "no package index could be reached (log: $log)"

# The oldest C library first: its wheels run everywhere. The other host ignores wheels for a newer library than its own.
architecture=$(uname -m)
platforms=(--platform "manylinux2014_$architecture" --platform "manylinux1_$architecture")
for minor in 5 12 17 24 26 27 28 31 34 35; do platforms+=(--platform "manylinux_2_${minor}_$architecture"); done
# collect LOCK [OPTION...]: fetches the wheels of a lock's entries that apply to the Python asked for.
collect() {
    local requirements
    requirements=$staging/$(basename "$1")
    PYTHONPATH=scripts "$staging/env/bin/python" -m kveval.host.setup.wheels list --python "$python" "$1" >"$requirements" ||
        fail "$1 cannot be read"
    logged "${1##*/}: collecting" "$log" "$staging/env/bin/python" -m pip download --disable-pip-version-check --no-input \
        --no-deps --prefer-binary --python-version "$python" --implementation cp "${platforms[@]}" \
        --dest "$staging/wheels" --requirement "$requirements" "${@:2}"
}
for lock in envs/workflow.lock "$server_lock" "$lmcache_lock"; do
    collect "$lock" || fail "$lock: $(cause "$log") (log: $log)"
done
if [[ $torch != host ]]; then
    collect "$torch_lock" || collect "$torch_lock" --index-url "$pytorch_cpu_index" ||
        fail "torch $torch for Python $python: $(cause "$log") (log: $log)"
fi
# A few packages have no wheel: their sources are included, with the build tools, if nothing has to be compiled.
for source in "$staging"/wheels/*.tar.gz "$staging"/wheels/*.zip; do
    [[ -e $source ]] || continue
    "$staging/env/bin/python" -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir "$staging/built" \
        "$source" >>"$log" 2>&1 || fail "$(basename "$source") cannot be built (log: $log)"
    name=$(basename "$source") && name=${name%-*}
    compgen -G "$staging/built/${name//[-.]/?}-*-none-any.whl" >/dev/null ||
        fail "$(basename "$source") has no wheel for Python $python on $architecture, and would have to be compiled"
done
"$staging/env/bin/python" -m pip download --disable-pip-version-check --no-deps --only-binary=:all: \
    --dest "$staging/wheels" pip setuptools wheel >>"$log" 2>&1 || fail "pip itself could not be fetched (log: $log)"

# The packages of PCP with all dependencies in a form that apt can read, for hosts of this distribution.
system=none
if command -v apt-get >/dev/null && (cd "$staging/packages" && packages_of_pcp >>"$log" 2>&1); then
    system=$(distribution)
else
    say "PCP: its packages could not be fetched here; on a host without PCP only the exporters are recorded"
fi
printf '%s\n' "device=$device" "python=$python" "architecture=$architecture" "torch=$torch" "system=$system" \
    >"$staging/bundle.txt"
say "writing parts of $part_size"
tar -C "$staging" --sort=name --owner=0 --group=0 -cf - bundle.txt wheels packages |
    split --bytes="$part_size" --numeric-suffixes --suffix-length=4 - "$folder/bundle.tar."
(cd "$folder" && sha256sum bundle.tar.* >SHA256SUMS)
say "$(du -ch "$folder"/bundle.tar.* | tail -n 1 | cut -f 1) in $(find "$folder" -name 'bundle.tar.*' | wc -l) parts: copy $folder there, with this" \
    "repository, and run: bash scripts/setup.sh --from DIR"
