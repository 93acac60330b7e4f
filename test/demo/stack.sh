#!/usr/bin/env bash
# Runs the demo and a Prometheus that scrapes it, with the rules of deployments/compose, until Ctrl-C:
# `make demo-stack`. $PROMETHEUS is the path of Prometheus; $EXPORTER and $LISTEN are the addresses.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
exporter=${EXPORTER:-127.0.0.1:10985} prometheus=${LISTEN:-127.0.0.1:9090} work=$(mktemp -d)
children=()
trap 'trap "" INT TERM; kill "${children[@]}" 2>/dev/null || true; wait; rm -rf "$work"' EXIT
trap 'exit 0' INT TERM

# listens: whether a program listens on Prometheus's address.
listens() {
	{ exec 3<>"/dev/tcp/${prometheus/://}"; } 2>/dev/null
}
# has PATH TEXT: whether Prometheus answers a GET of PATH with TEXT.
has() {
	listens || return
	printf 'GET %s HTTP/1.0\r\n\r\n' "$1" >&3
	timeout 5 grep -q "$2" <&3
}
! listens || { echo "demo-stack: something else listens on $prometheus; LISTEN=HOST:PORT chooses another address" >&2; exit 1; }

go build -o "$work/demo" ./test/demo
cp deployments/compose/rules.yaml test/demo/fleet.html "$work"
sed "s/demo:10985/$exporter/" deployments/compose/prometheus.yaml >"$work/prometheus.yaml"
DRA_EXPORTER_COUNTER_ZERO_HOLD=6s "$work/demo" --listen="$exporter" &
children+=($!)
"$PROMETHEUS" --config.file="$work/prometheus.yaml" --storage.tsdb.path="$work/data" --web.listen-address="$prometheus" \
	--web.console.templates="$work" --log.level=error &
children+=($!)
until has '/api/v1/query?query=cluster:dra_devices:count' '"value"'; do
	for child in "${children[@]}"; do
		kill -0 "$child" || { echo "demo-stack: the demo or Prometheus ended" >&2; exit 1; }
	done
	sleep 0.5
done
echo "
Prometheus scrapes the node and has its first data. Idle claims show after three minutes.

  fleet     http://$prometheus/consoles/fleet.html
  alerts    http://$prometheus/api/v1/alerts
"
wait -n "${children[@]}"
