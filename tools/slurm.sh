#!/usr/bin/env bash
# Debian's SLURM on this machine alone: a controller and one node, on the loopback. For the tests; needs root.
#
#   tools/slurm.sh start     install it if need be, start it, and wait until the node is idle
#   tools/slurm.sh stop      stop it
#
# All of it lies in build/slurm; its commands find it by SLURM_CONF=build/slurm/slurm.conf.
set -euo pipefail
cd "$(dirname "$0")/.."
DIR=$PWD/build/slurm
export SLURM_CONF=$DIR/slurm.conf

install_packages() {
  command -v slurmctld >/dev/null && command -v slurmd >/dev/null && command -v munged >/dev/null && return
  [ "$(id -u)" = 0 ] || { echo "SLURM is not installed, and only root can install it." >&2; exit 1; }
  export DEBIAN_FRONTEND=noninteractive
  apt-get install -qq --no-install-recommends slurm-wlm munge >/dev/null 2>&1 ||
    { apt-get update -qq && apt-get install -qq --no-install-recommends slurm-wlm munge >/dev/null; }
}

start_munge() {
  munge -n >/dev/null 2>&1 && return
  install -d -o munge -g munge -m 0755 /run/munge
  [ -e /etc/munge/munge.key ] || { head -c 1024 /dev/urandom >/etc/munge/munge.key; chown munge:munge /etc/munge/munge.key; chmod 400 /etc/munge/munge.key; }
  runuser -u munge -- "$(command -v munged)"
}

configure() {
  mkdir -p "$DIR/state" "$DIR/spool"
  local host memory
  host=$(hostname -s)
  memory=$(awk '/MemTotal/ {print int($2 / 1024)}' /proc/meminfo)
  cat >"$DIR/slurm.conf" <<END
ClusterName=attlas
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
ReturnToService=2
StateSaveLocation=$DIR/state
SlurmdSpoolDir=$DIR/spool
SlurmctldPidFile=$DIR/slurmctld.pid
SlurmdPidFile=$DIR/slurmd.pid
SlurmctldLogFile=$DIR/slurmctld.log
SlurmdLogFile=$DIR/slurmd.log
SlurmctldPort=16817
SlurmdPort=16818
NodeName=$host NodeAddr=127.0.0.1 CPUs=$(nproc) RealMemory=$memory State=UNKNOWN
PartitionName=main Nodes=$host Default=YES MaxTime=INFINITE State=UP
END
  rm -f "$DIR/cgroup.conf"
  [ ! -e /sys/fs/cgroup/cgroup.controllers ] || echo "IgnoreSystemd=yes" >"$DIR/cgroup.conf"
}

start() {
  stop
  install_packages
  start_munge
  configure
  slurmctld -c -f "$SLURM_CONF" && slurmd -c -f "$SLURM_CONF" || { echo "SLURM did not start; see $DIR/*.log" >&2; exit 1; }
  for _ in $(seq 120); do
    [ "$(sinfo -h -o %T 2>/dev/null)" = idle ] && { echo "$SLURM_CONF"; return; }
    sleep 1
  done
  echo "SLURM did not come up; see $DIR/*.log" >&2
  exit 1
}

stop() {
  [ -e "$DIR/slurmctld.pid" ] || return 0
  scancel --user="$(id -un)" 2>/dev/null || true
  for daemon in slurmd slurmctld; do
    [ ! -e "$DIR/$daemon.pid" ] || kill "$(cat "$DIR/$daemon.pid")" 2>/dev/null || true
    rm -f "$DIR/$daemon.pid"
  done
}

case "${1:-}" in
start) start ;;
stop) stop ;;
*) sed -n '2,5p' "$0" >&2; exit 2 ;;
esac
