# The tools of checks and tests, at the versions that the go.mod files of this folder pin. Each is
# built from source when a target first needs it, in a folder outside the tree whose name is a hash
# of everything that determines the result. The last step is a rename, so that concurrent makes
# never see an incomplete tool.

tools_cache := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/dra-exporter/tools
tools_folder = $(tools_cache)/$(shell { cat $(1)/go.mod $(1)/go.sum; go env GOVERSION GOOS GOARCH; printf %s '$(2)'; } | sha256sum | cut -c -16)

comma := ,

# $(call tool,variable,module folder,package,build flags)
define tool
$(1) := $(call tools_folder,$(2),$(4))/$(notdir $(3))
$$($(1)):
	@echo "tools: building $$(@F) once, into $$(@D)"
	mkdir -p $$(@D)
	start=$$$$SECONDS
	go build -C $(2) $(4) -ldflags='-s -w' -o $$@.$$$$$$$$ $(3)
	mv $$@.$$$$$$$$ $$@
	echo "tools: $$(@F) took $$$$((SECONDS - start)) s"
endef

$(eval $(call tool,PROMTOOL,test/tools,github.com/prometheus/prometheus/cmd/promtool,-tags=remove_all_sd))
$(eval $(call tool,PROMETHEUS,test/tools,github.com/prometheus/prometheus/cmd/prometheus,-tags=remove_all_sd$(comma)enable_kubernetes_sd))
$(eval $(call tool,PINT,test/tools/pint,github.com/cloudflare/pint/cmd/pint))
$(eval $(call tool,BENCHSTAT,test/tools,golang.org/x/perf/cmd/benchstat))
$(eval $(call tool,GOVULNCHECK,test/tools/vuln,golang.org/x/vuln/cmd/govulncheck))
$(eval $(call tool,GOLANGCI_LINT,test/tools/lint,github.com/golangci/golangci-lint/v2/cmd/golangci-lint))

# Grafana's types and the TypeScript compiler from npm, at the versions of test/tools/schema: a
# folder with node_modules.
SCHEMA := $(tools_cache)/$(shell cat test/tools/schema/package*.json | sha256sum | cut -c -16)/schema
$(SCHEMA):
	@echo "tools: installing Grafana's schema once, into $@"
	mkdir -p $@.$$$$
	cp test/tools/schema/package*.json $@.$$$$
	npm ci --prefix $@.$$$$ --ignore-scripts --no-audit --no-fund --silent
	mv $@.$$$$ $@ || rm -rf $@.$$$$
