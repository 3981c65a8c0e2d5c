#!/bin/sh
# Starts PCP's collector daemon with the agents of the kernel, of processes and of OpenMetrics sources, for clients in
# this container alone. Its state is in $KVEVAL_PCP; the container's environment says so to every program of PCP.
# Sources: a file NAME.url in $PCP_VAR_DIR/pmdas/openmetrics/config.d, at any time.
set -eu

stock() { # what the installation says, without the container's environment
    env -i PATH="$PATH" sh -c '. /etc/pcp.env; eval "printf %s \"\$$1\""' sh "$1"
}
agents=$(stock PCP_PMDASADM_DIR)
helps=$(stock PCP_PMDAS_DIR)
programs=$(stock PCP_BINADM_DIR)
sources=$PCP_VAR_DIR/pmdas/openmetrics/config.d
user=$(id -un)
cd / # Python looks for modules in the working directory first

mkdir -p "$PCP_RUN_DIR" "$PCP_LOG_DIR" "$PCP_TMP_DIR/pmlogger" "$PCP_VAR_DIR/pmns" "$PCP_VAR_DIR/config/pmda" "$sources"
for agent in linux proc pmcd; do
    [ -e "$PCP_PMDAS_DIR/$agent" ] || ln -s "$helps/$agent" "$PCP_PMDAS_DIR/$agent"
done
for source in "$KVEVAL_SOURCES"/*.url; do
    [ -e "$source" ] || continue
    sed "s|{host}|$HOST_IP|" "$source" >"$sources/${source##*/}"
done

# The agent of OpenMetrics sources is a Python program that needs modules of the system's own Python.
for python in /usr/bin/python3 python3; do
    "$python" -c 'import pcp.pmda, requests' 2>/dev/null && break
done
# pmcd insists on a port, of the node's own network, where nobody is answered; other campaigns' recorders have theirs.
PMCD_PORT=$("$python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
export PMCD_PORT
cat >"$PCP_PMCDCONF_PATH" <<CONF
pmcd 2 dso pmcd_init $agents/pmcd/pmda_pmcd.so
linux 60 pipe binary $agents/linux/pmdalinux -d 60 -U $user -l $PCP_LOG_DIR/linux.log
proc 3 pipe binary $agents/proc/pmdaproc -d 3 -U $user -l $PCP_LOG_DIR/proc.log
openmetrics 144 pipe binary notready $python $agents/openmetrics/pmdaopenmetrics.python -u $user -c $sources -l $PCP_LOG_DIR/openmetrics.log

[access]
disallow ".*" : all;
disallow ":*" : all;
allow "unix:*" : all;
CONF

printf 'root {\n    openmetrics 144:*:*\n}\n' >"$PCP_TMP_DIR/openmetrics.pmns"
parts=
for name in pmcd linux proc; do
    for folder in "$(stock PCP_VAR_DIR)/pmns" "${agents%/*}/pmns"; do
        [ -f "$folder/root_$name" ] && parts="$parts $folder/root_$name" && break
    done
done
# shellcheck disable=SC2086  (a list of paths without spaces)
"$programs/pmnsmerge" -f $parts "$PCP_TMP_DIR/openmetrics.pmns" "$PCP_VAR_DIR/pmns/root"

# Agents get more than the usual 3 s to start and 5 s to answer: on a busy node samples would be lost.
exec "$programs/pmcd" -f -A -U "$user" -n "$PCP_VAR_DIR/pmns/root" -c "$PCP_PMCDCONF_PATH" -i 127.0.0.1 \
    -s "$PMCD_SOCKET" -q 30 -t 30 -l "$PCP_LOG_DIR/pmcd.log" -x "$PCP_LOG_DIR/pmcd.fatal"
