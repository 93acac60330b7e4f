# A real one-node Kubernetes cluster, for tests and for manual use. The module in kube takes minutes
# to compile and contains only one main program of ours, so it is not built with the other modules:
# "cluster build" builds it into the user's cache.

code_modules := $(filter-out test/system/cluster/kube,$(code_modules))
unit_modules := $(filter-out test/system/cluster/kube,$(unit_modules))

cluster := bin/cluster
.PHONY: cluster-program
cluster-program:
	@mkdir -p bin
	go build -C test/system/cluster -o '$(CURDIR)/$(cluster)' ./cmd/cluster

# Run this before the tests: a build would use up their time limit.
.PHONY: cluster-build
cluster-build: cluster-program
	@cd test/system/cluster && '$(CURDIR)/$(cluster)' build

# The kubelet versions to test with the newest control plane. Kubernetes supports three versions
# back.
KUBELETS ?= v1.37.0 v1.36.3 v1.35.4 v1.34.4
.PHONY: test-kubelets
test-kubelets: debian_packages += dbus-daemon:dbus-daemon
test-kubelets: deps build cluster-build ## run the scenarios, the long ones too, with older kubelets: KUBELETS='v1.36.3' (each is built once, in minutes)
	@export DRA_EXPORTER='$(CURDIR)/$(program)'
	cd test/system/cluster
	status=0
	for version in $(KUBELETS); do
		echo "== kubelet $$version"
		'$(CURDIR)/$(cluster)' build -kubelet="$$version" &&
			go test -count=1 -timeout=40m ./scenarios -args -long -kubelet="$$version" || status=1
	done
	exit $$status

RUNTIME ?= fake
.PHONY: cluster-up
cluster-up: $(if $(filter containerd,$(RUNTIME)),deps) cluster-program ## start a real Kubernetes of one node, in seconds once it is built (RUNTIME=containerd: with real containers; KUBELET=v1.36.3: with an older kubelet, built in minutes)
	@cd test/system/cluster && '$(CURDIR)/$(cluster)' up -runtime=$(RUNTIME) -kubelet=$(KUBELET)

.PHONY: cluster-record
cluster-record: cluster-program ## save what its kubelet and its API server say: OUT=folder
	@$(cluster) record -- '$(OUT)'

.PHONY: cluster-import
cluster-import: cluster-program ## give the cluster's containerd the image IMAGES=image.tar
	@$(cluster) import -- $(IMAGES)

.PHONY: cluster-down
cluster-down: cluster-program ## stop it
	@$(cluster) down

.PHONY: cluster-kubectl
cluster-kubectl: cluster-program ## run kubectl there: ARGS='get pods -A'
	@$(cluster) kubectl -- $(ARGS)
