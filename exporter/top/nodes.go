// Package top shows the devices of one or several nodes, asked from their exporters, as a live
// table: what `dra-exporter top` does.
package top

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/dra-exporter/dra-exporter/exporter/web"
)

// Node is an exporter that is asked.
type Node struct {
	Name  string // its address, or that of its pod: unique
	Fetch func(context.Context) (web.Report, error)
}

// snapshotPath is where an exporter serves its snapshot.
const snapshotPath = "/api/v1/snapshot"

// maxSnapshot is the largest snapshot that is read, in bytes.
const maxSnapshot = 256 << 20

// fetchTimeout is the longest time for one snapshot.
const fetchTimeout = 5 * time.Second

// FromURL returns the exporter at an address: a URL, or HOST:PORT.
func FromURL(client *http.Client, address string) (Node, error) {
	parsed, err := parseAddress(address)
	if err != nil {
		return Node{}, err
	}
	return fromURL(client, parsed, address), nil
}

// Dial opens a connection, as [net.Dialer.DialContext] does.
type Dial = func(ctx context.Context, network, address string) (net.Conn, error)

// FromName returns the exporters at all addresses of the host in an address as [FromURL] takes it:
// those behind a headless Service. Each gets a client of its own, which connects to its address by
// the given function, and else asks for the host: so that certificates are those of the host.
func FromName(
	ctx context.Context, lookup func(ctx context.Context, network, host string) ([]netip.Addr, error),
	newClient func(Dial) (*http.Client, error), address string,
) ([]Node, error) {
	parsed, err := parseAddress(address)
	if err != nil {
		return nil, err
	}
	addresses, err := lookup(ctx, "ip", parsed.Hostname())
	if err != nil {
		return nil, fmt.Errorf("look up %s: %w", parsed.Hostname(), err)
	}
	var nodes []Node
	for _, ip := range addresses {
		client, err := newClient(func(ctx context.Context, network, hostPort string) (net.Conn, error) {
			_, port, err := net.SplitHostPort(hostPort)
			if err != nil {
				return nil, err
			}
			var d net.Dialer
			return d.DialContext(ctx, network, net.JoinHostPort(ip.Unmap().String(), port))
		})
		if err != nil {
			return nil, fmt.Errorf("make a client for %v: %w", ip, err)
		}
		nodes = append(nodes, fromURL(client, parsed, ip.Unmap().String()))
	}
	return nodes, nil
}

func parseAddress(address string) (*url.URL, error) {
	full := address
	if !strings.Contains(full, "://") {
		full = "http://" + full
	}
	parsed, err := url.Parse(full)
	if err != nil {
		return nil, err
	}
	if parsed.Host == "" || parsed.Scheme != "http" && parsed.Scheme != "https" {
		return nil, fmt.Errorf("%q is neither a URL nor HOST:PORT", address)
	}
	return parsed, nil
}

// fromURL returns the exporter at a URL, called by a name.
func fromURL(client *http.Client, base *url.URL, name string) Node {
	target := base.JoinPath(snapshotPath).String()
	return Node{Name: name, Fetch: func(ctx context.Context) (web.Report, error) {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, target, http.NoBody)
		if err != nil {
			return web.Report{}, err
		}
		response, err := client.Do(request)
		if err != nil {
			if failed, ok := errors.AsType[*url.Error](err); ok {
				err = failed.Err // without the URL, which the name stands for
			}
			return web.Report{}, fmt.Errorf("get snapshot from %s: %w", name, err)
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return web.Report{}, fmt.Errorf("get snapshot from %s: %s", name, response.Status)
		}
		return decode(response.Body, name)
	}}
}

func decode(body io.Reader, from string) (web.Report, error) {
	var r web.Report
	if err := json.NewDecoder(io.LimitReader(body, maxSnapshot)).Decode(&r); err != nil {
		return r, fmt.Errorf("decode snapshot from %s: %w", from, err)
	}
	return r, nil
}

// API sends requests to the API server.
type API interface {
	Get(ctx context.Context, path string, query url.Values) (io.ReadCloser, error)
}

// podSelector selects the pods of the chart.
const podSelector = "app.kubernetes.io/name=dra-exporter"

// FromKube returns the exporters of all nodes: the pods with the label of the chart. They are asked
// through the API server, which takes the right to get pods/proxy. One that does not run yet
// answers with an error that says so.
func FromKube(ctx context.Context, api API) ([]Node, error) {
	body, err := api.Get(ctx, "/api/v1/pods", url.Values{"labelSelector": {podSelector}})
	if err != nil {
		return nil, fmt.Errorf("list the pods of the exporter: %w", err)
	}
	defer body.Close()
	var pods corev1.PodList
	if err := json.NewDecoder(io.LimitReader(body, maxSnapshot)).Decode(&pods); err != nil {
		return nil, fmt.Errorf("decode the pods of the exporter: %w", err)
	}
	var nodes []Node
	for i := range pods.Items {
		pod := &pods.Items[i]
		if pod.DeletionTimestamp == nil && (pod.Status.Phase == corev1.PodRunning || pod.Status.Phase == corev1.PodPending) {
			nodes = append(nodes, fromPod(api, pod))
		}
	}
	if len(nodes) == 0 {
		return nil, errors.New("no pod has the label " + podSelector)
	}
	return nodes, nil
}

// fromPod returns the exporter in a pod.
func fromPod(api API, pod *corev1.Pod) Node {
	name, port := pod.Namespace+"/"+pod.Name, portOf(pod)
	return Node{Name: name, Fetch: func(ctx context.Context) (web.Report, error) {
		switch {
		case pod.Status.Phase != corev1.PodRunning:
			return web.Report{}, fmt.Errorf("pod %s is %s on node %s",
				name, strings.ToLower(string(pod.Status.Phase)), cmp.Or(pod.Spec.NodeName, "unknown"))
		case port == 0:
			return web.Report{}, fmt.Errorf("pod %s has no port metrics", name)
		}
		body, err := api.Get(ctx, fmt.Sprintf("/api/v1/namespaces/%s/pods/%s:%d/proxy%s",
			pod.Namespace, pod.Name, port, snapshotPath), nil)
		if err != nil {
			return web.Report{}, fmt.Errorf("get snapshot from %s: %w", name, err)
		}
		defer body.Close()
		return decode(body, name)
	}}
}

// portOf returns the port of the pod's metrics, 0 if it has none.
func portOf(pod *corev1.Pod) int32 {
	for _, c := range pod.Spec.Containers {
		for _, p := range c.Ports {
			if p.Name == "metrics" {
				return p.ContainerPort
			}
		}
	}
	return 0
}
