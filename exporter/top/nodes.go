// Package top shows the devices of one or several nodes as a live table. It gets them from the
// nodes' exporters. It implements `dra-exporter top`.
//
// Bounds (max…) are for what other exporters and the API server send.
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
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/exporter/web/decode"
)

// Node is an exporter to ask.
type Node struct {
	Name string // address, or name of its pod: unique
	get  getter
}

// getter opens a document.
type getter = func(ctx context.Context, path string, query url.Values) (io.ReadCloser, error)

// The paths of an exporter's rows and details.
const (
	rowsPath   = "/page/rows"
	detailPath = "/page/detail"
)

// maxObject is the largest accepted size of an answer of the API server, in bytes.
const maxObject = 256 << 20

// Limits of memory, in bytes: of one node's answers, and of those of all nodes. Every node has a
// share. What its answers need beyond it comes from a pool.
const (
	maxNode   = 24 << 20
	nodeShare = 512 << 10
	nodesPool = 24 << 20
)

func newMemory() *decode.Budget { return decode.NewBudget(nodeShare, nodesPool) }

// fetchTimeout is the longest time for one answer.
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

// FromName returns the exporters at all addresses of a host, as behind a headless Service. The
// address has the form of [FromURL]. Each exporter gets a client that connects to its address with
// dial, but requests the host, so that certificates of the host are valid.
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

// fromURL returns an exporter at a URL, with a name.
func fromURL(client *http.Client, base *url.URL, name string) Node {
	get := func(ctx context.Context, path string, query url.Values) (io.ReadCloser, error) {
		to := base.JoinPath(path)
		to.RawQuery = query.Encode()
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, to.String(), http.NoBody)
		if err != nil {
			return nil, err
		}
		response, err := client.Do(request)
		if err != nil {
			if failed, ok := errors.AsType[*url.Error](err); ok {
				err = failed.Err // without the URL, for which the name stands
			}
			return nil, err
		}
		if response.StatusCode != http.StatusOK {
			_ = response.Body.Close()
			return nil, errors.New(response.Status)
		}
		return response.Body, nil
	}
	return Node{name, get}
}

// fetch gets a document. The account has what it takes.
func fetch[T any](
	ctx context.Context, from Node, at string, query url.Values, account *decode.Account,
) (out T, err error) {
	body, err := from.get(ctx, at, query)
	if err != nil {
		return out, fmt.Errorf("get %s from %s: %w", path.Base(at), from.Name, err)
	}
	defer body.Close()
	if out, err = decode.Read[T](body, account); err != nil {
		return out, fmt.Errorf("decode %s from %s: %w", path.Base(at), from.Name, err)
	}
	return out, nil
}

// API sends requests to the API server.
type API interface {
	Get(ctx context.Context, path string, query url.Values) (io.ReadCloser, error)
}

// podSelector selects the pods of the chart.
const podSelector = "app.kubernetes.io/name=dra-exporter"

// FromKube returns the exporters of all nodes: the pods with the chart's label. Requests go through
// the API server, which needs the right to get pods/proxy. A pod that is not running yet answers
// with an error that says so. on restricts the nodes by name.
func FromKube(ctx context.Context, api API, on ...string) ([]Node, error) {
	var pods corev1.PodList
	if err := getObject(ctx, api, "/api/v1/pods", url.Values{"labelSelector": {podSelector}}, &pods); err != nil {
		return nil, fmt.Errorf("list the pods of the exporter: %w", err)
	}
	var nodes []Node
	for i := range pods.Items {
		pod := &pods.Items[i]
		if len(on) > 0 && !slices.Contains(on, pod.Spec.NodeName) {
			continue
		}
		if pod.DeletionTimestamp == nil && (pod.Status.Phase == corev1.PodRunning || pod.Status.Phase == corev1.PodPending) {
			nodes = append(nodes, fromPod(api, pod))
		}
	}
	switch {
	case len(nodes) == 0 && len(on) > 0:
		return nil, fmt.Errorf("no pod with the label %s on %s", podSelector, strings.Join(on, ", "))
	case len(nodes) == 0:
		return nil, errors.New("no pod has the label " + podSelector)
	}
	return nodes, nil
}

// getObject gets an object of the API server.
func getObject(ctx context.Context, api API, at string, query url.Values, into any) error {
	body, err := api.Get(ctx, at, query)
	if err != nil {
		return err
	}
	defer body.Close()
	if err := json.NewDecoder(io.LimitReader(body, maxObject)).Decode(into); err != nil {
		return fmt.Errorf("decode %s: %w", at, err)
	}
	return nil
}

// fromPod returns the exporter in a pod.
func fromPod(api API, pod *corev1.Pod) Node {
	name, port := pod.Namespace+"/"+pod.Name, portOf(pod)
	return Node{name, func(ctx context.Context, path string, query url.Values) (io.ReadCloser, error) {
		switch {
		case pod.Status.Phase != corev1.PodRunning:
			return nil, fmt.Errorf("pod is %s on node %s",
				strings.ToLower(string(pod.Status.Phase)), cmp.Or(pod.Spec.NodeName, "unknown"))
		case port == 0:
			return nil, errors.New("pod has no port metrics")
		}
		at := fmt.Sprintf("/api/v1/namespaces/%s/pods/%s:%d/proxy%s", pod.Namespace, pod.Name, port, path)
		body, err := api.Get(ctx, at, query)
		if apierrors.IsUnauthorized(err) { // the exporter's answer, since the API server has listed the pods
			return nil, errCredentials
		}
		return body, err
	}}
}

var errCredentials = errors.New("it asks for credentials, which the API server does not pass on: ask the gateway, or " +
	"use --url with kubectl port-forward")

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

// answer is the last answer of an exporter.
type answer struct {
	page   *present.Page   // nil: none yet
	memory *decode.Account // of it
	at     time.Time       // when it arrived
	err    error           // of the last request; nil: it succeeded
	node   Node
}

// fleet is the state of all nodes. It is not safe for concurrent use.
type fleet struct {
	answers map[string]*answer
	failed  error // why the nodes were not found
	memory  *decode.Budget
}

// Nodes are asked side by side, but each answer that is being read takes memory. A node that does
// not answer in that time gives its place up, so that it does not delay others.
const (
	places       = 64
	placeTimeout = 100 * time.Millisecond
)

// poll finds the nodes and asks all of them. It keeps the last report of nodes that do not
// answer, and forgets nodes that are gone.
func (f *fleet) poll(ctx context.Context, find func(context.Context) ([]Node, error)) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	var nodes []Node
	if nodes, f.failed = find(ctx); f.failed != nil {
		return
	}
	if f.memory == nil {
		f.memory = newMemory()
	}
	before := f.answers
	f.answers = map[string]*answer{}
	askEach(nodes, func(n Node) func() {
		a := before[n.Name]
		if a == nil {
			a = &answer{}
		}
		f.answers[n.Name], a.node = a, n
		return func() { a.renew(ctx, n, f.memory.Open(maxNode)) }
	})
	for name, a := range before {
		if f.answers[name] == nil {
			a.memory.Close()
		}
	}
}

// askEach asks nodes side by side, each of them once. asker is called for one node after the other.
func askEach(nodes []Node, asker func(Node) (ask func())) {
	var asking sync.WaitGroup
	taken, seen := make(chan struct{}, places), map[string]bool{}
	for _, n := range nodes {
		if seen[n.Name] {
			continue // it is listed twice
		}
		seen[n.Name] = true
		ask := asker(n)
		taken <- struct{}{}
		free := sync.OnceFunc(func() { <-taken })
		asking.Go(func() {
			defer free()
			defer time.AfterFunc(placeTimeout, free).Stop()
			ask()
		})
	}
	asking.Wait()
}

// renew asks a node.
func (a *answer) renew(ctx context.Context, n Node, memory *decode.Account) {
	page, err := fetch[present.Page](ctx, n, rowsPath, nil, memory)
	if a.err = err; err != nil {
		memory.Close()
		return
	}
	a.memory.Close()
	a.page, a.at, a.memory = &page, time.Now(), memory
}

// pages returns the last answers of all nodes.
func (f *fleet) pages() (out []*present.Page) {
	for _, a := range f.answers {
		if a.page != nil {
			out = append(out, a.page)
		}
	}
	return out
}

// troubles describes the nodes that do not answer, and since when.
func (f *fleet) troubles(now time.Time) []string {
	var out []string
	if f.failed != nil {
		out = append(out, f.failed.Error())
	}
	for _, a := range f.answers {
		switch {
		case a.err == nil:
		case a.page == nil:
			out = append(out, a.err.Error())
		default:
			out = append(out, fmt.Sprintf("%s is stale for %s: %v", a.page.Node,
				present.Duration(now.Sub(a.at).Seconds()), a.err))
		}
	}
	slices.Sort(out)
	return out
}

// err returns an error unless all nodes answered.
func (f *fleet) err() error {
	var all []error
	for _, trouble := range f.troubles(time.Now()) {
		all = append(all, errors.New(trouble))
	}
	return oneLine(errors.Join(all...))
}

// heading returns the node's name, or the number of nodes, with the time of the newest answer, and
// the sums of all nodes.
func (f *fleet) heading() string {
	newest, name, pages := "", "", f.pages()
	for _, p := range pages {
		name, newest = p.Node, max(newest, p.Time)
	}
	switch {
	case newest == "":
		return "no answer yet"
	case len(f.answers) > 1:
		name = present.Count(len(f.answers), "node")
	}
	return name + "  " + newest + "  " + present.Sum(pages)
}
