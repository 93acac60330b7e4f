package kube

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

const resourceGroup = "/apis/resource.k8s.io"

// resourceVersions are the supported versions of resource.k8s.io, best first (KUBELET's "Stages":
// v1 since Kubernetes 1.34, v1beta2 1.33, v1beta1 1.32, v1alpha3 1.31; later ones serve other
// things under that name, beside v1beta1).
func resourceVersions() []string {
	return []string{"v1", "v1beta2", "v1beta1", "v1alpha3", classicVersion}
}

// classicVersion is the version of classic DRA in Kubernetes 1.26 to 1.30. Only 1.30 has
// ResourceSlices in it.
const classicVersion = "v1alpha2"

// maxDiscovery bounds the answer that lists a group's versions, in bytes.
const maxDiscovery = 1 << 20

// negotiator chooses the version of resource.k8s.io. It is safe for concurrent use.
type negotiator struct {
	api API
	now func() time.Time
	one chan struct{} // a semaphore for one request at a time

	mu      sync.Mutex
	version string
	all     []string // that are served, of all that there are; never changed
	until   time.Time
}

func newNegotiator(api API, now func() time.Time) *negotiator {
	n := &negotiator{api: api, now: now, one: make(chan struct{}, 1)}
	n.one <- struct{}{}
	return n
}

// path returns the path of the resource (resourceslices, or namespaces/NS/resourceclaims/NAME) and
// its version.
func (n *negotiator) path(ctx context.Context, resource string) (path, version string, err error) {
	version, err = n.current(ctx)
	if err != nil {
		return "", "", err
	}
	return resourceGroup + "/" + version + "/" + resource, version, nil
}

// served returns all versions of the group that are served.
func (n *negotiator) served(ctx context.Context) ([]string, error) {
	if _, err := n.current(ctx); err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.all, nil
}

// current returns the version to use.
func (n *negotiator) current(ctx context.Context) (string, error) {
	version, fresh := n.known()
	if fresh {
		return version, nil
	}
	return n.renew(ctx)
}

// renew negotiates the version. If that fails, it returns the version that was used before.
func (n *negotiator) renew(ctx context.Context) (string, error) {
	select {
	case <-n.one:
	case <-ctx.Done():
		return "", fmt.Errorf("negotiate version: %w", ctx.Err())
	}
	defer func() { n.one <- struct{}{} }()
	before, fresh := n.known()
	if fresh { // another goroutine has negotiated meanwhile
		return before, nil
	}
	version, served, err := n.negotiate(ctx)
	switch {
	case err == nil:
		n.set(version, served)
		return version, nil
	case before != "":
		return before, nil
	default:
		return "", err
	}
}

// known returns the last negotiated version, and whether it is still fresh.
func (n *negotiator) known() (version string, fresh bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.version, n.version != "" && !n.now().After(n.until)
}

func (n *negotiator) set(version string, served []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.version, n.all, n.until = version, served, n.now().Add(renegotiate)
}

// forget makes the next caller negotiate again, since a path was not found.
func (n *negotiator) forget() { n.set("", nil) }

// negotiate returns the best version that is served, and all that are.
func (n *negotiator) negotiate(ctx context.Context) (version string, served []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, discoveryTimeout)
	defer cancel()
	var group struct {
		Versions []struct {
			Version string `json:"version"`
		} `json:"versions"`
	}
	if err := getJSON(ctx, n.api, resourceGroup, maxDiscovery, &group); err != nil {
		return "", nil, fmt.Errorf("negotiate version: %w", err)
	}
	for _, v := range group.Versions {
		served = append(served, v.Version)
	}
	for _, version := range resourceVersions() {
		if slices.Contains(served, version) {
			return version, served, nil
		}
	}
	return "", nil, fmt.Errorf("negotiate version: %w: it serves %.200q", errNotServed, served)
}
