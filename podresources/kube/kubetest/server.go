// Package kubetest is a fake API server for tests. It serves the exporter's requests
// (ResourceSlices, ResourceClaims, DeviceTaintRules and Pods: get, list and watch, with the field
// selectors of the real one), injects faults, and counts requests.
package kubetest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/dra-exporter/dra-exporter/test/must"
)

// The resources that it serves.
const (
	Slices = "resourceslices"
	Claims = "resourceclaims"
	Pods   = "pods"

	TaintRules = "devicetaintrules"
	Endpoints  = "endpointslices"
)

// Server is a fake API server. It is safe for concurrent use.
type Server struct {
	http     http.Server
	listener net.Listener
	serving  sync.WaitGroup

	mu       sync.Mutex
	versions []string
	lacking  map[string][]string           // versions that lack a resource, by resource
	objects  map[string]map[string]*object // by resource and namespace/name
	version  int                           // the last resource version
	oldest   int                           // the oldest one from which a watch can continue
	events   []event
	changed  chan struct{} // closed at each change
	fault    func(resource string, watch bool) Fault
	usage    Usage
	users    map[string]May

	listsOnly bool
}

type object struct {
	namespace, name string
	raw             json.RawMessage // with its resource version
	fields          fields.Set      // those that a selector may have
	labels          labels.Set
	version         int
}

type event struct {
	resource, kind string
	object         *object
	before         *object // nil: it is new
}

// deleted is the kind of an event.
const deleted = "DELETED"

// Fault is how a request fails.
type Fault int

// The faults. Hang does not answer until the client cancels the request; Broken responds with
// invalid JSON.
const (
	None Fault = iota
	Hang
	Broken
	Unauthorized
	Forbidden
	Unavailable
	TooManyRequests
)

// Usage counts requests.
type Usage struct {
	Requests int // of all kinds
	Lists    int
	Gets     int
	Watches  int // that were opened
	Streamed int // of these, those that began with all objects
	Open     int // watches that are open now
	Events   int // events sent to watches, without bookmarks
	Bytes    int // of all response bodies
}

// New starts a server on a port of the loopback interface until the test ends, and writes a
// kubeconfig for it. It serves v1 and has no objects.
func New(tb testing.TB) (s *Server, kubeconfig string) {
	s = start(must.Get((&net.ListenConfig{}).Listen(tb.Context(), "tcp", "127.0.0.1:0"))(tb))
	tb.Cleanup(s.Close)
	kubeconfig = filepath.Join(tb.TempDir(), "kubeconfig")
	must.Do(tb, os.WriteFile(kubeconfig, s.Kubeconfig(), 0o600))
	return s, kubeconfig
}

// NewInMemory starts a server that only [Server.Dial] reaches, for tests within a synctest bubble.
func NewInMemory() *Server {
	return start(&pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})})
}

func start(listener net.Listener) *Server {
	s := &Server{
		listener: listener, versions: []string{"v1"}, objects: map[string]map[string]*object{}, changed: make(chan struct{}),
		version: 1,
	}
	s.http.Handler = http.HandlerFunc(s.serve)
	s.serving.Go(func() { _ = s.http.Serve(listener) }) // until Close
	return s
}

// URL is the server's address.
func (s *Server) URL() string { return "http://" + s.listener.Addr().String() }

// Dial connects to the server.
func (s *Server) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	if l, ok := s.listener.(*pipeListener); ok {
		return l.dial(ctx)
	}
	return (&net.Dialer{}).DialContext(ctx, network, address)
}

// Close ends the server and all requests.
func (s *Server) Close() {
	_ = s.http.Close()
	s.serving.Wait()
}

// Kubeconfig returns a kubeconfig for the server.
func (s *Server) Kubeconfig() []byte {
	config := map[string]any{
		"apiVersion": "v1", "kind": "Config", "current-context": "test",
		"clusters": []any{map[string]any{"name": "test", "cluster": map[string]any{"server": s.URL()}}},
		"contexts": []any{map[string]any{"name": "test", "context": map[string]any{"cluster": "test", "user": "test"}}},
		"users":    []any{map[string]any{"name": "test", "user": map[string]any{"token": "test"}}},
	}
	raw, _ := json.Marshal(config) // it can be
	return raw
}

// Serve sets the served versions of resource.k8s.io. Without versions the group is absent.
func (s *Server) Serve(versions ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.versions = versions
	s.broadcast()
}

// Lack sets the versions of resource.k8s.io that lack a resource.
func (s *Server) Lack(resource string, versions ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lacking == nil {
		s.lacking = map[string][]string{}
	}
	s.lacking[resource] = versions
	s.broadcast()
}

// Fail sets how requests for a resource fail.
func (s *Server) Fail(fault func(resource string, watch bool) Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = fault
	s.broadcast()
}

// ListsOnly makes the server reject watches that begin with all objects, like those before
// Kubernetes 1.34.
func (s *Server) ListsOnly() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listsOnly = true
}

// Usage returns the requests so far.
func (s *Server) Usage() Usage {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.usage
}

// Load adds an object without events, which is cheap: for clusters of many objects. node is the
// object's spec.nodeName.
func (s *Server) Load(resource, namespace, name, node string, raw []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.store(resource, &object{
		namespace: namespace, name: name, raw: raw, fields: fields.Set{"spec.nodeName": node}, version: s.version,
	})
}

// store stores an object, and returns the one before; nil: there was none.
func (s *Server) store(resource string, o *object) (before *object) {
	if s.objects[resource] == nil {
		s.objects[resource] = map[string]*object{}
	}
	before = s.objects[resource][o.namespace+"/"+o.name]
	s.objects[resource][o.namespace+"/"+o.name] = o
	return before
}

// Put creates or changes an object of a resource, given as JSON.
func (s *Server) Put(resource string, raw []byte) {
	var u unstructured.Unstructured
	if err := json.Unmarshal(raw, &u.Object); err != nil {
		panic(err)
	}
	o := &object{namespace: u.GetNamespace(), name: u.GetName(), fields: fields.Set{}, labels: u.GetLabels()}
	for _, field := range selectable() {
		o.fields[field], _, _ = unstructured.NestedString(u.Object, strings.Split(field, ".")...)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	o.version = s.version
	u.SetResourceVersion(itoa(s.version))
	o.raw, _ = json.Marshal(u.Object) // it was JSON
	s.happen(event{resource: resource, object: o, before: s.store(resource, o)})
}

// Delete deletes an object. namespace is empty for slices.
func (s *Server) Delete(resource, namespace, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.objects[resource][namespace+"/"+name]
	if o == nil {
		return
	}
	delete(s.objects[resource], namespace+"/"+name)
	s.version++
	last := *o
	last.version = s.version
	last.raw = []byte(strings.Replace(string(o.raw), `"resourceVersion":"`+itoa(o.version)+`"`,
		`"resourceVersion":"`+itoa(s.version)+`"`, 1))
	s.happen(event{resource: resource, kind: deleted, object: &last, before: o})
}

// Expire removes all past events, so that watches cannot continue from their versions.
func (s *Server) Expire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	s.oldest, s.events = s.version, nil
	s.broadcast()
}

func (s *Server) happen(e event) {
	s.events = append(s.events, e)
	s.broadcast()
}

func (s *Server) broadcast() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// pipeListener is a network in memory.
type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *pipeListener) Addr() net.Addr { return pipeAddr{} }

func (l *pipeListener) dial(ctx context.Context) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case l.conns <- server:
		return client, nil
	case <-l.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

type pipeAddr struct{}

func (pipeAddr) Network() string { return "pipe" }
func (pipeAddr) String() string  { return "kubernetes.test" }

// LargeSlice returns a ResourceSlice with as many devices (128) of as many attributes each (32) as
// the API allows. placement is the field of its spec that selects nodes, in JSON. Names and values
// of the attributes are short, which makes about 120 kB, or, if longest is true, as long as the API
// allows, which makes about 750 kB.
func LargeSlice(name, driverName, pool, placement string, longest bool) []byte {
	attribute := func(i int) string { return fmt.Sprintf("attribute%02d", i) }
	value := "v"
	if longest {
		domain := strings.Repeat("d", resourcev1.DeviceMaxDomainLength)
		attribute = func(i int) string { return fmt.Sprintf("%s/%0*d", domain, resourcev1.DeviceMaxIDLength, i) }
		value = strings.Repeat("v", resourcev1.DeviceAttributeMaxValueLength)
	}
	var out bytes.Buffer
	fmt.Fprintf(&out, `{"apiVersion":"resource.k8s.io/v1","kind":"ResourceSlice","metadata":{"name":%q},`+
		`"spec":{"driver":%q,"pool":{"name":%q,"generation":1,"resourceSliceCount":1},%s,"devices":[`,
		name, driverName, pool, placement)
	for d := range resourcev1.ResourceSliceMaxDevices {
		if d > 0 {
			out.WriteByte(',')
		}
		fmt.Fprintf(&out, `{"name":"device-%d","attributes":{`, d)
		for a := range resourcev1.ResourceSliceMaxAttributesAndCapacitiesPerDevice {
			if a > 0 {
				out.WriteByte(',')
			}
			fmt.Fprintf(&out, `%q:{"string":%q}`, attribute(a), value)
		}
		out.WriteString("}}")
	}
	out.WriteString("]}}")
	return out.Bytes()
}
