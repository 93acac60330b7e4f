package kube

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/url"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dra-exporter/dra-exporter/podresources"
)

// Bounds of what a [Finder] reads for one answer.
const (
	maxFound     = 16 << 20 // bytes of all EndpointSlices of a Service
	maxFoundPods = 16       // of a claim that are asked for their nodes
)

// Finder finds the nodes of claims and pods, and the exporters of a Service, by requests
// to the API server. It keeps only the version of resource.k8s.io, and is safe for concurrent use.
// An object that does not exist has no node; that is not an error. Errors have a method Reason.
type Finder struct {
	api      API
	versions *versions
}

// NewFinder returns a finder. It does not connect.
func NewFinder(api API) *Finder {
	return &Finder{api: api, versions: &versions{api: api, list: resourceVersions()}}
}

// ClaimNodes returns the nodes that may use a claim, sorted: the one that its allocation names,
// else those of the pods for which it is reserved.
func (f *Finder) ClaimNodes(ctx context.Context, namespace, name string) ([]string, error) {
	var claim claimObject
	if found, err := f.get(ctx, &claim, func(ctx context.Context) (io.ReadCloser, error) {
		return f.versions.claim(ctx, podresources.Claim{Namespace: namespace, Name: name})
	}); err != nil || !found {
		return nil, err
	}
	if allocation := claim.Status.Allocation; allocation != nil {
		if node := selectedNode(allocation.NodeSelector); node != "" {
			return []string{node}, nil
		}
	}
	var nodes []string
	for i, r := range claim.Status.ReservedFor {
		if r.Resource != "pods" || i == maxFoundPods {
			break
		}
		node, err := f.PodNode(ctx, namespace, r.Name)
		if err != nil {
			return nil, err
		}
		if node != "" {
			nodes = append(nodes, node)
		}
	}
	slices.Sort(nodes)
	return slices.Compact(nodes), nil
}

// selectedNode returns the node that is selected by its name, as of a claim of devices of a node,
// "" if other nodes may match.
func selectedNode(s *corev1.NodeSelector) string {
	if s == nil || len(s.NodeSelectorTerms) != 1 {
		return ""
	}
	for _, f := range s.NodeSelectorTerms[0].MatchFields {
		if f.Key == metav1.ObjectNameField && f.Operator == corev1.NodeSelectorOpIn && len(f.Values) == 1 {
			return f.Values[0]
		}
	}
	return ""
}

// PodNode returns the node that a pod is bound to, "" for none.
func (f *Finder) PodNode(ctx context.Context, namespace, name string) (string, error) {
	var pod corev1.Pod
	_, err := f.get(ctx, &pod, func(ctx context.Context) (io.ReadCloser, error) {
		return f.api.Get(ctx, podPath(namespace, name), nil)
	})
	return pod.Spec.NodeName, err
}

// Exporters returns the addresses (HOST:PORT) of the endpoints of a Service, by node, for endpoints
// that are pods with a known node: of several pods on a node, one that is not terminating. port is
// the name of the Service's port.
func (f *Finder) Exporters(ctx context.Context, namespace, service, port string) (map[string]string, error) {
	path := "/apis/discovery.k8s.io/v1/namespaces/" + url.PathEscape(namespace) + "/endpointslices"
	query := url.Values{"labelSelector": {discoveryv1.LabelServiceName + "=" + service}, "resourceVersion": {"0"}}
	var list discoveryv1.EndpointSliceList
	if err := fetch(ctx, maxFound, &list, func(ctx context.Context) (io.ReadCloser, error) {
		return f.api.Get(ctx, path, query)
	}); err != nil {
		return nil, err
	}
	out, ending := map[string]string{}, map[string]bool{}
	for n := range list.Items {
		slice := &list.Items[n]
		if slice.AddressType == discoveryv1.AddressTypeFQDN {
			continue
		}
		at := slices.IndexFunc(slice.Ports, func(p discoveryv1.EndpointPort) bool {
			return p.Name != nil && *p.Name == port && p.Port != nil
		})
		if at < 0 {
			continue
		}
		for i := range slice.Endpoints {
			e := &slice.Endpoints[i]
			if e.NodeName == nil || e.TargetRef == nil || e.TargetRef.Kind != "Pod" || len(e.Addresses) == 0 {
				continue
			}
			ends := e.Conditions.Terminating != nil && *e.Conditions.Terminating
			if _, has := out[*e.NodeName]; !has || ending[*e.NodeName] && !ends {
				out[*e.NodeName] = net.JoinHostPort(e.Addresses[0], fmt.Sprint(*slice.Ports[at].Port))
				ending[*e.NodeName] = ends
			}
		}
	}
	return out, nil
}

// get decodes an object, and reports whether it exists.
func (f *Finder) get(ctx context.Context, into any, get func(context.Context) (io.ReadCloser, error)) (bool, error) {
	err := fetch(ctx, maxObjectSize, into, get)
	if apierrors.IsNotFound(err) && !isPathMissing(err) {
		return false, nil
	}
	return err == nil, err
}
