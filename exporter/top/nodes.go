// Package top shows the devices of one or several nodes, asked from their exporters, as a live
// table: what `dra-exporter top` does.
package top

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/dra-exporter/dra-exporter/exporter/web"
)

// Node is an exporter that is asked.
type Node struct {
	Name  string // its address, or the name of the Kubernetes Node
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
	full := address
	if !strings.Contains(full, "://") {
		full = "http://" + full
	}
	parsed, err := url.Parse(full)
	if err != nil {
		return Node{}, err
	}
	if parsed.Host == "" || parsed.Scheme != "http" && parsed.Scheme != "https" {
		return Node{}, fmt.Errorf("%q is neither a URL nor HOST:PORT", address)
	}
	target := parsed.JoinPath(snapshotPath).String()
	return Node{Name: address, Fetch: func(ctx context.Context) (web.Report, error) {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, target, http.NoBody)
		if err != nil {
			return web.Report{}, err
		}
		response, err := client.Do(request)
		if err != nil {
			return web.Report{}, fmt.Errorf("get snapshot: %w", err)
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return web.Report{}, fmt.Errorf("get snapshot from %s: %s", address, response.Status)
		}
		return decode(response.Body, address)
	}}, nil
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

// FromKube returns the exporters of all nodes: the running pods with the label of the chart. They
// are asked through the API server, which takes the right to get pods/proxy.
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
		port := portOf(pod)
		if pod.Status.Phase != corev1.PodRunning || pod.DeletionTimestamp != nil || port == 0 {
			continue
		}
		path := fmt.Sprintf("/api/v1/namespaces/%s/pods/%s:%d/proxy%s", pod.Namespace, pod.Name, port, snapshotPath)
		nodes = append(nodes, Node{Name: pod.Spec.NodeName, Fetch: func(ctx context.Context) (web.Report, error) {
			body, err := api.Get(ctx, path, nil)
			if err != nil {
				return web.Report{}, fmt.Errorf("get snapshot: %w", err)
			}
			defer body.Close()
			return decode(body, pod.Name)
		}})
	}
	if len(nodes) == 0 {
		return nil, errors.New("no running pod has the label " + podSelector)
	}
	return nodes, nil
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
