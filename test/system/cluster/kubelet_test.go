package cluster

import (
	"testing"

	"github.com/dra-exporter/dra-exporter/test/expect"
)

func TestPublishedModule(t *testing.T) {
	const own = `module k8s.io/kubernetes

go 1.26.0

require (
	github.com/x/y v0.0.0
	k8s.io/api v0.0.0
	k8s.io/utils v0.0.0-20260319190234-28399d86e0b5
)

replace (
	k8s.io/api => ./staging/src/k8s.io/api
)
`
	const want = `module kubelet

go 1.26.0

require (
	github.com/x/y v0.0.0
	k8s.io/api v0.36.3
	k8s.io/utils v0.0.0-20260319190234-28399d86e0b5
)

replace (
	k8s.io/api => k8s.io/api v0.36.3
)

require k8s.io/kubernetes v1.36.3
`
	expect.Equal(t, "module", want, string(publishedModule([]byte(own), "v0.36.3", "v1.36.3")))
}
