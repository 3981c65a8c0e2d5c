# shellcheck shell=bash
# The functions behind setup.sh. To be sourced; works in the current directory, which is the repository's root.

bundle='' # folder of the unpacked bundle to install from; empty: from the network
pytorch_cpu_index=https://download.pytorch.org/whl/cpu
missing=() # titles of what is still to be installed, see name_missing
pcp_packages=(pcp python3-pcp python3-requests) # the OpenMetrics agent is inside pcp and imports requests

say() { printf '==> %s\n' "$*"; }
fail() { printf 'setup: error: %s\n' "$*" >&2 && exit 1; }

# logged LABEL LOG COMMAND...: runs the command with its output in LOG; says what happens and how long it took. What the
# command has to say to the user meanwhile, it writes to file descriptor 3.
logged() {
    local label=$1 log=$2 started=$SECONDS status=0
    shift 2
    say "$label ..."
    "$@" 3>&1 >>"$log" 2>&1 || status=$?
    if ((status == 0)); then
        say "$label: done in $((SECONDS - started)) s"
    else
        say "$label: FAILED after $((SECONDS - started)) s"
    fi
    return "$status"
}

# --- system packages ------------------------------------------------------------------------------------------------

# Root's PATH: a user's may lack /usr/sbin, which dpkg needs, or put another Python before the system's.
root_path=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
as_root() { if ((EUID == 0)); then "$@"; else sudo "$@"; fi; }

can_be_root() { ((EUID == 0)) || { command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [[ -t 0 ]]; }; }; }

pcp_works() {
    local tool
    for tool in pminfo pmlogger; do command -v "$tool" >/dev/null || return 1; done
    # The agents are run by the system's Python, whatever environment is active.
    /usr/bin/python3 -c 'import cpmda, pcp.pmda, pcp.pmapi, requests' 2>/dev/null
}

half_configured() {
    local state
    state=$(dpkg-query --show --showformat='${db:Status-Status}' "$1" 2>/dev/null) || return 1
    [[ $state == unpacked || $state == half-configured ]]
}

has_library() { [[ $(PATH=$PATH:/sbin:/usr/sbin ldconfig -p 2>/dev/null) == *"$1"* ]]; }

# packages COMMAND...: runs apt-get or dpkg without starting PCP's and Redis' services (runs start their own), and
# so that configuring PCP does not fail where systemd is installed but not running, as in most containers:
# the package calls `systemctl daemon-reload` unconditionally.
packages() {
    local shim status=0
    shim=$(mktemp -d)
    cat >"$shim/systemctl" <<'SHIM'
#!/bin/sh
[ -d /run/systemd/system ] || exit 0
case "$*" in *start*\ pm[a-z]* | *start*\ redis*) exit 0 ;; esac
exec /usr/bin/systemctl "$@"
SHIM
    chmod 755 "$shim" "$shim/systemctl"
    as_root env PATH="$shim:$root_path" DEBIAN_FRONTEND=noninteractive "$@" || status=$?
    rm -r -- "$shim"
    return "$status"
}

# ensure_packages REASON PACKAGE...: installs distribution packages, or says what to ask an administrator for.
ensure_packages() {
    local reason=$1 log
    shift
    command -v apt-get >/dev/null || fail "$reason. This is not Debian or Ubuntu: install it with the" \
        "distribution's tools (Fedora, RHEL: dnf install pcp python3-pcp python3-requests pcp-pmda-openmetrics" \
        "numactl-libs), then run this again"
    can_be_root || fail "$reason, and this user has neither root nor sudo:" \
        "ask an administrator for: apt-get install $*"
    log=$(mktemp)
    if [[ -z ${lists_read:-} ]]; then
        logged "reading the package lists" "$log" packages apt-get update || true # one broken source need not matter
        lists_read=yes
    fi
    # DPkg::Path would replace the PATH prepared above.
    logged "installing $*" "$log" packages apt-get -o DPkg::Path= -o DPkg::Lock::Timeout=120 \
        install -y --no-install-recommends "$@" || {
        tail -n 20 "$log" >&2
        fail "apt-get could not install $* (log: $log); run this again when the cause is removed"
    }
    rm -- "$log"
}

ensure_pcp() {
    local package log
    for package in "${pcp_packages[@]}"; do
        if half_configured "$package" && can_be_root; then
            log=$(mktemp)
            logged "completing the configuration of $package" "$log" packages dpkg --configure "$package" ||
                { tail -n 20 "$log" >&2 && fail "dpkg --configure $package failed (log: $log)"; }
            rm -- "$log"
        fi
    done
    if pcp_works; then
        say "PCP: $(pminfo --version 2>&1)"
    elif [[ -n $bundle ]]; then
        ensure_packages_of_bundle "${pcp_packages[@]}" && pcp_works ||
            say "PCP: not installed, and not installable from the bundle; only exporters are recorded, as reports say"
    elif [[ ! -e /etc/pcp.conf ]] && ! can_be_root; then
        say "PCP: not installed, and this user is not root and has no sudo; only exporters are recorded, as reports say." \
            "To record with PCP, ask an administrator for: apt-get install ${pcp_packages[*]}"
    else
        ensure_packages "Performance Co-Pilot is missing or incomplete" "${pcp_packages[@]}"
        pcp_works || fail "PCP is installed, but its tools or /usr/bin/python3's modules pcp and requests are not usable"
    fi
}

# Redis serves one arm; a host without it can do everything else.
ensure_redis() {
    if command -v redis-server >/dev/null; then
        say "Redis: $(redis-server --version | cut -d ' ' -f 1-3)"
    elif command -v apt-get >/dev/null && can_be_root; then
        ensure_packages "redis-server is missing" redis-server
    else
        say "Redis: no redis-server; arms that keep KV cache in Redis cannot run until it is installed"
    fi
}

# --- without a network ----------------------------------------------------------------------------------------------

distribution() { (. /etc/os-release && echo "${ID:-unknown}-${VERSION_ID:-unknown}"); }

# locks_of cpu|gpu: sets the names of the server's locks.
locks_of() {
    local suffix=''
    [[ $1 == cpu ]] || suffix=-gpu
    torch_lock=envs/torch$suffix.lock server_lock=envs/server$suffix.lock lmcache_lock=envs/lmcache$suffix.lock
}

# packages_of_pcp: fetches every package that PCP and vLLM need, as if none were installed, into the current folder, and
# writes the index with which apt finds them there.
packages_of_pcp() {
    local list file
    list=$(apt-get -o Dir::State::status=/dev/null -qq --print-uris install -y --no-install-recommends \
        "${pcp_packages[@]}" libnuma1 | sed -n "s/^'[^']*' \([^_]*\)_.*/\1/p") && [[ -n $list ]] || return 1
    # shellcheck disable=SC2086 # names of packages
    apt-get -o APT::Sandbox::User=root download $list || return 1
    for file in *.deb; do
        dpkg-deb --field "$file" && printf 'Filename: ./%s\nSize: %s\nSHA256: %s\n\n' "$file" "$(stat -c %s "$file")" \
            "$(sha256sum "$file" | cut -d ' ' -f 1)"
    done >Packages
}

# fact NAME: prints a value from the bundle.txt of the unpacked bundle.
fact() { sed -n "s/^$1=//p" "$bundle/bundle.txt"; }

# open_bundle DIR: verifies the parts and unpacks them; from then on everything is installed from there only.
open_bundle() {
    local from=$1 own wanted
    [[ -f $from/SHA256SUMS ]] || fail "$from has no SHA256SUMS: scripts/bundle.sh did not make it"
    (cd "$from" && sha256sum --check --quiet SHA256SUMS) ||
        fail "$from: the parts named above are missing or damaged: copy them again"
    bundle=$(mktemp -d "$PWD/.bundle-XXXXXX")
    trap 'rm -rf -- "$bundle"' EXIT
    cat -- "$from"/bundle.tar.* | tar -C "$bundle" -xf - || fail "$from could not be unpacked into $bundle"
    wanted=$(fact python)
    [[ $(fact architecture) == "$(uname -m)" ]] || fail "the bundle is for $(fact architecture), this is $(uname -m)"
    export KVEVAL_PYTHON=${KVEVAL_PYTHON:-python$wanted}
    own=$(host_python -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null || true)
    [[ $own == "$wanted" ]] || fail "the bundle is for Python $wanted, and $KVEVAL_PYTHON is ${own:-not there}:" \
        "name one in KVEVAL_PYTHON, or make another bundle with --python ${own:-VERSION}"
    export PIP_CONFIG_FILE=/dev/null PIP_NO_INDEX=1 PIP_FIND_LINKS=$bundle/wheels
    unset PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_CONSTRAINT
    locks_of "$(fact device)"
}

# The interpreter as KVEVAL_PYTHON names it, perhaps that of an active environment: its packages count as the host's.
host_python() { "$KVEVAL_PYTHON" "$@"; }

# require_complete LOCK...: before anything is installed, names all packages of these locks that bundle and host lack.
require_complete() {
    local missing status=0 torch=(--host-torch "$torch_lock")
    [[ $(fact torch) == host ]] || torch=("$torch_lock")
    missing=$(PYTHONPATH=$(echo "$bundle"/wheels/packaging-*.whl | cut -d ' ' -f 1):$PWD/scripts host_python -m \
        kveval.host.setup.wheels lacking --wheels "$bundle/wheels" "$@" "${torch[@]}") || status=$?
    ((status == 0)) || fail "neither the bundle nor this host has: ${missing//$'\n'/, }. Make the bundle from the same" \
        "commit of this repository, for this Python and with or without --torch host (docs/gpu-hosts.md)"
    [[ $(fact torch) != host ]] || torch_of_host >/dev/null 2>&1 ||
        fail "the torch of $KVEVAL_PYTHON cannot be used: $(torch_of_host 2>&1 | tail -n 1)"
}

# install_ready: makes both environments of the ready trees in the bundle, in place of those that these scripts made, and
# checks them before it says that they are there. They have no stamp: a set-up from a network makes them anew.
install_ready() {
    local began=$SECONDS name env python missing
    read -r _ python < <(usable_pythons) || fail "$KVEVAL_PYTHON is not usable: Python 3.11 or newer with ssl and sqlite3 is needed"
    require_space 2
    for name in workflow server; do
        env=.venv
        [[ $name == workflow ]] || env=.server-venv
        remove_env "$env"
        mkdir -- "$env" && touch "$env/.kveval-env"
        logged "$name environment ($env): unpacking" "$env/setup.log" ready_tool "$KVEVAL_PYTHON" install --environment "$env" \
            --python "$python" "$bundle/$name.tar.xz" "$bundle/$name.json" ||
            fail "$env could not be made: $(tail -n 1 "$env/setup.log") (log: $env/setup.log)"
    done
    install_command .venv kveval kveval
    install_command .venv pcp-parquet pcp_parquet
    for name in workflow server; do
        env=.venv
        [[ $name == workflow ]] || env=.server-venv
        say "$name environment ($env): loading its packages ..."
        missing=$(ready_tool "$env/bin/python" check --environment "$env" "$name" 2>>"$env/setup.log") ||
            fail "$env lacks, beside what the bundle leaves out on purpose: ${missing//$'\n'/; } (log: $env/setup.log)"
        [[ -z $missing ]] || say "$missing"
    done
    say "both environments are there after $((SECONDS - began)) s; kveval-ready.json in each says what it lacks on purpose"
}
# ready_tool PYTHON ARGUMENT...
ready_tool() { PYTHONPATH=$PWD/scripts "$1" -m kveval.host.setup.ready "${@:2}"; }

# ensure_packages_of_bundle PACKAGE...: installs them from the bundle if it has those of this distribution.
ensure_packages_of_bundle() {
    local log sources
    [[ $(fact system) == "$(distribution)" ]] && command -v apt-get >/dev/null && can_be_root || return 1
    log=$(mktemp) sources=$(mktemp -d)
    mkdir -p "$sources/lists/partial"
    echo "deb [trusted=yes] file:$bundle/packages ./" >"$sources/sources.list"
    local apt=(apt-get -o Dir::Etc::SourceList="$sources/sources.list" -o Dir::Etc::SourceParts=-
        -o Dir::State::Lists="$sources/lists" -o APT::Sandbox::User=root -o DPkg::Path=)
    logged "installing $* from the bundle" "$log" packages sh -c '"$@" update && "$@" install -y --no-install-recommends '"$*" \
        sh "${apt[@]}" || { tail -n 20 "$log" >&2 && return 1; }
    rm -r -- "$log" "$sources"
}

# --- Python ---------------------------------------------------------------------------------------------------------

# Prints the usable interpreters, the newest first, one of each version: "3.12 /usr/bin/python3.12".
# For an active virtual environment it prints the base interpreter: the environment may be about to be replaced.
usable_pythons() {
    local candidate seen=" " version executable
    local candidates=(python3.13 python3.12 python3.11 python3)
    [[ -z ${KVEVAL_PYTHON:-} ]] || candidates=("$KVEVAL_PYTHON")
    for candidate in "${candidates[@]}"; do
        read -r version executable < <("$candidate" -c 'import ssl, sqlite3, sys
if sys.version_info >= (3, 11):
    print("%d.%d" % sys.version_info[:2], sys._base_executable)' 2>/dev/null) || continue
        [[ $seen == *" $version "* ]] && continue
        seen+="$version "
        echo "$version $executable"
    done
}

# fingerprint ENV FILE...: hash of what defines an environment: its path (scripts in it contain it), Python, and locks.
fingerprint() {
    local env=$1 version
    shift
    version=$("$env/bin/python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || return 1
    { realpath -- "$env" && echo "$version" && cat -- "$@"; } | sha256sum | cut -d ' ' -f 1
}

# current STAMP ENV FILE...: succeeds if the stamp has the environment's present fingerprint.
current() {
    local stamp=$1 wanted
    shift
    wanted=$(fingerprint "$@") && [[ -f $stamp && $(<"$stamp") == "$wanted" ]]
}

# An environment is outdated if KVEVAL_PYTHON names another Python, but not because a newer Python was installed.
has_wanted_python() {
    [[ -z ${KVEVAL_PYTHON:-} ]] ||
        [[ $("$1/bin/python" -c 'import sys; print("%d.%d" % sys.version_info[:2])') == "$(usable_pythons | cut -d ' ' -f 1)" ]]
}

# Deletes an environment that these scripts made, never any other.
remove_env() {
    [[ -e $1 || -L $1 ]] || return 0
    if [[ -L $1 ]] || { [[ ! -f $1/.kveval-env ]] && [[ -n $(ls -A -- "$1") ]]; }; then
        fail "$1 exists and was not made by these scripts: move it away, then run this again"
    fi
    rm -rf -- "$1"
}

require_space() {
    local available
    available=$(df -Pk . | awk 'NR == 2 { print $4 }')
    ((available >= $1 * 1024 * 1024)) ||
        fail "about $1 GB of disk are needed in $PWD, only $((available / 1024)) MB are free"
}

# name_missing PART...: sets missing to the titles of what these parts of a set-up still have to install, in order.
name_missing() {
    local part env=.server-venv
    missing=()
    for part in "$@"; do
        case $part in
            workflow) current .venv/.kveval-stamp .venv envs/workflow.lock || missing+=("workflow environment") ;;
            server)
                current "$env/.kveval-stamp" "$env" envs/torch-gpu.lock envs/server-gpu.lock && continue
                current "$env/.kveval-stamp" "$env" envs/torch.lock envs/server.lock || missing+=("server environment")
                current "$env/.kveval-stamp-lmcache" "$env" envs/lmcache.lock || missing+=("LMCache and Valkey")
                ;;
            server-gpu)
                [[ -e $env/bin/python && ! -f $env/.kveval-env ]] && continue
                current "$env/.kveval-stamp" "$env" envs/torch-gpu.lock envs/server-gpu.lock || missing+=("server environment")
                current "$env/.kveval-stamp-lmcache-gpu" "$env" envs/lmcache-gpu.lock || missing+=("LMCache and Valkey")
                ;;
            execution | execution-kubernetes)
                current ".venv/.kveval-stamp-$part" .venv "envs/$part.lock" || missing+=("plugins for clusters") ;;
            test | test-s3) current ".venv/.kveval-stamp-$part" .venv "envs/$part.lock" || missing+=("test requirements") ;;
        esac
    done
}

# describe_work TITLE INSTALLER LOCK...: sets work to what is installed under this title, and what of `missing` comes after
# it. Locks have entries for other machines too, hence "up to".
describe_work() {
    local title=$1 installer=$2 count rest=''
    shift 2
    count=$(cat -- "$@" | grep -cE '^[A-Za-z0-9].*==' || true)
    [[ ${missing[0]:-} != "$title" ]] || missing=("${missing[@]:1}")
    ((${#missing[@]} == 0)) || rest=$(printf ', %s' "${missing[@]}")
    work="installing up to $count packages with $installer${rest:+; then ${rest#, }}"
}

# cause LOG: one line that says why pip failed.
cause() {
    local wanted
    wanted=$(grep -oE 'No matching distribution found for [^ ]+' "$1" | tail -n 1 || true)
    wanted=${wanted##* }
    if grep -qE 'No space left on device|Disk quota exceeded' "$1"; then
        echo "the disk (of the environment, of pip's cache or of TMPDIR) is full"
    elif grep -qE 'DO NOT MATCH THE HASHES' "$1"; then
        echo "a downloaded file is not the one the lock names (hash mismatch)"
    elif grep -qE 'Retrying \(Retry|Could not fetch URL|Connection(Error|.* broken)|Read timed out|HTTP error' "$1"; then
        echo "a package index could not be reached${wanted:+ (needed: $wanted)}: check the network and proxy settings"
    elif [[ -n $wanted ]]; then
        echo "there is no build of $wanted for this Python and machine ($(uname -sm)); Python 3.11 to 3.13 are known to work"
    else
        grep -E '^(ERROR|error|.*Error):?' "$1" | tail -n 1 | grep . || echo "unknown; see the log"
    fi
}

# uv_of PYTHON: the uv that belongs to an environment. It lies beside the packages, not among them: what is installed
# there is noted with measurements.
uv_of() { echo "${1%/bin/python}/.uv/bin/uv"; }

# add_uv PYTHON LOG: fetches uv as pip fetches anything. A bundle is installed by pip, which comes with it.
add_uv() {
    [[ -z $bundle ]] && "$1" -m pip install --disable-pip-version-check --no-input --no-deps --quiet --retries 1 \
        --only-binary :all: --require-hashes --target "${1%/bin/python}/.uv" -r envs/uv.lock >>"$2" 2>&1
}

pip_install() {
    "$1" -m pip install --disable-pip-version-check --no-input --no-deps "${@:2}"
}

# uv_install PYTHON OPTION...: the same with uv, from where pip would take it; fails where that cannot be said to uv. Files
# are copied, because those that are linked to uv's cache could be changed there by an editor, for every environment.
uv_install() {
    local uv
    uv=$(uv_of "$1") && [[ -x $uv ]] || return 1
    PYTHONPATH=$PWD/scripts "$1" -m kveval.host.setup.uv_settings "$uv" pip install --no-config --python "$1" --link-mode copy \
        --no-deps "${@:2}"
}

# install_packages PYTHON OPTION... LOCK: installs a lock by uv if it is there, else by pip.
install_packages() {
    uv_install "$@" && return
    [[ ! -x $(uv_of "$1") ]] || say "uv could not install ${*: -1}, as the log says: pip does, which takes longer" >&3
    pip_install "$@"
}

install_workflow() {
    install_packages "$1" --require-hashes -r envs/workflow.lock &&
        "$1" -c 'import kubernetes, matplotlib, pandas, pyarrow, scipy, seaborn, snakemake, zstandard'
}

# install_command ENV NAME MODULE: installs a command into an environment; it runs a module of this repository, whatever
# modules lie in the folder where it is started (-P).
install_command() {
    printf '#!/bin/sh\nPYTHONPATH=%q exec %q -P -m %q "$@"\n' "$PWD/scripts" "$(realpath -- "$1")/bin/python" "$3" >"$1/bin/$2"
    chmod 755 "$1/bin/$2"
}

# install_torch INSTALLER PYTHON: tries pip's configured index first, then PyTorch's own.
install_torch() { "$1" "$2" -r envs/torch.lock || "$1" "$2" --index-url "$pytorch_cpu_index" -r envs/torch.lock; }

# Status 3: there is no torch for this Python.
install_server() {
    install_torch uv_install "$1" || install_torch pip_install "$1" || return 3
    install_packages "$1" --require-hashes -r envs/server.lock && "$1" -c 'import guidellm, torch, vllm'
}

# torch_of_host: prints the folder of the host's torch, if that is of the locked version, for CUDA, and loads; else why not.
torch_of_host() {
    "${KVEVAL_PYTHON:-python3}" - "$(sed -n 's/^torch==\([^ ;]*\).*/\1/p' envs/torch-gpu.lock)" <<'TORCH'
import pathlib, sys
import torch
if torch.__version__.partition("+")[0] != sys.argv[1] or torch.version.cuda is None:
    sys.exit(f"it is {torch.__version__} for CUDA {torch.version.cuda}, and {sys.argv[1]} for CUDA is needed")
print(pathlib.Path(torch.__file__).parents[1])
TORCH
}

# The .pth file puts the host's packages after the environment's own on sys.path, so that locked packages win.
install_server_gpu() {
    local found
    if found=$(torch_of_host 2>/dev/null); then
        echo "$found" >"$("$1" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/host_torch.pth"
    else
        install_packages "$1" --require-hashes -r envs/torch-gpu.lock || return 3
    fi
    install_packages "$1" --require-hashes -r envs/server-gpu.lock && "$1" -c 'import guidellm, torch, vllm'
}

# ensure_server_gpu: makes the server's environment for GPUs; an environment of the user's own is used as it is.
ensure_server_gpu() {
    local env=.server-venv
    if [[ -e $env/bin/python && ! -f $env/.kveval-env ]]; then
        "$env/bin/python" -c 'import guidellm, torch, vllm' 2>/dev/null ||
            fail "$env is an environment of your own and lacks guidellm, torch or vllm: install them there, or move it away"
        say "server environment ($env): your own is used as it is"
        return
    fi
    ensure_env server "$env" 12 install_server_gpu envs/torch-gpu.lock envs/server-gpu.lock
}

# create_env ENV PYTHON: pip comes from the bundle, if there is one, because the Python may lack ensurepip.
create_env() {
    mkdir -- "$1" && touch "$1/.kveval-env" || return 1
    if [[ -z $bundle ]]; then
        "$2" -m venv "$1" >>"$1/setup.log" 2>&1
    else
        "$2" -m venv --without-pip "$1" >>"$1/setup.log" 2>&1 &&
            PYTHONPATH=$(echo "$bundle"/wheels/pip-*.whl) "$1/bin/python" -m pip install pip >>"$1/setup.log" 2>&1
    fi
}

# ensure_env NAME ENV GIGABYTES INSTALL FILE...: makes the environment, unless it is complete and up to date.
# An interrupted installation has no stamp and starts again; the caches of pip and uv make that cheap.
ensure_env() {
    local name=$1 env=$2 gigabytes=$3 install=$4 version python pythons status installer work
    shift 4
    if current "$env/.kveval-stamp" "$env" "$@" && has_wanted_python "$env"; then
        say "$name environment ($env): up to date"
        return
    fi
    mapfile -t pythons < <(usable_pythons)
    ((${#pythons[@]})) || fail "no usable Python (3.11 or newer, with ssl and sqlite3) among" \
        "${KVEVAL_PYTHON:-python3.13, python3.12, python3.11, python3}: install one or name one in KVEVAL_PYTHON"
    for python in "${pythons[@]}"; do
        version=${python%% *} python=${python#* }
        remove_env "$env"
        require_space "$gigabytes"
        [[ -n $bundle ]] || "$python" -c 'import ensurepip, venv' 2>/dev/null ||
            ensure_packages "Python $version cannot make virtual environments" "python$version-venv"
        create_env "$env" "$python" || fail "$python -m venv $env failed (log: $env/setup.log)"
        status=0 installer=uv
        add_uv "$env/bin/python" "$env/uv.log" || installer=pip
        describe_work "$name environment" "$installer" "$@"
        logged "$name environment ($env, Python $version): $work" "$env/setup.log" \
            "$install" "$env/bin/python" || status=$?
        if ((status == 0)); then
            fingerprint "$env" "$@" >"$env/.kveval-stamp"
            return
        fi
        ((status == 3)) || break # 3: another Python may have the wheel that this one lacks
    done
    fail "the $name environment could not be made: $(cause "$env/setup.log") (log: $env/setup.log)." \
        "Run this again when that is solved"
}

# ensure_packages_in WHAT ENV LOCK: adds the packages of a lock to an environment; it must agree with the environment's.
ensure_packages_in() {
    local what=$1 env=$2 lock=$3 stamp installer=pip work
    stamp=$env/.kveval-stamp-$(basename "$lock" .lock)
    if current "$stamp" "$env" "$lock"; then
        say "$what: up to date"
        return
    fi
    [[ ! -x $(uv_of "$env/bin/python") ]] || installer=uv
    describe_work "$what" "$installer" "$lock"
    logged "$what: $work" "$env/setup.log" install_packages "$env/bin/python" --require-hashes -r "$lock" ||
        fail "$what could not be installed: $(cause "$env/setup.log") (log: $env/setup.log)"
    fingerprint "$env" "$lock" >"$stamp"
}
