# `make help` lists the targets. Whatever checks or tests does so for every go.mod of the tree.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DELETE_ON_ERROR:
.SUFFIXES:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory --no-builtin-rules

export PATH := $(PATH):/usr/sbin:/sbin
export GOWORK := off
# The version comes from VERSION and git below, so go need not ask git, which refuses a clone of somebody else's.
# NVIDIA's headers mark functions as deprecated, and the bindings call them all.
export CGO_CFLAGS ?= -g -O2 -Wno-deprecated-declarations
export GOFLAGS := $(strip $(GOFLAGS) -buildvcs=false)

include test/tools/tools.mk

modules := $(sort $(patsubst ./%,%,$(patsubst %/,%,$(dir $(shell find . -name go.mod -not -path '*/.*/*' -not -path '*/testdata/*' -not -path '*/node_modules/*')))))
# The modules of test/tools hold versions of tools and no code. Those of system tests run built programs, so they wait for test-e2e.
code_modules := $(filter-out test/tools test/tools/%,$(modules))
system_modules := $(filter test/e2e test/accuracy test/cluster test/dashboards test/deploy,$(code_modules))
slow_modules := $(filter test/accuracy,$(system_modules))
unit_modules := $(filter-out $(system_modules),$(code_modules))
-include test/cluster/cluster.mk deployments/release.mk

# $(call each,modules,command): runs the command in every module, all of them even when one fails.
define each
status=0
for module in $(1); do
	echo "== $$module: $(strip $(2))"
	(cd "$$module" && $(2)) || status=1
done
exit $$status
endef

program := bin/dra-exporter
git = $(shell TZ=UTC git -c safe.directory='*' $(1) 2>/dev/null)
VERSION ?= $(patsubst v%,%,$(call git,describe --tags --always --dirty))
REVISION ?= $(call git,rev-parse HEAD)
BUILD_DATE ?= $(call git,log -1 --date=format-local:%Y-%m-%dT%H:%M:%SZ --format=%cd)
# No branch: a commit is on many, and gives the same bytes.
stamp = -X github.com/prometheus/common/version.$(strip $(1))=$(2)
ldflags = $(call stamp,Version,$(or $(VERSION),unknown)) \
	$(call stamp,Revision,$(REVISION)) \
	$(call stamp,BuildDate,$(BUILD_DATE))

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: run
run: ## serve a node of simulated devices on :10985 until Ctrl-C, or for FOR=60s
	@mkdir -p bin
	go build -o bin/demo ./test/demo
	exec bin/demo $(if $(FOR),--for=$(FOR)) $(ARGS)

.PHONY: build
build: ## build bin/dra-exporter; the same commit gives the same bytes
	@mkdir -p $(dir $(program))
	go build -trimpath -ldflags='$(ldflags)' -o $(program) ./exporter/cmd/dra-exporter
	echo "$(program): version $(or $(VERSION),unknown)"

IMAGE ?= ghcr.io/dra-exporter/dra-exporter
.PHONY: image
image: ## build the container image IMAGE=name with docker, podman or buildah, whichever is there first, or with ENGINE=podman
	@engine=$${ENGINE:-$$(command -v docker || command -v podman || command -v buildah || true)}
	[ -n "$$engine" ] || { echo "neither docker, podman nor buildah is here; make image-tar needs none" >&2; exit 1; }
	"$$engine" build --build-arg VERSION='$(VERSION)' --build-arg REVISION='$(REVISION)' --build-arg BUILD_DATE='$(BUILD_DATE)' -t '$(IMAGE):$(VERSION)' .

.PHONY: image-tar
image-tar: build ## build the same image without engine or registry, as an OCI layout: bin/image.tar
	@cd deployments
	go run ./image/tar -program='$(CURDIR)/$(program)' -out='$(CURDIR)/bin/image.tar' -name='$(IMAGE):$(VERSION)' -version='$(VERSION)' \
		-revision='$(REVISION)' -created='$(call git,log -1 --format=%ct)'
	echo "bin/image.tar: $(IMAGE):$(VERSION)"

.PHONY: test
test: deps ## run the unit tests of every module, under the race detector where code of ours is concurrent, and build without cgo
	@echo "== CGO_ENABLED=0 go build ./..."
	CGO_ENABLED=0 go build ./...
	echo "== the property tests of ./exporter in full"
	go test ./exporter
	$(call each,$(unit_modules),go test $$([ "$$module" = deployments ] || echo -race) -timeout=30m ./...)

.PHONY: test-e2e
test-e2e: deps build cluster-build $(PROMTOOL) $(PROMETHEUS) $(PINT) $(SCHEMA) ## run the system tests: the real program, end to end, and the accuracy of its figures
	@$(MAKE) --keep-going -j2 test-e2e-slow test-e2e-busy

# The pods of test/accuracy take their time and next to no CPU, but that at once: it runs beside the others, and before them where it may.
.PHONY: test-e2e-slow test-e2e-busy
test-e2e-slow:
	@[ "$$(id -u)" != 0 ] || renice -n -10 $$$$ >/dev/null
	$(call system_tests,$(slow_modules),-v)
test-e2e-busy:
	@$(call system_tests,$(filter-out $(slow_modules),$(system_modules)),)

.PHONY: accuracy
accuracy: build $(PROMETHEUS) ## print how far the figures of short pods are from the truth
	@$(call system_tests,$(slow_modules),-v)

# $(call system_tests,modules,flags): -count=1, since go's cache of results can't see the programs change; -p=1, since they
# measure and wait, and have the machine to themselves.
define system_tests
[ -n "$(1)" ] || { echo "there is no module of system tests to run" >&2; exit 1; }
export VERSION="$(VERSION)" REVISION="$(REVISION)" DRA_EXPORTER="$(CURDIR)/$(program)" PROMTOOL="$(PROMTOOL)" PROMETHEUS="$(PROMETHEUS)" PINT="$(PINT)" SCHEMA="$(SCHEMA)"
$(call each,$(1),go test -count=1 -p=1 -timeout=20m $(2) ./...)
endef

.PHONY: test-gpu
test-gpu: ## compare what is read of NVIDIA GPUs with nvidia-smi; says loudly where there is none; RECORD=DIR records it
	@go test -count=1 -v -run 'AgainstNvidiaSMI|Recordings' ./test/gpu $(if $(RECORD),-args -record=$(abspath $(RECORD)))

BENCH ?= .
COUNT ?= 6
.PHONY: bench
bench: $(if $(OLD),$(BENCHSTAT)) ## run the benchmarks (BENCH=regexp COUNT=6), compared with the file OLD= where given
	@mkdir -p bin
	{ $(call each,$(unit_modules),go test -run='^$$' -bench='$(BENCH)' -benchmem -count=$(COUNT) ./...) ; } | tee bin/bench.txt
	echo "kept in bin/bench.txt: copy it, and name the copy as OLD= of a later run"
	$(if $(OLD),$(BENCHSTAT) $(OLD) bin/bench.txt)

FUZZ ?= .
FUZZTIME ?= 10s
.PHONY: fuzz
fuzz: ## run every fuzz test that matches FUZZ=regexp for FUZZTIME=10s
	@mapfile -t tests < <(grep -roP --include='*_test.go' '^func \KFuzz\w+' . | grep -E ':.*($(FUZZ))' | sort)
	[ "$${#tests[@]}" -gt 0 ] || { echo "no fuzz test matches $(FUZZ)" >&2; exit 1; }
	status=0
	for test in "$${tests[@]}"; do
		folder=$$(dirname "$${test%%:*}") name=$${test#*:}
		echo "== $$folder: $$name for $(FUZZTIME)"
		go test -C "$$folder" -run='^$$' -fuzz="^$$name\$$" -fuzztime=$(FUZZTIME) . || status=1
	done
	exit $$status

.PHONY: generate
generate: ## write the generated files anew
	@$(call each,$(code_modules),go generate ./...)

# What a tree holds, as far as git does not ignore it. A file that was deleted has no sum, which is right.
fingerprint = git -c safe.directory='*' ls-files -coz --exclude-standard | sort -zu | { xargs -0 sha256sum 2>/dev/null || true; }

.PHONY: verify
verify: ## check that generated files, go.mod and go.sum are what they would be made anew, and that modules are what go.sum says
	@before=$$(mktemp)
	trap 'rm -f "$$before"' EXIT
	$(fingerprint) >"$$before"
	$(MAKE) generate
	$(fingerprint) | diff "$$before" - || { echo "generated files are stale: commit what 'make generate' has written" >&2; exit 1; }
	printf '%s\n' $(modules) | xargs -P2 -I{} bash -c 'cd "$$1" && go mod tidy -diff && go mod verify >/dev/null && echo "== $$1: go.mod and go.sum are tidy and true"' _ {}

.PHONY: fmt
fmt: $(GOLANGCI_LINT) ## format the code (gofumpt, imports in order)
	@$(call each,$(code_modules),$(GOLANGCI_LINT) fmt --config='$(CURDIR)/.golangci.yml')

.PHONY: lint
lint: $(GOLANGCI_LINT) ## run the linters
	@$(call each,$(code_modules),$(GOLANGCI_LINT) run --allow-serial-runners --config='$(CURDIR)/.golangci.yml')

.PHONY: tools
tools: $(PROMTOOL) $(PROMETHEUS) $(PINT) $(SCHEMA) $(BENCHSTAT) $(GOLANGCI_LINT) ## build every tool that the other targets use
	@printf '%s\n' $^

# Debian packages that tests need, as COMMAND:PACKAGE.
debian_packages := ip:iproute2 npm:npm runc:runc /usr/lib/cni/bridge:containernetworking-plugins

.PHONY: screenshots
screenshots: $(PROMETHEUS) ## draw the pictures of the dashboards from the demo (needs npm and chromium)
	@PROMETHEUS="$(PROMETHEUS)" test/dashboards/screenshots/draw.sh

.PHONY: deps
deps: ## install the Debian packages that tests need, where they are missing
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
clean: ## remove what the build made; the tools stay in their cache
	@rm -rf bin
