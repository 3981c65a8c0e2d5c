"""Shell scripts that are run in the recorder's pods, with the folder of one run's recording as $0."""

from kveval.engines.kubernetes.api.download import LIST, READ

# Sets the paths of PCP's programs; the folder of PCP's state is set by the container's environment.
_PCP = """. /etc/pcp.env
PATH=$PATH:$PCP_BIN_DIR:$PCP_BINADM_DIR
"""

# Pairs of a name and its URLs; merge.py makes one page of several. Files are written elsewhere and moved, because the
# openmetrics agent may read the folder at any moment.
SOURCES = r"""
set -e
folder=$PCP_VAR_DIR/pmdas/openmetrics/config.d
mkdir -p "$0"
while [ $# -ge 2 ]; do
  case $2 in
  *' '*)
    python=/usr/bin/python3
    [ -x "$python" ] || python=python3
    printf '#!/bin/sh\nexec %s %s %s\n' "$python" "$KVEVAL_START/merge.py" "$2" > "$0/new"
    chmod 755 "$0/new"
    mv "$0/new" "$folder/$1"
    ;;
  *)
    printf '%s\n' "$2" > "$0/new"
    mv "$0/new" "$folder/$1.url"
    ;;
  esac
  shift 2
done
"""

# Prints those of the names in its arguments that pmcd does not know yet.
MISSING = (
    _PCP
    + r"""
for name; do
  pminfo -h unix: "openmetrics.$name" 2>/dev/null | grep -q . || printf '%s\n' "$name"
done
"""
)

# $1: what is logged beside the groups of metrics, $2: interval in ms; then pairs of a source and its group. The output
# goes to files, because a command in a pod lasts as long as its output is open.
START = (
    _PCP
    + r"""
set -e
mkdir -p "$0/archive"
groups=$KVEVAL_GROUPS beside=$1 interval=$2
shift 2
{
  cat "$groups/once" "$groups/host"
  printf '%s' "$beside"
  while [ $# -ge 2 ]; do sed "s|@SOURCE@|$1|g" "$groups/$2"; shift 2; done
  cat "$groups/access"
} > "$0/pmlogger.conf"
rm -f "$0/ended"
setsid sh -c 'pmlogger -c "$0/pmlogger.conf" -h unix: -t "$1msec" -V 3 -l "$0/pmlogger.log" "$0/archive/pcp" &
  echo $! > "$0/pid.new"; mv "$0/pid.new" "$0/pid"; wait $!; echo $? > "$0/ended"' "$0" "$interval" \
  </dev/null >"$0/pmlogger.out" 2>&1 &
"""
)

_ENDED = r"""
[ ! -e "$0/ended" ] || { tail -n 3 "$0/pmlogger.log" "$0/pmlogger.out" 2>/dev/null; exit 3; }
"""

# Succeeds once the archive has a value of the metric $1; exits with 3 if pmlogger has ended.
BEGUN = (
    _PCP
    + _ENDED
    + r"""
[ -e "$0/archive/pcp.index" ] && pmprobe -a "$0/archive/pcp" "$1" 2>/dev/null | awk '$2 > 0 {f=1} END {exit !f}'
"""
)

# Prints the status of pmcd's agents; exits with 3 if pmlogger has ended.
ALIVE = _PCP + _ENDED + "pminfo -h unix: -f pmcd.agent.status\n"

# Stops pmlogger, which completes its archive; exits with 3 if it had ended before, with 4 if it does not end.
STOP = (
    _ENDED
    + r"""
kill -TERM "$(cat "$0/pid")"
for _ in $(seq 200); do [ -e "$0/ended" ] && exit 0; sleep 0.1; done
exit 4
"""
)

# Ends and removes the recording $0, and its sources.
REMOVE = r"""
[ ! -e "$0/pid" ] || [ -e "$0/ended" ] || kill -KILL "$(cat "$0/pid")" 2>/dev/null
rm -f "$PCP_VAR_DIR/pmdas/openmetrics/config.d/"*"_$(basename "$0").url" \
  "$PCP_VAR_DIR/pmdas/openmetrics/config.d/"*"_$(basename "$0")"
rm -rf "$0"
"""

# Prints the names of all recordings in the folder of $0.
RECORDINGS = r"""
ls "$(dirname "$0")" 2>/dev/null || true
"""

# Prints the PIDs, on the node, of the containers of the pods whose uids are the arguments.
PROCESSES = r"""
for uid; do
  other=$(printf '%s' "$uid" | tr - _)
  grep -l -e "$uid" -e "$other" /proc/[0-9]*/cgroup 2>/dev/null || true
done | cut -d/ -f3 | sort -un
"""

# Prints PCP's release.
VERSION = _PCP + 'printf "%s\\n" "$PCP_VERSION"\n'

# Prints the time in the pod, epoch seconds.
CLOCK = "date +%s.%N\n"

# Succeeds if every URL in its arguments answers.
REACH = r"""
exec python3 -c 'import sys, urllib.request as web
for url in sys.argv[1:]: web.urlopen(url, timeout=3).read(1)' "$@"
"""

NAMES = {
    LIST: "list",
    READ: "read",
    ALIVE: "alive",
    BEGUN: "begun",
    CLOCK: "clock",
    MISSING: "missing",
    PROCESSES: "processes",
    REACH: "reach",
    REMOVE: "remove",
    SOURCES: "sources",
    START: "start",
    STOP: "stop",
    VERSION: "version",
}
"""Scripts -> their names in a recorder that an administrator has installed, which runs no others."""
