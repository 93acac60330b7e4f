package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Bounds of what a [Finder] reads for one answer.
const (
	maxFoundSlices   = 64 << 20 // bytes of slices of one driver
	maxEndpointSlice = 16 << 20 // bytes of all EndpointSlices of a Service
	maxFoundPods     = 16       // of a claim that are asked for their nodes
	slicesOfPage     = 50
)

// Finder finds the nodes of claims, pods and devices, and the exporters of a Service, by requests
// to the API server. It keeps only the version of resource.k8s.io, and is safe for concurrent use.
// An object that does not exist has no node; that is not an error. Errors have a method Reason.
type Finder struct {
	api      API
	versions *negotiator
}

// NewFinder returns a finder. It does not connect.
func NewFinder(api API) *Finder { return &Finder{api: api, versions: newNegotiator(api, time.Now)} }

// ClaimNodes returns the nodes that may use a claim, sorted: the one that its allocation names,
// else those of the pods for which it is reserved.
func (f *Finder) ClaimNodes(ctx context.Context, namespace, name string) ([]string, error) {
	path, _, err := f.versions.path(ctx,
		"namespaces/"+url.PathEscape(namespace)+"/resourceclaims/"+url.PathEscape(name))
	if err != nil {
		return nil, withReason(err)
	}
	var claim struct {
		Status struct {
			Allocation struct {
				NodeSelector nodeSelector `json:"nodeSelector"`
			} `json:"allocation"`
			ReservedFor []struct {
				Resource string `json:"resource"`
				Name     string `json:"name"`
			} `json:"reservedFor"`
		} `json:"status"`
	}
	if found, err := f.get(ctx, path, &claim); err != nil || !found {
		return nil, err
	}
	if node := claim.Status.Allocation.NodeSelector.node(); node != "" {
		return []string{node}, nil
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

// nodeSelector has the used fields of a node selector: a claim of devices of a node selects it by
// its name.
type nodeSelector struct {
	Terms []struct {
		MatchFields []struct {
			Key      string   `json:"key"`
			Operator string   `json:"operator"`
			Values   []string `json:"values"`
		} `json:"matchFields"`
	} `json:"nodeSelectorTerms"`
}

// node returns the node that is selected by its name, "" if other nodes may match.
func (s nodeSelector) node() string {
	if len(s.Terms) != 1 {
		return ""
	}
	for _, f := range s.Terms[0].MatchFields {
		if f.Key == "metadata.name" && f.Operator == "In" && len(f.Values) == 1 {
			return f.Values[0]
		}
	}
	return ""
}

// PodNode returns the node that a pod is bound to, "" for none.
func (f *Finder) PodNode(ctx context.Context, namespace, name string) (string, error) {
	var pod struct {
		Spec struct {
			NodeName string `json:"nodeName"`
		} `json:"spec"`
	}
	_, err := f.get(ctx, "/api/v1/namespaces/"+url.PathEscape(namespace)+"/pods/"+url.PathEscape(name), &pod)
	return pod.Spec.NodeName, err
}

// DeviceNode returns the node of the slice that has a device, "" if no slice that names a node has
// it. Slices whose pool has the name of a node are read first, since most drivers name pools after
// nodes.
func (f *Finder) DeviceNode(ctx context.Context, driverName, pool, device string) (string, error) {
	for _, selector := range []string{
		"spec.driver=" + driverName + ",spec.nodeName=" + pool, "spec.driver=" + driverName,
	} {
		if strings.Contains(pool, "/") && strings.Contains(selector, pool) {
			continue // no node is called so
		}
		node, err := f.deviceNode(ctx, selector, pool, device)
		if err != nil || node != "" {
			return node, err
		}
	}
	return "", nil
}

func (f *Finder) deviceNode(ctx context.Context, selector, pool, device string) (node string, err error) {
	path, _, err := f.versions.path(ctx, "resourceslices")
	if err != nil {
		return "", withReason(err)
	}
	query := url.Values{"fieldSelector": {selector}, "limit": {fmt.Sprint(slicesOfPage)}}
	left := maxFoundSlices
	for {
		p := page{bounds: bounds{page: left, object: maxObjectSize}, add: func(object json.RawMessage) {
			left -= len(object)
			node = cmp.Or(node, nodeOfDevice(object, pool, device))
		}}
		if err := f.list(ctx, path, query, &p); err != nil || node != "" || p.metadata.Continue == "" {
			return node, err
		}
		query.Set("continue", p.metadata.Continue)
	}
}

// nodeOfDevice returns the node of a slice if it has a device of a pool.
func nodeOfDevice(object json.RawMessage, pool, device string) string {
	var slice struct {
		Spec struct {
			NodeName string `json:"nodeName"`
			Pool     struct {
				Name string `json:"name"`
			} `json:"pool"`
			Devices []struct {
				Name string `json:"name"`
			} `json:"devices"`
		} `json:"spec"`
	}
	if json.Unmarshal(object, &slice) != nil || slice.Spec.Pool.Name != pool {
		return ""
	}
	for _, d := range slice.Spec.Devices {
		if d.Name == device {
			return slice.Spec.NodeName
		}
	}
	return ""
}

// Exporters returns the addresses (HOST:PORT) of the endpoints of a Service, by node, for endpoints
// that are pods with a known node: of several pods on a node, one that is not terminating. port is
// the name of the Service's port.
func (f *Finder) Exporters(ctx context.Context, namespace, service, port string) (map[string]string, error) {
	path := "/apis/discovery.k8s.io/v1/namespaces/" + url.PathEscape(namespace) + "/endpointslices"
	query := url.Values{"labelSelector": {discoveryv1.LabelServiceName + "=" + service}, "resourceVersion": {"0"}}
	out, ending := map[string]string{}, map[string]bool{}
	p := page{bounds: bounds{page: maxEndpointSlice, object: maxObjectSize}, add: func(object json.RawMessage) {
		var slice discoveryv1.EndpointSlice
		if json.Unmarshal(object, &slice) != nil || slice.AddressType == discoveryv1.AddressTypeFQDN {
			return
		}
		at := slices.IndexFunc(slice.Ports, func(p discoveryv1.EndpointPort) bool {
			return p.Name != nil && *p.Name == port && p.Port != nil
		})
		if at < 0 {
			return
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
	}}
	err := f.list(ctx, path, query, &p)
	return out, err
}

// get decodes an object, and reports whether it exists.
func (f *Finder) get(ctx context.Context, path string, into any) (found bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	switch err := getJSON(ctx, f.api, path, maxObjectSize, into); {
	case isPathMissing(err):
		f.versions.forget()
		return false, withReason(fmt.Errorf("get %s: %w", path, err))
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, withReason(fmt.Errorf("get %s: %w", path, err))
	}
	return true, nil
}

// list reads a page of a list.
func (f *Finder) list(ctx context.Context, path string, query url.Values, p *page) error {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	body, err := f.api.Get(ctx, path, query)
	if err != nil {
		return withReason(fmt.Errorf("list %s: %w", path, err))
	}
	defer body.Close()
	if err := p.read(body); err != nil {
		return withReason(fmt.Errorf("list %s: %w", path, answerError(err)))
	}
	return nil
}
