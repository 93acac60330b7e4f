package kube

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"sync"
	"time"

	"github.com/dra-exporter/dra-exporter/podresources"
)

const resourceGroup = "/apis/resource.k8s.io"

// resourceVersions are the supported versions of resource.k8s.io, best first (KUBELET's "Stages":
// v1 since Kubernetes 1.34, v1beta2 1.33, v1beta1 1.32, v1alpha3 1.31; later ones serve other
// things under that name, beside v1beta1).
func resourceVersions() []string {
	return []string{"v1", "v1beta2", "v1beta1", "v1alpha3"}
}

// versions requests objects of resource.k8s.io in the best version that is served, which it finds
// by trying them. It is safe for concurrent use.
type versions struct {
	api  API
	now  func() time.Time
	list []string // best first

	mu    sync.Mutex
	used  string   // "": not known yet
	tried []string // until then: the one in use first; none shortly after none was served
	until time.Time
}

func newVersions(api API, now func() time.Time, list []string) *versions {
	return &versions{api: api, now: now, list: list}
}

// get opens the response to a GET of a resource (resourceslices, or
// namespaces/NS/resourceclaims/NAME) with a query.
func (v *versions) get(ctx context.Context, resource string, query url.Values) (io.ReadCloser, error) {
	var err error
	for _, version := range v.order() {
		var body io.ReadCloser
		body, err = v.api.Get(ctx, resourceGroup+"/"+version+"/"+resource, query)
		if !isPathMissing(err) {
			v.served(version, err)
			return body, err
		}
	}
	if err == nil {
		return nil, errNotServed
	}
	v.set("")
	return nil, fmt.Errorf("%w: %w", errNotServed, err)
}

// order returns the versions to try.
func (v *versions) order() []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.now().After(v.until) {
		return v.list
	}
	return v.tried
}

// served records that the path of a version exists, if an answer proves it.
func (v *versions) served(version string, err error) {
	v.mu.Lock()
	fresh := v.used == version && !v.now().After(v.until)
	v.mu.Unlock()
	if err == nil && !fresh {
		v.set(version)
	}
}

func (v *versions) set(version string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.used, v.tried, v.until = version, nil, v.now().Add(maxDelayPermanent)
	if version != "" {
		v.tried, v.until = append([]string{version}, v.list...), v.now().Add(renegotiate)
	}
}

// known returns the version in use.
func (v *versions) known() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.used
}

// claim opens the response to a GET of a claim.
func (v *versions) claim(ctx context.Context, claim podresources.Claim) (io.ReadCloser, error) {
	path := "namespaces/" + url.PathEscape(claim.Namespace) + "/resourceclaims/" + url.PathEscape(claim.Name)
	return v.get(ctx, path, nil)
}
