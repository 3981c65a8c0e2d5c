#!/usr/bin/env bash
# Collects, on a machine with a network, what scripts/setup.sh --from DIR installs on one without: wheels by lock file and,
# on Debian and Ubuntu, the packages of PCP. See docs/gpu-hosts.md.
# usage: bash scripts/bundle.sh DIR [--cpu | --gpu] [--python 3.12] [--torch host | --torch VERSION] [--part-size 50M]
#        [--smallest [--host-has FILE] [--gpu-code 9.0]]
#   --cpu, --gpu  which server: vLLM's build for CPUs (default) or that for NVIDIA GPUs
#   --python      the other machine's Python (default: this one's); both run Linux on the same architecture
#   --torch       host: the other machine has torch; else the version to include, which must be that of the locks
#   --part-size   size of each file that is written, in the notation of split(1) (default: 1G)
#   --smallest    with --gpu: ready environments without what envs/smallest.toml names, in place of wheels
#   --host-has    what `pip list --format=freeze` prints there: its large packages are used, and not included
#   --gpu-code    compute capability of the GPUs there, the only one for which code is included (default: 9.0)
set -euo pipefail
usage() { sed -n '4,12s/^# //p' "${BASH_SOURCE[0]}" >&2 && exit 2; }

device=cpu python='' torch='' part_size=1G folder='' smallest='' host_has='' gpu_code=''
while (($#)); do
    case $1 in
        --cpu | --gpu) device=${1#--} ;;
        --smallest) smallest=yes ;;
        --python | --torch | --part-size | --host-has | --gpu-code)
            (($# > 1)) || usage
            option=${1#--} && printf -v "${option/-/_}" %s "$2" && shift ;;
        -*) usage ;;
        *) [[ -z $folder ]] && folder=$1 || usage ;;
    esac
    shift
done
[[ -n $folder ]] || usage
mkdir -p -- "$folder" && folder=$(realpath -- "$folder")
[[ -z $host_has ]] || host_has=$(realpath -- "$host_has")
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib_setup.sh

[[ -z $(ls -A -- "$folder") ]] || fail "$folder is not empty: name a new folder"
[[ $part_size =~ ^[1-9][0-9]*[KMG]?$ ]] || fail "--part-size $part_size is not a size; write 50M, for example"
read -r own interpreter < <(usable_pythons) || fail "no usable Python (3.11 or newer) here"
[[ ${python:=$own} =~ ^3\.(1[1-9])$ ]] || fail "--python $python: 3.11 or newer is needed, 3.12 for example"
[[ $device == gpu || $torch != host ]] || fail "--torch host is for --gpu: vLLM's build for CPUs needs its own torch"
[[ -n $smallest || -z $host_has$gpu_code ]] || fail "--host-has and --gpu-code are for --smallest"
[[ -z $smallest ]] || [[ $device == gpu && ${torch:=host} == host ]] ||
    fail "--smallest is for --gpu with --torch host: it leaves out what only a host with torch has"
[[ ${gpu_code:=9.0} =~ ^[1-9][0-9]?\.[0-9]$ ]] || fail "--gpu-code $gpu_code is no compute capability; write 9.0, for example"
[[ -z $host_has || -r $host_has ]] || fail "--host-has $host_has: there is no such file"
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
tool() { PYTHONPATH=scripts "$staging/env/bin/python" -m "kveval.host.setup.$1" "${@:2}"; }
logged "preparing" "$log" "$staging/env/bin/python" -m pip install --disable-pip-version-check --no-deps \
    "$(grep -o '^packaging==[^ ;]*' envs/workflow.lock)" || fail "no package index could be reached (log: $log)"

# The oldest C library first: its wheels run everywhere. The other host ignores wheels for a newer library than its own.
architecture=$(uname -m)
platforms=(--platform "manylinux2014_$architecture" --platform "manylinux1_$architecture")
for minor in 5 12 17 24 26 27 28 31 34 35; do platforms+=(--platform "manylinux_2_${minor}_$architecture"); done
# collect REQUIREMENTS [OPTION...]: fetches the wheels of a list of requirements for the Python asked for.
collect() {
    logged "${1##*/}: collecting" "$log" "$staging/env/bin/python" -m pip download --disable-pip-version-check --no-input \
        --no-deps --prefer-binary --python-version "$python" --implementation cp "${platforms[@]}" \
        --dest "$staging/wheels" --requirement "$1" "${@:2}"
}
# collect_lock LOCK [OPTION...]: the same for the entries of a lock that apply there.
collect_lock() {
    local requirements
    requirements=$staging/$(basename "$1")
    tool wheels list --python "$python" "$1" >"$requirements" || fail "$1 cannot be read"
    collect "$requirements" "${@:2}"
}
# choose NAME LOCK...: writes what the ready environment NAME includes of these locks (NAME.txt), and the facts about it.
choose() {
    local name=$1 torch_of=()
    [[ -z $host_has ]] || torch_of=(--host-has "$host_has")
    tool smallest requirements --rules envs/smallest.toml --python "$python" --gpu-code "$gpu_code" --environment "$name" \
        "${torch_of[@]}" --torch-lock "$torch_lock" --out "$staging" "${@:2}" || fail "nothing was collected"
}
if [[ -n $smallest ]]; then
    choose workflow envs/workflow.lock
    choose server "$server_lock" "$lmcache_lock"
    for name in workflow server; do
        collect "$staging/$name.txt" || fail "$name: $(cause "$log") (log: $log)"
    done
else
    for lock in envs/workflow.lock "$server_lock" "$lmcache_lock"; do
        collect_lock "$lock" || fail "$lock: $(cause "$log") (log: $log)"
    done
fi
if [[ $torch != host ]]; then
    collect_lock "$torch_lock" || collect_lock "$torch_lock" --index-url "$pytorch_cpu_index" ||
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
# collect_tools: what only an installation from wheels needs: pip, and the packages of PCP with all dependencies in a form that
# apt can read, for hosts of this distribution.
collect_tools() {
    "$staging/env/bin/python" -m pip download --disable-pip-version-check --no-deps --only-binary=:all: \
        --dest "$staging/wheels" pip setuptools wheel >>"$log" 2>&1 || fail "pip itself could not be fetched (log: $log)"
    if command -v apt-get >/dev/null && (cd "$staging/packages" && packages_of_pcp >>"$log" 2>&1); then
        system=$(distribution)
    else
        say "PCP: its packages could not be fetched here; on a host without PCP only the exporters are recorded"
    fi
}
# make_ready NAME: installs what was chosen for NAME into a tree of its own, makes that small, and packs it, in blocks that
# several processors unpack at once.
make_ready() {
    local name=$1 requirements
    requirements=$(sed -E 's/ *--hash=[^ ]+//g' "$staging/$name.txt")
    mkdir -p "$staging/built"
    logged "$name: making the environment" "$log" "$staging/env/bin/python" -m pip install --disable-pip-version-check \
        --no-input --no-deps --no-compile --no-index --find-links "$staging/wheels" --find-links "$staging/built" \
        --python-version "$python" --implementation cp "${platforms[@]}" --only-binary=:all: --target "$staging/$name" \
        --requirement <(echo "$requirements") || fail "$name: $(cause "$log") (log: $log)"
    tool smallest trim --rules envs/smallest.toml --python "$python" --gpu-code "$gpu_code" "$staging/$name" ||
        fail "$name could not be made small"
    logged "$name: packing" "$log" bash -c 'set -o pipefail
        tar -C "$1" --sort=name --owner=0 --group=0 --mode=go-w -cf - . | xz --threads=0 >"$1.tar.xz"' \
        bash "$staging/$name" || fail "$name could not be packed (log: $log)"
}

system=none form=wheels contents=(wheels packages)
if [[ -n $smallest ]]; then
    make_ready workflow && make_ready server
    form=ready contents=(workflow.tar.xz workflow.json server.tar.xz server.json)
else
    collect_tools
fi
printf '%s\n' "device=$device" "python=$python" "architecture=$architecture" "torch=$torch" "system=$system" \
    "form=$form" >"$staging/bundle.txt"
say "writing parts of $part_size"
tar -C "$staging" --sort=name --owner=0 --group=0 -cf - bundle.txt "${contents[@]}" |
    split --bytes="$part_size" --numeric-suffixes --suffix-length=4 - "$folder/bundle.tar."
(cd "$folder" && sha256sum bundle.tar.* >SHA256SUMS)
say "$(du -ch "$folder"/bundle.tar.* | tail -n 1 | cut -f 1) in $(find "$folder" -name 'bundle.tar.*' | wc -l) parts: copy $folder there, with this" \
    "repository, and run: bash scripts/setup.sh --from DIR"
