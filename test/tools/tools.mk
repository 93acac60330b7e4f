# The tools of checks and tests, at the versions that the go.mod files of this folder pin. Each is
# built from source when a target first needs it, in a folder outside the tree whose name is a hash
# of everything that determines the result. The last step is a rename, so that concurrent makes
# never see an incomplete tool.

tools_cache := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/dra-exporter/tools
tools_folder = $(tools_cache)/$(shell { cat $(1)/go.mod $(1)/go.sum $(wildcard $(1)/*/*.go); go env GOVERSION GOOS GOARCH; printf %s '$(2)'; } | sha256sum | cut -c -16)

comma := ,

# $(call tool,variable,module folder,package,build flags)
define tool
$(1) := $(call tools_folder,$(2),$(4))/$(notdir $(3))
$$($(1)):
	@echo "tools: building $$(@F) once, into $$(@D); this takes up to ten minutes"
	mkdir -p $$(@D)
	start=$$$$SECONDS
	go build -C $(2) $(4) -ldflags='-s -w' -o $$@.$$$$$$$$ $(3)
	mv $$@.$$$$$$$$ $$@
	echo "tools: $$(@F) took $$$$((SECONDS - start)) s"
endef

$(eval $(call tool,PROMTOOL,test/tools,github.com/prometheus/prometheus/cmd/promtool,-tags=remove_all_sd))
$(eval $(call tool,PROMETHEUS,test/tools,github.com/prometheus/prometheus/cmd/prometheus,-tags=remove_all_sd$(comma)enable_kubernetes_sd))
# The proxy at which people log in, in front of the gateway.
$(eval $(call tool,OAUTH2_PROXY,test/tools/services,github.com/oauth2-proxy/oauth2-proxy/v7,))
# The programs of other stacks that make test-integrations runs.
$(eval $(call tool,OTELCOL,test/tools/services,./otelcol,-tags=remove_all_sd$(comma)enable_kubernetes_sd))
$(eval $(call tool,VMAGENT,test/tools/victoriametrics,github.com/VictoriaMetrics/VictoriaMetrics/app/vmagent,))
$(eval $(call tool,VMALERT,test/tools/victoriametrics,github.com/VictoriaMetrics/VictoriaMetrics/app/vmalert,))
$(eval $(call tool,VICTORIAMETRICS,test/tools/victoriametrics,github.com/VictoriaMetrics/VictoriaMetrics/app/victoria-metrics,))
$(eval $(call tool,PROMETHEUS_ADAPTER,test/tools/prometheus-adapter,sigs.k8s.io/prometheus-adapter/cmd/adapter,))
$(eval $(call tool,PINT,test/tools,github.com/cloudflare/pint/cmd/pint))
$(eval $(call tool,GOTESTSUM,test/tools,gotest.tools/gotestsum))
$(eval $(call tool,BENCHSTAT,test/tools,golang.org/x/perf/cmd/benchstat))
$(eval $(call tool,GOVULNCHECK,test/tools,golang.org/x/vuln/cmd/govulncheck))
$(eval $(call tool,GOLANGCI_LINT,test/tools,github.com/golangci/golangci-lint/v2/cmd/golangci-lint))

# $(call packages,variable,folder): a folder with the node_modules of the package.json of a folder.
define packages
$(1) := $(tools_cache)/$(shell cat $(2)/package*.json | sha256sum | cut -c -16)/$(notdir $(2))
$$($(1)):
	@echo "tools: installing the packages of $(2) once, into $$@"
	mkdir -p $$@.$$$$$$$$
	cp $(2)/package*.json $$@.$$$$$$$$
	npm ci --prefix $$@.$$$$$$$$ --legacy-peer-deps --ignore-scripts --no-audit --no-fund --silent
	mv $$@.$$$$$$$$ $$@ || rm -rf $$@.$$$$$$$$
endef

# Grafana's types and the TypeScript compiler.
$(eval $(call packages,SCHEMA,test/tools/schema))
# Grafana's components and esbuild.
$(eval $(call packages,PICTURES,test/system/dashboards/screenshots/page))
