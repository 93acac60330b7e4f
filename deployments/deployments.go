// Package deployments holds the Helm chart, the manifests rendered from it, and the builder of the
// container image.
package deployments

//go:generate go run ./generate
