#!/usr/bin/env bash
# Draws the pictures of the page and of the dashboards, of which the documents show some: a real
# Prometheus scrapes the demo, and Grafana's own components draw the results of the panels' queries.
# It needs node and chromium. $PROMETHEUS is the path of Prometheus, $PICTURES a folder with the
# node_modules of page/package.json, and $OUT the folder of the pictures.
#
# With $WORLD it draws the dashboards of another world into bin/pictures/$WORLD, and changes no document:
# empty (a Prometheus that scrapes nothing), gpu.example.com or dra.net (the devices of one driver),
# nvidia.com (a node without DRA, whose GPUs come from a device plugin), or a number of nodes (see
# test/system/fleet; 1000 take six minutes and 11 GB); it prints how long each query and each drawing takes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../../.."
world=${WORLD:-} exporter=127.0.0.1:20990 prometheus=127.0.0.1:20991 work=$(mktemp -d)
out=$(realpath -m "${OUT:-bin/pictures}/$world")
children=()
trap 'kill "${children[@]}" 2>/dev/null || true; wait; rm -rf "$work"' EXIT

go build -o "$work/demo" ./test/demo &
cat >"$work/values.yaml" <<VALUES
prometheusRule:
  {interval: 2s, rateWindow: 16s, idle: {interval: 2s, window: 30s, for: 5s}, for: 4s, pageURL: "http://$exporter",
  prices: [{models: LATEST-GPU-MODEL, perHour: 3}]}
VALUES
go run -C dashboards ./generate -out="$work" -values="$work/values.yaml"
wait $!
go build -C test/system/dashboards -o "$work/screenshots" ./screenshots
mkdir -p "$work/site" "$out"
cp test/system/dashboards/screenshots/page/index.html "$work/site"
export NODE_PATH="$PICTURES/node_modules"
"$NODE_PATH/.bin/esbuild" test/system/dashboards/screenshots/page/main.jsx --bundle --minify \
	--jsx=automatic --format=iife --outfile="$work/site/page.js" --define:process.env.NODE_ENV='"production"' \
	--loader:.ttf=dataurl --loader:.svg=dataurl --log-level=error

case $world in
empty) ;;
[0-9]*)
	go run -C test/system/fleet . -nodes="$world" -answers="$work/answers.json"
	env -C test/system/dashboards "$work/screenshots" -answers="$work/answers.json" -site="$work/site" -out="$out" -world="$world"
	exit
	;;
*)
	DRA_EXPORTER_COUNTER_ZERO_HOLD=3s "$work/demo" --listen=$exporter --driver="${world/nvidia.com/nvidia.com\/gpu}" >/dev/null &
	children+=($!)
	;;
esac
cat >"$work/prometheus.yml" <<CONFIG
global: {scrape_interval: 2s, evaluation_interval: 2s, scrape_native_histograms: true}
rule_files: [rules.yaml]
scrape_configs:
- job_name: dra-exporter
  honor_labels: true
  static_configs:
  - {targets: ["$exporter"], labels: {cluster: demo, node: demo-node, instance: demo-node}}
CONFIG
"$PROMETHEUS" --config.file="$work/prometheus.yml" --storage.tsdb.path="$work/data" --web.listen-address=$prometheus \
	--log.level=error &
children+=($!)

env -C test/system/dashboards "$work/screenshots" -prometheus="http://$prometheus" -exporter="http://$exporter" \
	-site="$work/site" -out="$out" -world="$world"
[ -z "$world" ] || exit 0
for board in dashboards/out/grafana/*.json; do
	cp "$out/$(basename "${board%.json}").png" dashboards
done
test/system/dashboards/screenshots/panels.sh >dashboards/pictures.sum
cp "$out"/page.png "$out"/on-call-*.png exporter
