#!/usr/bin/env bash
# Runs a command with a priority that is lower by a number: lower.sh NUMBER COMMAND. Linux may weigh
# sessions against each other, and priorities only within a session (autogroup in sched(7)). Therefore
# the command has a session of its own, which ends with this script.
set -euo pipefail
number=$1
shift
weight= # empty: sessions are not weighed
if [ -r /proc/self/autogroup ]; then
	weight=$(awk -v number="$number" '{ nice = $NF + number; print (nice > 19 ? 19 : nice) }' /proc/self/autogroup)
fi
setsid bash -c 'renice -n "$0" $$ >/dev/null; { echo "$1" >/proc/self/autogroup; } 2>/dev/null || :; shift; exec "$@"' \
	"$number" "$weight" "$@" &
session=$!
trap 'kill -- -"$session" 2>/dev/null || :' EXIT
trap 'exit 1' HUP INT TERM
wait "$session"
