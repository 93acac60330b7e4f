# The files of a release. Nothing is uploaded: a person checks bin/release first.

# A commit without a tag is a pre-release of the chart's version, since SemVer requires three
# numbers.
release_version = $(if $(findstring .,$(VERSION)),$(VERSION),$(shell sed -n 's/^version: //p' deployments/helm/dra-exporter/Chart.yaml)-dev.g$(VERSION))
# The C compiler for the other architecture, from the Debian package gcc-aarch64-linux-gnu. If it is
# missing, that program is omitted.
cross_arm64 := aarch64-linux-gnu-gcc
cross_amd64 := x86_64-linux-gnu-gcc

.PHONY: release
release: ## build a release in bin/release: programs, images, chart, checksums; uploads nothing
	@programs=$$(mktemp -d)
	trap 'rm -rf "$$programs"' EXIT
	for arch in amd64 arm64; do
		echo "release: linux/$$arch without cgo"
		CGO_ENABLED=0 GOARCH=$$arch go build -trimpath -ldflags='$(release_ldflags)' -o "$$programs/linux-$$arch-purego" ./exporter/cmd/dra-exporter
		case $$arch in amd64) cc=$(cross_amd64) ;; arm64) cc=$(cross_arm64) ;; esac
		command -v "$$cc" >/dev/null || { echo "release: no $$cc: linux/$$arch with cgo is left out" >&2; continue; }
		echo "release: linux/$$arch with cgo"
		CGO_ENABLED=1 CC=$$cc GOARCH=$$arch go build -trimpath -ldflags='$(release_ldflags)' -o "$$programs/linux-$$arch" ./exporter/cmd/dra-exporter
	done
	cd deployments
	go run ./release -tree=.. -programs="$$programs" -out='$(CURDIR)/bin/release' -image='$(IMAGE)' -version='$(release_version)' \
		-revision='$(REVISION)' -created='$(call git,log -1 --format=%ct)'
	ls -l '$(CURDIR)/bin/release'

release_ldflags = $(subst .Version=$(VERSION),.Version=$(release_version),$(ldflags)) -s -w
