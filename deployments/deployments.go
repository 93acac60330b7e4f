// Package deployments holds the Helm chart, the manifests rendered from it, and the builder of the
// container image.
package deployments

//go:generate go run ./generate
//go:generate -command helm-docs go run -C ../test/tools github.com/norwoodj/helm-docs/cmd/helm-docs
//go:generate helm-docs --log-level=warning --sort-values-order=file --chart-search-root=../../deployments/helm
