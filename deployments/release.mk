# The files of a release. Nothing is uploaded: a person checks bin/release first.

# A commit without a tag is a pre-release of the chart's version, since SemVer requires three
# numbers.
release_version = $(if $(findstring .,$(VERSION)),$(VERSION),$(shell sed -n 's/^version: //p' deployments/helm/dra-exporter/Chart.yaml)-dev.g$(VERSION))
# The C compiler for the other architecture, from the Debian package gcc-aarch64-linux-gnu. If it is
# missing, that program is omitted.
cross_arm64 := aarch64-linux-gnu-gcc
cross_amd64 := x86_64-linux-gnu-gcc

created = $(call git,log -1 --format=%ct)
# The same input gives the same bytes.
pack = tar --format=ustar --sort=name --mtime=@$(created) --owner=0 --group=0 --numeric-owner --mode=u+rw,go=rX

.PHONY: release
release: ## build a release in bin/release: programs, images, chart, checksums; uploads nothing
	@work=$$(mktemp -d)
	trap 'rm -rf "$$work"' EXIT
	out='$(CURDIR)/bin/release'
	rm -rf "$$out"
	mkdir -p "$$out"
	for arch in amd64 arm64; do
		case $$arch in amd64) cc=$(cross_amd64) ;; arm64) cc=$(cross_arm64) ;; esac
		for cgo in 0 1; do
			name=dra-exporter-$(release_version).linux-$$arch
			[ $$cgo = 1 ] || name+=-purego
			[ $$cgo = 0 ] || command -v "$$cc" >/dev/null || { echo "release: no $$cc: $$name is left out" >&2; continue; }
			echo "release: $$name"
			mkdir "$$work/$$name"
			CGO_ENABLED=$$cgo CC=$$cc GOARCH=$$arch go build -trimpath -ldflags='$(release_ldflags)' -o "$$work/$$name/dra-exporter" ./exporter/cmd/dra-exporter
			cp CHANGELOG.md LICENSE README.md "$$work/$$name"
			$(pack) -C "$$work" -c "$$name" | gzip -n >"$$out/$$name.tar.gz"
			[ $$cgo = 0 ] || go run -C deployments ./image/tar -program="$$work/$$name/dra-exporter" -out="$$out/$$name.image.tar" \
				-name='$(IMAGE):$(release_version)' -version='$(release_version)' -revision='$(REVISION)' -created='$(created)'
		done
	done
	cp -r deployments/helm/dra-exporter "$$work/dra-exporter"
	sed -i -E 's/^((app)?[vV]ersion: ).*/\1$(release_version)/; s,^( +image: .*):[^:]*$$,\1:$(release_version),' "$$work/dra-exporter/Chart.yaml"
	$(pack) --exclude-from=deployments/helm/dra-exporter/.helmignore -C "$$work" -c dra-exporter | gzip -n >"$$out/dra-exporter-$(release_version).tgz"
	cd "$$out"
	sha256sum -- * >"$$work/SHA256SUMS"
	mv "$$work/SHA256SUMS" .
	ls -l

release_ldflags = $(subst .Version=$(VERSION),.Version=$(release_version),$(ldflags)) -s -w
