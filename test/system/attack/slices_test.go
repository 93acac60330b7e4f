package attack

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/dra-exporter/dra-exporter/podresources/kube/kubetest"
	"github.com/dra-exporter/dra-exporter/test/largenode"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// hostileSlices are slices of the node with as many devices and attributes as the API allows, of
// another driver. They are listed before those of the node's driver.
func hostileSlices(t testing.TB, slices int) {
	node := largenode.Start(t)
	api := newSliceServer(t, node, slices)
	g := launch(t, node, map[string]string{
		"kube": "auto", "inventory.file": "", "kubeconfig": kubeconfig(t, node, api.url),
	})
	f := g.during(20*attackTime(), func(ctx context.Context) {
		for api.lists.Load() < 1 && pause(ctx) == nil {
			continue
		}
	})
	g.expectHeld(t, f)
	if *before == "" && strings.Count(g.Log(), "a driver has more slices or devices than are kept") != 1 {
		t.Errorf("that a driver has too many is not logged once:\n%s", g.Log())
	}
}

// sliceServer is an API server that has only slices. It generates them while it sends them.
type sliceServer struct {
	url   string
	lists atomic.Int64 // that were sent as a whole

	slices int
	one    []byte   // a hostile slice, whose name is NAME
	own    [][]byte // of the node's own driver
}

func newSliceServer(t testing.TB, node *largenode.Node, slices int) *sliceServer {
	s := newSliceHandler(t, node, slices)
	s.url = serveAPI(t, s)
	return s
}

// serveAPI starts an API server and returns its address.
func serveAPI(t testing.TB, handler http.Handler) string {
	server := httptest.NewServer(handler)
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	return server.URL
}

// kubeconfig writes a kubeconfig for an API server, and returns its path.
func kubeconfig(t testing.TB, node *largenode.Node, url string) string {
	return node.Write(t, "kubeconfig", fmt.Sprintf("apiVersion: v1\nkind: Config\ncurrent-context: x\n"+
		"clusters: [{name: x, cluster: {server: %q}}]\ncontexts: [{name: x, context: {cluster: x, user: x}}]\n"+
		"users: [{name: x, user: {token: x}}]\n", url))
}

func newSliceHandler(t testing.TB, node *largenode.Node, slices int) *sliceServer {
	name := node.Flags()["node-name"]
	s := &sliceServer{
		slices: slices,
		one:    kubetest.LargeSlice("NAME", "hostile.example.com", "NAME", fmt.Sprintf(`"nodeName":%q`, name), false),
	}
	inventory := must.Get(os.ReadFile(node.Path("inventory.yaml")))(t)
	for document := range strings.SplitSeq(string(inventory), "\n---\n") {
		raw := must.Get(yaml.YAMLToJSON([]byte(document)))(t)
		s.own = append(s.own, raw)
	}
	return s
}

// ServeHTTP answers like the API server of Kubernetes. All other lists are empty, or absent.
func (s *sliceServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	query := r.URL.Query()
	switch {
	case query.Get("sendInitialEvents") != "": // as before Kubernetes 1.34
		refuse(w, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, "")
	case query.Get("watch") != "":
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	case r.URL.Path == "/apis/resource.k8s.io":
		_, _ = w.Write([]byte(`{"versions":[{"version":"v1"}]}`))
	case strings.HasSuffix(r.URL.Path, "/resourceslices") && query.Get("fieldSelector") != "spec.nodeName=":
		s.list(w, query.Get("limit"), query.Get("continue"))
	case strings.HasSuffix(r.URL.Path, "/resourceslices"), strings.HasSuffix(r.URL.Path, "/pods"):
		_, _ = w.Write([]byte(`{"metadata":{"resourceVersion":"5"},"items":[]}`))
	default:
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound, path.Base(r.URL.Path))
	}
}

// refuse sends an error as the API server does. client-go takes one without its status for that of
// another server.
func refuse(w http.ResponseWriter, code int32, reason metav1.StatusReason, name string) {
	w.WriteHeader(int(code))
	_ = json.NewEncoder(w).Encode(metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
		Status:   metav1.StatusFailure, Code: code, Reason: reason,
		Details: &metav1.StatusDetails{Name: name},
	})
}

// list sends a page of the slices of the node.
func (s *sliceServer) list(w http.ResponseWriter, limit, position string) {
	most, err := strconv.Atoi(limit)
	if err != nil {
		most = s.slices
	}
	from, _ := strconv.Atoi(position) // absent: the first page
	until, token := min(from+most, s.slices), ""
	if until < s.slices {
		token = strconv.Itoa(until)
	}
	_, _ = fmt.Fprintf(w, `{"metadata":{"resourceVersion":"5","continue":%q},"items":[`, token)
	for i := from; i < until; i++ {
		slice := bytes.ReplaceAll(s.one, []byte("NAME"), fmt.Appendf(nil, "hostile-%d", i))
		if _, err := w.Write(append(slice, ',')); err != nil {
			return // too much for the program
		}
	}
	_, _ = w.Write(bytes.Join(s.own, []byte(",")))
	_, _ = w.Write([]byte("]}"))
	if token == "" {
		s.lists.Add(1)
	}
}
