#!/usr/bin/env bash
# Draws the pictures of the page and of the dashboards: a real Prometheus scrapes the demo, and
# Grafana's own components draw the results of the panels' queries in headless Chromium. It needs
# node, npm and chromium. $PROMETHEUS is the path of Prometheus, WAIT the number of seconds to collect data.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
exporter=127.0.0.1:20990 prometheus=127.0.0.1:20991 work=$(mktemp -d)
children=()
trap 'kill "${children[@]}" 2>/dev/null || true; wait; rm -rf "$work"' EXIT

go build -o "$work/demo" ./test/demo
go run -C dashboards ./generate -out="$work" -interval=5s -rate.window=30s -idle.window=1m -idle.for=10s
cat >"$work/prometheus.yml" <<CONFIG
global: {scrape_interval: 5s, evaluation_interval: 5s}
rule_files: [rules.yaml]
scrape_configs:
- job_name: dra-exporter
  honor_labels: true
  static_configs:
  - {targets: ["$exporter"], labels: {cluster: demo, node: demo-node, instance: demo-node}}
CONFIG
DRA_EXPORTER_COUNTER_ZERO_HOLD=6s "$work/demo" --listen=$exporter >/dev/null &
children+=($!)
"$PROMETHEUS" --config.file="$work/prometheus.yml" --storage.tsdb.path="$work/data" --web.listen-address=$prometheus --log.level=error &
children+=($!)
ended=$((SECONDS + ${WAIT:-90}))

cp -r test/dashboards/screenshots/page "$work/page"
npm ci --prefix "$work/page" --legacy-peer-deps --ignore-scripts --no-audit --no-fund --silent
(cd "$work/page" && npx esbuild main.jsx --bundle --minify --jsx=automatic --format=iife --outfile=page.js \
	--define:process.env.NODE_ENV='"production"' --loader:.ttf=dataurl --loader:.svg=dataurl --log-level=error)
while ((SECONDS < ended)); do sleep 1; done

# picture FILE WIDTH HEIGHT ADDRESS: what Chromium shows after some seconds of its own time.
picture() {
	chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --window-size="$2,$3" --virtual-time-budget=8000 \
		--allow-file-access-from-files --user-data-dir="$work/chromium" --screenshot="$1" "$4" 2>/dev/null
}
picture "$work/first.png" 1300 1560 "http://$exporter/" # traffic is a rate since an earlier look

# draw BOARD HEIGHT PANELS [CLAIM]
draw() {
	go run -C test/dashboards ./screenshots -prometheus="http://$prometheus" -board="$1" -panels="$3" -claim="${4:-.*}" -out="$work/page/data.js"
	picture "dashboards/$1.png" 1230 "$2" "file://$work/page/index.html"
}
draw dra-fleet 1130 'Claimed;Idle;Free;Unhealthy;Unmeasured;Utilization;Power;Alerts;Devices by state;Utilization by driver;Wasted device-hours by namespace;Wasted energy by namespace;Share of held time that was idle;Top idle claims'
draw dra-namespaces 1100 'Total device-hours;Active share of measured time;Total energy;Total cost;Namespaces;Namespaces by driver and model;Devices held;Devices busy'
picture exporter/page.png 1300 1560 "http://$exporter/"
