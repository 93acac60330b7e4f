# `make help` lists the targets. Checks and tests run for every go.mod of the tree.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DELETE_ON_ERROR:
.SUFFIXES:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory --no-builtin-rules

export PATH := $(PATH):/usr/sbin:/sbin
export GOWORK := off
# The version comes from VERSION and git below, not from go, since git fails in a clone that belongs
# to another user. NVIDIA's headers mark functions as deprecated, but the bindings call them all.
export CGO_CFLAGS ?= -g -O2 -Wno-deprecated-declarations
export GOFLAGS := $(strip $(GOFLAGS) -buildvcs=false)

include test/tools/tools.mk

modules := $(sort $(patsubst ./%,%,$(patsubst %/,%,$(dir $(shell find . -name go.mod -not -path '*/.*/*' -not -path '*/testdata/*' -not -path '*/node_modules/*')))))
# The modules of test/tools pin versions of tools and have no tests. The system tests need built
# programs, so they run in test-e2e.
code_modules := $(filter-out test/tools test/tools/%,$(modules))
unit_modules := $(filter-out test/system,$(code_modules))
-include test/system/cluster/cluster.mk deployments/release.mk

# $(call each,folders,command): runs the command in every folder, even if it fails in one.
define each
status=0
for folder in $(1); do
	echo "== $$folder: $(strip $(2))"
	(cd "$$folder" && $(2)) || status=1
done
exit $$status
endef

program := bin/dra-exporter
git = $(shell TZ=UTC git -c safe.directory='*' $(1) 2>/dev/null)
VERSION ?= $(patsubst v%,%,$(call git,describe --tags --always --dirty))
REVISION ?= $(call git,rev-parse HEAD)
BUILD_DATE ?= $(call git,log -1 --date=format-local:%Y-%m-%dT%H:%M:%SZ --format=%cd)
# No branch: a commit may be on several, and must give the same bytes.
stamp = -X github.com/prometheus/common/version.$(strip $(1))=$(2)
ldflags = $(call stamp,Version,$(or $(VERSION),unknown)) \
	$(call stamp,Revision,$(REVISION)) \
	$(call stamp,BuildDate,$(BUILD_DATE))

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: run
run: ## serve metrics of a simulated node on :10985 until Ctrl-C, or for FOR=60s
	@mkdir -p bin
	go build -o bin/demo ./test/demo
	exec bin/demo $(if $(FOR),--for=$(FOR)) $(ARGS)

.PHONY: demo-stack
demo-stack: $(PROMETHEUS) ## the same with a Prometheus that has the rules loaded, until Ctrl-C; no container engine
	@PROMETHEUS="$(PROMETHEUS)" exec test/demo/stack.sh

.PHONY: build
build: ## build bin/dra-exporter; the same commit gives the same bytes
	@mkdir -p $(dir $(program))
	go build -trimpath -ldflags='$(ldflags)' -o $(program) ./exporter/cmd/dra-exporter
	echo "$(program): version $(or $(VERSION),unknown)"

IMAGE ?= ghcr.io/dra-exporter/dra-exporter
# The tag that the chart asks for, unless VERSION is given.
image_tag = $(if $(filter command% environment%,$(origin VERSION)),$(VERSION),$(shell sed -n 's/^appVersion: //p' deployments/helm/dra-exporter/Chart.yaml))
.PHONY: image
image: ## build the container image IMAGE=name with docker, podman or buildah, the first that is installed, or ENGINE=podman
	@engine=$${ENGINE:-$$(command -v docker || command -v podman || command -v buildah || true)}
	[ -n "$$engine" ] || { echo "neither docker, podman nor buildah is here; make image-tar needs none" >&2; exit 1; }
	"$$engine" build --build-arg VERSION='$(VERSION)' --build-arg REVISION='$(REVISION)' --build-arg BUILD_DATE='$(BUILD_DATE)' -t '$(IMAGE):$(image_tag)' .

.PHONY: image-tar
image-tar: build ## build the same image without container engine and registry, as docker save writes it: bin/image.tar
	@cd deployments
	go run ./image/tar -program='$(CURDIR)/$(program)' -out='$(CURDIR)/bin/image.tar' -name='$(IMAGE):$(image_tag)' -version='$(VERSION)' \
		-revision='$(REVISION)' -created='$(call git,log -1 --format=%ct)'
	echo "bin/image.tar: $(IMAGE):$(image_tag)"

# Sources are tested on trees of thousands of small files, which take 30 times as long on a disk:
# temporary files are in memory, where there is room and programs may run.
memory = $$([ "$$(df --output=avail -k /dev/shm | tail -n1)" -gt $$((4 << 20)) ] && \
	awk '$$2 == "/dev/shm" { how = $$4 } END { if (how && how !~ /noexec/) print "/dev/shm" }' /proc/mounts || :)

# $(call folders,pattern,files): prints the folders of the module here that have tests, and files that match a pattern.
folders = go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.Dir}}{{end}}' ./... | \
	while read -r folder; do ! grep -qsE $(1) "$$folder"/$(2) || echo "$$folder"; done

# $(call unit_tests,modules,flags,packages): runs the unit tests, and prints the ten slowest, and the slow packages.
define unit_tests
export TMPDIR="$${TMPDIR:-$(memory)}"
said=$$(mktemp -d)
trap 'rm -rf "$$said"' EXIT
status=0
for folder in $(1); do
	echo "== $$folder: go test $(strip $(2))"
	(cd "$$folder" && $(GOTESTSUM) --format=pkgname-and-test-fails --format-hide-empty-pkg \
		--jsonfile="$$said/of-$${folder//\//-}" -- $(2) $(or $(3),./...)) || status=1
done
cat "$$said"/of-* >"$$said/all"
echo "== the ten slowest tests"
$(GOTESTSUM) tool slowest --num=10 --jsonfile="$$said/all"
echo "== packages over 8 s"
grep -v '"Test":' "$$said/all" | sed -nE 's/.*"Action":"(pass|fail)","Package":"([^"]*)".*"Elapsed":([0-9.]+).*/\3 s \2/p' | sort -rn | awk '$$1 > 8'
exit $$status
endef

.PHONY: test
test: deps $(GOTESTSUM) ## run every unit test in two minutes or so, with few cases of each property; prints the ten slowest, and packages over 8 s
	@$(call unit_tests,$(unit_modules),-short)

# The packages that start goroutines, or whose tests do.
concurrent = '^[[:space:]]*go [a-z(]|"sync(/atomic)?"|x/sync/|"testing/synctest"|"net/http|/drivertest"'
.PHONY: test-race
test-race: deps $(GOTESTSUM) ## the same with the race detector, where there are goroutines, in many minutes; and build without cgo
	@echo "== CGO_ENABLED=0 go build ./..."
	CGO_ENABLED=0 go build ./...
	$(call unit_tests,.,-short -race -vet=off -timeout=30m,$$($(call folders,$(concurrent),*.go)))

CHECKS ?= 200
.PHONY: test-deep
test-deep: deps ## run the unit tests that make test samples, with all cases: every file and fault, and each property CHECKS=200 times
	@# Go keeps results by the timeout, and not by RAPID_CHECKS: a number of checks has a timeout of its own.
	export TMPDIR="$${TMPDIR:-$(memory)}" RAPID_CHECKS=$(CHECKS)
	status=0
	for module in $(unit_modules); do
		cd '$(CURDIR)'/"$$module"
		properties=$$($(call folders,'"pgregory\.net/rapid"',*_test.go))
		sampled=$$($(call folders,'testing\.Short\(\)',*_test.go) | grep -vxF "$$properties" || :)
		[ -z "$$properties" ] || go test -vet=off -timeout=$$((1800 + $(CHECKS)))s $$properties || status=1
		[ -z "$$sampled" ] || go test -vet=off -timeout=30m $$sampled || status=1
	done
	exit $$status

.PHONY: test-e2e
test-e2e: deps build cluster-build $(PROMTOOL) $(PROMETHEUS) $(OAUTH2_PROXY) $(PINT) $(SCHEMA) ## run the system tests: the program end to end, and the accuracy of its metrics
	@$(MAKE) --keep-going -j5 $(lanes)

# The suites (the folders of test/system) run in lanes at the same time. Three lanes compare times or
# wait for pods: they need little time of a processor, but at once. Two of these have clusters. The
# other two mainly compute: they have a much lower priority, and the time that is left; those of
# their tests that look at a running program come last, and so does the one that compares times of
# 1000 nodes. What measures for a long time has a higher one if allowed.
lanes := test-e2e-scenarios test-e2e-containers test-e2e-program test-e2e-documents test-e2e-dashboards
.PHONY: $(lanes)
test-e2e-scenarios:
	@status=0
	($(call system_tests,cluster,-run='^TestScenarios$$',,./scenarios)) || status=1
	($(call system_tests,attack,)) || status=1
	($(call system_tests,e2e,-run='^TestHangingNodes$$')) || status=1
	exit $$status
test-e2e-containers:
	@status=0
	($(call system_tests,cluster,-skip='^TestScenarios$$',,./scenarios ./...)) || status=1
	($(call system_tests,deploy,)) || status=1
	($(call system_tests,integrations,-short)) || status=1
	exit $$status
test-e2e-program:
	@status=0
	(
		$(raise)
		$(call system_tests,accuracy,-v)
	) || status=1
	($(call system_tests,e2e,-skip='^Test(Documents|HangingNodes)$$')) || status=1
	exit $$status
test-e2e-documents:
	@status=0
	($(call system_tests,e2e,-run='^TestDocuments$$',,,$(call lower,10))) || status=1
	($(call system_tests,fleet,,,,$(call lower,10))) || status=1
	exit $$status
live = ^Test(Live|Stack|CompatQueries|Documents|Page)
test-e2e-dashboards:
	@status=0
	($(call system_tests,dashboards,-skip='$(live)',,,$(call lower,10))) || status=1
	($(call system_tests,dashboards,-run='$(live)',,,$(call lower,2))) || status=1
	exit $$status

raise = [ "$$(id -u)" != 0 ] || renice -n -10 $$BASHPID >/dev/null
lower = '$(CURDIR)/test/system/lower.sh' $(1)

.PHONY: accuracy
accuracy: build $(PROMETHEUS) ## print the errors of the metrics of short pods
	@$(call system_tests,accuracy,-v)

.PHONY: attack
attack: build ## attack the program, and print the figures; RUN=regexp: some attacks, FULL=1: with a full flight recorder
	@# Linux may weigh sessions (autogroup) and not processes: both get a priority.
	[ "$$(id -u)" != 0 ] || { renice -n -10 $$$$ >/dev/null; echo -10 >/proc/self/autogroup; } 2>/dev/null || :
	$(call system_tests,attack,-v -timeout=60m -run='TestAttacks/$(RUN)',-args -all $(if $(FULL),-full))

.PHONY: soak
soak: build ## use the program for long, and compare what it takes: SCALE=1 is 100 000 scrapes and 10 000 claims
	@$(call system_tests,attack,-v -run='^TestSoak$$',-args -scale=$(or $(SCALE),1))

# $(call system_tests,suites,flags,arguments,packages,program): runs suites, or some packages of them, by
# a program if given. -count=1, since go's cache of results does not notice changes of the programs;
# -p=1, since the tests measure times and must not disturb each other.
define system_tests
export VERSION="$(VERSION)" REVISION="$(REVISION)" DRA_EXPORTER="$(CURDIR)/$(program)" PROMTOOL="$(PROMTOOL)" PROMETHEUS="$(PROMETHEUS)" OAUTH2_PROXY="$(OAUTH2_PROXY)" PINT="$(PINT)" SCHEMA="$(SCHEMA)"
$(call each,$(addprefix test/system/,$(1)),$(5) go test -count=1 -p=1 -timeout=$(if $(FULL),60m,20m) $(2) $(or $(4),./...) $(3))
endef

.PHONY: fleet
fleet: ## measure the rules and dashboards with many nodes: N=300 or N=10,100
	@mkdir -p bin
	go build -C test/system/fleet -o '$(CURDIR)/bin/fleet' .
	exec bin/fleet -checkout='$(CURDIR)' -nodes='$(or $(N),100)' $(ARGS)

.PHONY: test-one
test-one: deps build $(PROMTOOL) $(PROMETHEUS) $(if $(filter e2e,$(SUITE)),$(OAUTH2_PROXY)) $(PINT) $(SCHEMA) ## run the system tests of one folder of test/system: SUITE=e2e RUN=TestGolden, ARGS=-update writes golden files again
	@[ -n "$(SUITE)" ] && [ -d "test/system/$(SUITE)" ] || { echo "SUITE= names no folder of test/system, such as e2e" >&2; exit 1; }
	$(call system_tests,$(SUITE),-v -run='$(RUN)',$(ARGS))

.PHONY: test-integrations
test-integrations: deps build cluster-build $(PROMETHEUS) $(PROMETHEUS_ADAPTER) $(OTELCOL) $(VMAGENT) $(VMALERT) $(VICTORIAMETRICS) ## run the programs of other stacks with deployments/integrations; RUN=TestOpenTelemetry: some
	@export PROMETHEUS_ADAPTER="$(PROMETHEUS_ADAPTER)" OTELCOL="$(OTELCOL)" VMAGENT="$(VMAGENT)" VMALERT="$(VMALERT)" VICTORIAMETRICS="$(VICTORIAMETRICS)"
	status=0
	($(call system_tests,integrations,-v -run='$(RUN)')) || status=1
	$(if $(RUN),,($(call system_tests,deploy,-v -run='^TestDaemonSet$$/^(Collector|Autoscaling)$$')) || status=1)
	exit $$status

.PHONY: test-gpu
test-gpu: ## compare readings of NVIDIA GPUs with nvidia-smi; reports clearly if there is none; RECORD=DIR records them
	@go test -count=1 -v -run 'AgainstNvidiaSMI|Recordings|CallTimes' ./test/gpu $(if $(RECORD),-args -record=$(abspath $(RECORD)))

BENCH ?= .
COUNT ?= 6
.PHONY: bench
bench: $(if $(OLD),$(BENCHSTAT)) ## run the benchmarks (BENCH=regexp COUNT=6), compared with the file OLD= if given
	@mkdir -p bin
	{ $(call each,$(unit_modules),go test -run='^$$' -bench='$(BENCH)' -benchmem -count=$(COUNT) ./...) ; } | tee bin/bench.txt
	echo "kept in bin/bench.txt: copy it, and name the copy as OLD= of a later run"
	$(if $(OLD),$(BENCHSTAT) $(OLD) bin/bench.txt)

# The document is the list of the commands.
.PHONY: benchmarks
benchmarks: ## run the commands of test/BENCHMARKS.md, in hours, and print their figures; RUN=regexp: some
	@grep -oE '`(make|go test) [^`]+`' test/BENCHMARKS.md | tr -d '`' | grep -v '^make benchmarks' | grep -E -- '$(RUN)' | sort -u |
		while read -r command; do
			echo "== $$command"
			bash -c "$$command" </dev/null
		done

FUZZ ?= .
FUZZTIME ?= 10s
# What fuzzing has found stays here for the next time; inputs that fail a test go to its testdata.
# Inputs are made smaller in 100 steps, not for 60 s, in which nothing else is tried.
corpora := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/dra-exporter/corpora
.PHONY: fuzz
fuzz: ## run every fuzz test that matches FUZZ=regexp for FUZZTIME=10s, and print a summary
	@mapfile -t tests < <(grep -roP --include='*_test.go' '^func \KFuzz\w+' . | grep -E ':.*($(FUZZ))' | sort)
	[ "$${#tests[@]}" -gt 0 ] || { echo "no fuzz test matches $(FUZZ)" >&2; exit 1; }
	status=0 summary=
	said=$$(mktemp)
	trap 'rm -f "$$said"' EXIT
	for test in "$${tests[@]}"; do
		folder=$$(dirname "$${test%%:*}") name=$${test#*:} verdict=passed
		echo "== $$folder: $$name for $(FUZZTIME)"
		go test -C "$$folder" -run='^$$' -fuzz="^$$name\$$" -fuzztime=$(FUZZTIME) -fuzzminimizetime=100x . -args -test.fuzzcachedir='$(corpora)/'"$$folder" |
			tee "$$said" || { status=1 verdict=FAILED; }
		counts=$$(sed -nE 's/^fuzz: .*execs: ([0-9]+).*new interesting: ([0-9]+) \(total: ([0-9]+)\).*/\1 \2 \3/p' "$$said" | tail -n1)
		summary+="$${folder#./} $$name $${counts:-0 0 0} $$verdict"$$'\n'
	done
	echo
	printf '%-28s %-22s %12s %6s %6s  %s\n' folder test executions new corpus verdict $$summary
	echo "the corpora are in $(corpora)"
	exit $$status

# Status 3 of govulncheck: it has found something. Any other failure: it could not ask its database.
.PHONY: audit
audit: $(GOVULNCHECK) ## run govulncheck where its database can be had
	@status=0
	for module in $(code_modules); do
		found=0
		$(GOVULNCHECK) -C "$$module" ./... || found=$$?
		[ "$$found" != 3 ] || status=1
		[ "$$found" = 0 ] || [ "$$found" = 3 ] || { echo "not checked: govulncheck could not ask its database"; break; }
	done
	exit $$status

.PHONY: generate
generate: ## update the generated files
	@$(call each,$(code_modules),go generate ./...)

# Checksums of all files that git does not ignore. A deleted file has none, as intended.
fingerprint = git -c safe.directory='*' ls-files -coz --exclude-standard | sort -zu | { xargs -0 sha256sum 2>/dev/null || true; }

# The sets of modules that were found to match their go.sum: each is looked at once on a machine.
verified := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/dra-exporter/verified
.PHONY: verify
verify: ## check that generated files, go.mod and go.sum are up to date, and that modules match go.sum
	@before=$$(mktemp)
	trap 'rm -f "$$before"' EXIT
	$(fingerprint) >"$$before"
	$(MAKE) generate
	$(fingerprint) | diff "$$before" - || { echo "generated files are stale: commit what 'make generate' has written" >&2; exit 1; }
	test/system/dashboards/screenshots/panels.sh | diff dashboards/pictures.sum - ||
		{ echo "the panels are not those of the pictures in dashboards: draw them again (make screenshots)" >&2; exit 1; }
	printf '%s\n' $(modules) | xargs -P2 -I{} bash -c '
		cd "$$1" && go mod tidy -diff || exit 1
		verified="$(verified)/$$(go env GOMODCACHE GOVERSION | cat - go.mod go.sum | sha256sum | cut -c1-16)"
		[ -e "$$verified" ] || { go mod verify >/dev/null && mkdir -p "$(verified)" && touch "$$verified"; } || exit 1
		echo "== $$1: go.mod and go.sum are tidy and true"' _ {}

.PHONY: fmt
fmt: $(GOLANGCI_LINT) ## format the code (gofumpt, imports in order)
	@$(call each,$(code_modules),$(GOLANGCI_LINT) fmt --config='$(CURDIR)/.golangci.yml')

.PHONY: lint
lint: $(GOLANGCI_LINT) ## run the linters
	@$(call each,$(code_modules),$(GOLANGCI_LINT) run --allow-serial-runners --config='$(CURDIR)/.golangci.yml')

.PHONY: tools
tools: $(PROMTOOL) $(PROMETHEUS) $(OAUTH2_PROXY) $(PINT) $(SCHEMA) $(BENCHSTAT) $(GOLANGCI_LINT) ## build all tools of the other targets
	@printf '%s\n' $^

# Debian packages that tests need, as COMMAND:PACKAGE.
debian_packages := chromium:chromium ip:iproute2 npm:npm runc:runc tmux:tmux /usr/lib/cni/bridge:containernetworking-plugins

.PHONY: screenshots
screenshots: $(PROMETHEUS) $(PICTURES) ## draw the pictures of the page and the dashboards, into bin/pictures, from the demo (needs npm and chromium)
	@PROMETHEUS="$(PROMETHEUS)" PICTURES="$(PICTURES)" test/system/dashboards/screenshots/draw.sh

.PHONY: deps
deps: ## install missing Debian packages that tests need
	@missing=()
	for need in $(debian_packages); do
		command -v "$${need%%:*}" >/dev/null || missing+=("$${need#*:}")
	done
	[ "$${#missing[@]}" -gt 0 ] || exit 0
	if [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
		echo "tests need what Debian packages as: $${missing[*]}; install it (as root: apt-get install $${missing[*]})" >&2
		exit 1
	fi
	echo "deps: installing $${missing[*]}"
	export DEBIAN_FRONTEND=noninteractive
	apt-get update -q=2 && apt-get install -q=2 --no-install-recommends "$${missing[@]}" >/dev/null

.PHONY: clean
clean: ## remove build results; the tools stay in their cache
	@rm -rf bin
