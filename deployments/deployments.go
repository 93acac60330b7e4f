// Package deployments holds what installs dra-exporter: the Helm chart, the manifests rendered from it, and the image's root file
// system.
package deployments

//go:generate go run ./generate
