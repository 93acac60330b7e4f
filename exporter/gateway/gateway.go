// Package gateway serves the pages of all nodes of a cluster under one address. It finds the node
// of a claim, pod or device, and asks the exporter of that node, if the user may see the answer. It
// has no state but caches. It sends requests only to the exporters of one Service, and to the API
// server through [Finder] and package access.
//
// Bounds (max…) are for what clients of the HTTP port and other exporters send.
package gateway

import (
	"cmp"
	"context"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/dra-exporter/dra-exporter/exporter/web"
	"github.com/dra-exporter/dra-exporter/exporter/web/access"
	"github.com/dra-exporter/dra-exporter/exporter/web/decode"
)

// Finder finds the nodes of objects. An object that does not exist has no node, without an error.
type Finder interface {
	ClaimNodes(ctx context.Context, namespace, name string) ([]string, error)
	PodNode(ctx context.Context, namespace, name string) (string, error)
	// Exporters returns the addresses, as HOST:PORT, of the pods behind a port of a Service, by node.
	Exporters(ctx context.Context, namespace, service, port string) (map[string]string, error)
}

// Config configures [New].
type Config struct {
	Find  Finder
	Users *access.Users
	// Transport sends requests to exporters, with the gateway's own credentials. It must not follow
	// redirects, and must not use a proxy.
	Transport http.RoundTripper
	Scheme    string // of the exporters' server: http or https
	// Namespace, Service and Port identify the exporters.
	Namespace, Service, Port string
	MetricsPath              string // of the exporters
	Grafana                  string // URL of the Grafana that pages link to; "": no links
	Log                      *slog.Logger
	Now                      func() time.Time
}

// Limits for all clients together.
const (
	maxQuery  = 4 << 10  // bytes of a forwarded query
	maxAnswer = 64 << 20 // bytes of a forwarded answer

	// The memory for pages of exporters: for one, and for all.
	maxPage   = 8 << 20
	pageShare = 64 << 10
	pagePool  = 16 << 20
)

// rawPath is a path of an exporter. Who may get it may see everything of a node.
const rawPath = "/page/detail"

type gateway struct {
	Config
	exporters *directory
	nodes     *fleet
	paths     map[string]bool // paths of exporters that are forwarded
	assets    map[string]http.Handler
	memory    *decode.Budget // for what exporters answer
	pages     *pages
}

// New returns the handler of the gateway. Except for probes, the script and the style, it serves
// only users whom [access.Users] identifies.
func New(c Config) http.Handler {
	g := &gateway{
		Config: c, paths: map[string]bool{}, assets: web.Assets(), pages: newPages(),
		memory: decode.NewBudget(pageShare, pagePool),
	}
	g.exporters = &directory{now: c.Now, list: func(ctx context.Context) (map[string]string, error) {
		return c.Find.Exporters(ctx, c.Namespace, c.Service, c.Port)
	}}
	g.nodes = &fleet{
		now: c.Now, exporters: g.exporters.all, ask: g.ask, memory: decode.NewBudget(summaryShare, summaryPool),
		slow: make(chan struct{}, slowPlaces),
	}
	for _, r := range web.Routes(c.MetricsPath) {
		if r.Kind != web.KindProfile && r.Kind != web.KindProbe {
			path, _, _ := strings.Cut(r.Example, "?")
			g.paths[path] = true
		}
	}

	mux := http.NewServeMux()
	for _, probe := range web.Probes() {
		mux.HandleFunc("GET "+probe, func(w http.ResponseWriter, _ *http.Request) { respond(w, http.StatusOK, "ok") })
	}
	for path, asset := range g.assets {
		mux.Handle("GET "+path, asset)
	}
	mux.HandleFunc("GET /{$}", g.forUsers(g.serveCluster))
	mux.HandleFunc("GET /node/{node}", g.forUsers(func(w http.ResponseWriter, r *http.Request, _ *access.User) {
		if name := r.PathValue("node"); isName(name) {
			redirect(w, r, nodePath(name))
			return
		}
		respond(w, http.StatusNotFound, "not a valid name")
	}))
	mux.HandleFunc("GET /node/{node}/{path...}", g.forUsers(g.serveNode))
	mux.HandleFunc("GET /claim/{namespace}/{name}", g.forUsers(g.serveHolder("claim")))
	mux.HandleFunc("GET /pod/{namespace}/{name}", g.forUsers(g.serveHolder("pod")))
	mux.HandleFunc("GET /device/{path...}", g.forUsers(g.serveDevice))
	return mux
}

// forUsers calls next for requests of identified users, and refuses all others.
func (g *gateway) forUsers(next func(http.ResponseWriter, *http.Request, *access.User)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "private, no-cache")
		user, status := g.Users.Of(r)
		switch status {
		case http.StatusOK:
			next(w, r, user)
		case http.StatusUnauthorized:
			w.Header().Set("WWW-Authenticate", "Bearer")
			respond(w, status, "unknown user: a bearer token, or a proxy that names the user, is needed")
		default:
			g.unavailable(w)
		}
	}
}

func (g *gateway) unavailable(w http.ResponseWriter) {
	w.Header().Set("Retry-After", "5")
	respond(w, http.StatusServiceUnavailable, "the API server did not return a decision about the user")
}

func respond(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(text + "\n")) // fails if the client is gone
}

// redirect redirects to a path of the gateway. The location is relative, since a proxy in front may
// serve the gateway below a path of its own.
func redirect(w http.ResponseWriter, r *http.Request, path string) {
	up := strings.Repeat("../", strings.Count(r.URL.EscapedPath(), "/")-1)
	w.Header().Set("Location", cmp.Or(up, "./")+path)
	w.WriteHeader(http.StatusFound)
}

// serveHolder serves a claim or a pod. Users who may see everything of its node are redirected to
// the node's page. Users who may get the claims of the namespace see the claim or pod itself.
func (g *gateway) serveHolder(kind string) func(http.ResponseWriter, *http.Request, *access.User) {
	return func(w http.ResponseWriter, r *http.Request, user *access.User) {
		of := holder{kind, r.PathValue("namespace"), r.PathValue("name")}
		if !isName(of.Namespace) || !isName(of.Name) {
			respond(w, http.StatusNotFound, "not a valid name")
			return
		}
		all, err := g.Users.MayGet(r.Context(), user, rawPath)
		may := all
		if err == nil && !all {
			may, err = g.Users.MayGetClaims(r.Context(), user, of.Namespace)
		}
		if !g.permitted(w, may, err, "get resourceclaims in namespace "+of.Namespace) {
			return
		}
		find := func(ctx context.Context) ([]string, error) { return g.Find.ClaimNodes(ctx, of.Namespace, of.Name) }
		if kind == "pod" {
			find = func(ctx context.Context) ([]string, error) {
				node, err := g.Find.PodNode(ctx, of.Namespace, of.Name)
				return []string{node}, err
			}
		}
		node, ok := g.locate(w, r, kind+" "+of.String(), find)
		switch {
		case !ok:
		case all:
			redirect(w, r, nodePath(node)+"#"+kind+"="+of.String())
		default:
			g.serveOwn(w, r, node, of)
		}
	}
}

// serveDevice redirects to a device on the page of its node: most drivers name pools after nodes,
// and links have ?node=. The name of a pool may contain slashes.
func (g *gateway) serveDevice(w http.ResponseWriter, r *http.Request, user *access.User) {
	parts := strings.Split(r.PathValue("path"), "/")
	if len(parts) < 3 || slices.ContainsFunc(parts, func(s string) bool { return !isName(s) }) {
		respond(w, http.StatusNotFound, "not DRIVER/POOL/DEVICE")
		return
	}
	if !g.allowed(w, r, user, rawPath) {
		return
	}
	last := len(parts) - 1
	name := strings.Join(parts, "/")
	node, ok := g.locate(w, r, "device "+name, func(ctx context.Context) ([]string, error) {
		pool := strings.Join(parts[1:last], "/")
		if _, known, err := g.exporters.address(ctx, pool); !known {
			return nil, err
		}
		return []string{pool}, nil
	})
	if ok {
		redirect(w, r, nodePath(node)+"#device="+name)
	}
}

// allowed reports whether a user may get a path of an exporter. If not, it answers the request.
func (g *gateway) allowed(w http.ResponseWriter, r *http.Request, user *access.User, path string) bool {
	may, err := g.Users.MayGet(r.Context(), user, path)
	return g.permitted(w, may, err, "get "+path+" of exporters")
}

// permitted reports whether a user may do something. If not, or if there is no decision, it answers
// the request.
func (g *gateway) permitted(w http.ResponseWriter, may bool, err error, what string) bool {
	switch {
	case err != nil:
		g.unavailable(w)
	case !may:
		respond(w, http.StatusForbidden, what+" is not allowed")
	}
	return may && err == nil
}

// locate returns a node that the API server names: ?node= if that is one of several. If the API
// server names none, it returns ?node=, which links to deleted objects have. It answers the request
// if no such node has an exporter.
func (g *gateway) locate(
	w http.ResponseWriter, r *http.Request, what string, find func(context.Context) ([]string, error),
) (string, bool) {
	hint := r.URL.Query().Get("node")
	nodes, err := find(r.Context())
	nodes = slices.DeleteFunc(nodes, func(n string) bool { return n == "" })
	if err != nil {
		g.Log.DebugContext(r.Context(), "the API server does not name the node of an object", "what", what, "error", err)
	}
	node := hint
	if len(nodes) > 0 && !slices.Contains(nodes, hint) {
		node = nodes[0]
	}
	switch {
	case node == "" && err != nil:
		respond(w, http.StatusServiceUnavailable, "the API server did not return the node of "+what)
	case node == "":
		respond(w, http.StatusNotFound, what+" is on no node")
	default:
		_, ok := g.addressOf(w, r, node)
		return node, ok
	}
	return "", false
}

// unlisted is why it is unknown which nodes have an exporter.
const unlisted = "the API server did not return the addresses of the exporters"

// addressOf returns the address of a node's exporter. It answers the request if there is none.
func (g *gateway) addressOf(w http.ResponseWriter, r *http.Request, node string) (address string, ok bool) {
	address, known, err := g.exporters.address(r.Context(), node)
	switch {
	case err != nil:
		respond(w, http.StatusServiceUnavailable, unlisted)
	case !known:
		respond(w, http.StatusNotFound, "the node has no exporter")
	}
	return address, known
}

func nodePath(node string) string { return "node/" + node + "/" }

// isName reports whether a text is a valid name of an object, device or pool.
func isName(s string) bool { return len(validation.IsDNS1123Subdomain(s)) == 0 }
