#!/usr/bin/env bash
# Prints for each dashboard whose picture is in the tree a checksum of what a picture shows of its
# panels: titles, kinds, places, units and texts. draw.sh keeps it in dashboards/pictures.sum, and
# `make verify` compares that with the dashboards.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../../../dashboards"
for picture in dra-*.png; do
	sum=$(sed -n '/^ "panels"/,/^ "templating"/p' "out/grafana/${picture%.png}.json" |
		grep -E '"(title|type|[hwxy]|unit|noValue|options|collapsed)":' | sha256sum)
	echo "$picture ${sum%% *}"
done
