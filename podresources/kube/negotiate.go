package kube

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

const resourceGroup = "/apis/resource.k8s.io"

// resourceVersions are the versions of resource.k8s.io that are understood, best first (KUBELET's "Stages": v1 since
// Kubernetes 1.34, v1beta2 1.33, v1beta1 1.32, v1alpha3 1.31; later ones serve other things under that name, beside v1beta1).
func resourceVersions() []string {
	return []string{"v1", "v1beta2", "v1beta1", "v1alpha3", classicVersion}
}

// classicVersion is that of classic DRA, of Kubernetes 1.26 to 1.30. ResourceSlices are there in 1.30 alone.
const classicVersion = "v1alpha2"

const (
	// renegotiate is how long a version is used before it is asked again which there are: an upgrade may bring a better
	// one long before it takes the old one away.
	renegotiate = time.Hour
	// maxDiscovery bounds the answer that lists a group's versions, in bytes.
	maxDiscovery = 1 << 20
	// discoveryTimeout bounds that request.
	discoveryTimeout = 10 * time.Second
)

// negotiator knows which version of resource.k8s.io to use. It may be used by several goroutines at once.
type negotiator struct {
	api API
	now func() time.Time
	one chan struct{} // holds what lets one at a time ask

	mu      sync.Mutex
	version string
	until   time.Time
}

func newNegotiator(api API, now func() time.Time) *negotiator {
	n := &negotiator{api: api, now: now, one: make(chan struct{}, 1)}
	n.one <- struct{}{}
	return n
}

// path returns where the resource (resourceslices, or namespaces/NS/resourceclaims/NAME) is, and in which version.
func (n *negotiator) path(ctx context.Context, resource string) (path, version string, err error) {
	version, fresh := n.known()
	if !fresh {
		if version, err = n.renew(ctx); err != nil {
			return "", "", err
		}
	}
	return resourceGroup + "/" + version + "/" + resource, version, nil
}

// renew asks which version to use. Where that can not be told, the one that was used before is.
func (n *negotiator) renew(ctx context.Context) (string, error) {
	select {
	case <-n.one:
	case <-ctx.Done():
		return "", fmt.Errorf("negotiate version: %w", ctx.Err())
	}
	defer func() { n.one <- struct{}{} }()
	before, fresh := n.known()
	if fresh { // somebody asked while this one waited
		return before, nil
	}
	version, err := n.negotiate(ctx)
	switch {
	case err == nil:
		n.set(version)
		return version, nil
	case before != "":
		return before, nil
	default:
		return "", err
	}
}

// known returns the version that was negotiated last, and whether it needs not be asked for again.
func (n *negotiator) known() (version string, fresh bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.version, n.version != "" && !n.now().After(n.until)
}

func (n *negotiator) set(version string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.version, n.until = version, n.now().Add(renegotiate)
}

// forget has the version asked anew: a path of it was not found.
func (n *negotiator) forget() { n.set("") }

func (n *negotiator) negotiate(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, discoveryTimeout)
	defer cancel()
	var group struct {
		Versions []struct {
			Version string `json:"version"`
		} `json:"versions"`
	}
	if err := getJSON(ctx, n.api, resourceGroup, maxDiscovery, &group); err != nil {
		return "", fmt.Errorf("negotiate version: %w", err)
	}
	var served []string
	for _, v := range group.Versions {
		served = append(served, v.Version)
	}
	for _, version := range resourceVersions() {
		if slices.Contains(served, version) {
			return version, nil
		}
	}
	return "", fmt.Errorf("negotiate version: %w: it serves %.200q", errNotServed, served)
}
