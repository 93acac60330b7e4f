package gateway

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"embed"
	"errors"
	"fmt"
	"html/template"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/klauspost/compress/gzip"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/util/cache"

	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/exporter/web"
	"github.com/dra-exporter/dra-exporter/exporter/web/access"
)

//go:embed page
var files embed.FS

// maxNamespaces is the maximum number of reviews of one user's rights.
const maxNamespaces = 256

// view is what a user may see: everything, or some namespaces.
type view struct {
	all        bool
	allClaims  bool // of all namespaces
	namespaces map[string]bool
	unasked    int // number of namespaces that are left out, since there are too many
}

// may reports whether claims of a namespace are shown.
func (v *view) may(namespace string) bool { return v.all || v.allClaims || v.namespaces[namespace] }

// key identifies the view in the cache.
func (v *view) key() string {
	var names []string
	for name, may := range v.namespaces {
		if may {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return fmt.Sprint(v.all, v.allClaims, v.unasked, strings.Join(names, ","))
}

// viewOf returns what a user may see of nodes: everything if the user may read the exporters' own
// pages, else the namespaces whose claims the user may get.
func (g *gateway) viewOf(ctx context.Context, user *access.User, nodes []*state) (*view, error) {
	all, err := g.Users.MayGet(ctx, user, rawPath)
	if err != nil || all {
		return &view{all: all}, err
	}
	v := &view{namespaces: map[string]bool{}}
	if v.allClaims, err = g.Users.MayGetClaims(ctx, user, ""); err != nil || v.allClaims {
		return v, err
	}
	names := namespacesOf(nodes)
	if len(names) > maxNamespaces {
		v.unasked = len(names) - maxNamespaces
		names = names[:maxNamespaces]
	}
	var mu sync.Mutex
	asking, ctx := errgroup.WithContext(ctx)
	asking.SetLimit(8)
	for _, name := range names {
		asking.Go(func() error {
			may, err := g.Users.MayGetClaims(ctx, user, name)
			mu.Lock()
			defer mu.Unlock()
			v.namespaces[name] = may
			return err
		})
	}
	return v, asking.Wait()
}

// namespacesOf returns the namespaces in the nodes' summaries, the most frequent first.
func namespacesOf(nodes []*state) []string {
	uses := map[string]int{}
	for _, s := range nodes {
		if s.summary == nil {
			continue
		}
		for _, c := range s.summary.Claims {
			uses[c.Namespace]++
		}
		for _, i := range s.summary.Incidents {
			for _, hit := range i.Hit {
				uses[namespaceOf(hit)]++
			}
		}
	}
	names := slices.Collect(maps.Keys(uses))
	names = slices.DeleteFunc(names, func(name string) bool { return !isName(name) })
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(uses[b]-uses[a], strings.Compare(a, b)) })
	return names
}

// clusterPage is the input of cluster.html.
type clusterPage struct {
	All     bool
	Trouble string // why the list of nodes may be outdated
	Unasked int
	Failed  int // nodes without an answer, or with an old one, because of a trouble
	Waiting int // nodes that have not answered yet
	Grafana string
	Devices []present.Tile // of all nodes
	Nodes   []nodeRow
}

// nodeRow is a node, as the page shows it.
type nodeRow struct {
	Name      string
	Trouble   string // why the row is outdated or empty
	Answered  bool   // at least once
	Waits     bool   // the trouble is only that the node was not asked yet
	AsOf      string // the time of the answer, if it is outdated
	All       bool   // the user may see everything of the node
	Devices   []present.Tile
	Incidents []present.IncidentSummary
	Claims    []present.ClaimSummary
	Sources   []string // names of those that are down
	More      int
}

// newClusterPage returns what a view shows of nodes. Nodes that need attention are first.
func newClusterPage(nodes []*state, v *view, listed error) clusterPage {
	out := clusterPage{All: v.all, Unasked: v.unasked}
	if listed != nil {
		out.Trouble = unlisted
	}
	total := map[book.State]int{}
	ranks := map[string][]int{}
	for _, s := range nodes {
		row, rank := newRow(s, v)
		if !v.all && len(row.Claims)+len(row.Incidents) == 0 {
			continue
		}
		for _, c := range row.Devices {
			total[c.State] += c.Count
		}
		switch {
		case row.Waits:
			out.Waiting++
		case row.Trouble != "":
			out.Failed++
		}
		ranks[s.node] = rank
		out.Nodes = append(out.Nodes, row)
	}
	out.Devices = present.Tiles(total)
	slices.SortStableFunc(out.Nodes, func(a, b nodeRow) int { return slices.Compare(ranks[b.Name], ranks[a.Name]) })
	return out
}

// newRow returns what a view shows of a node, and its rank. The highest rank needs attention first.
func newRow(s *state, v *view) (nodeRow, []int) {
	row := nodeRow{Name: s.node, All: v.all, Trouble: reason(s.err), Answered: s.summary != nil}
	row.Waits = errors.Is(s.err, errNotAsked)
	if s.summary != nil && (s.stale || s.err != nil) {
		row.AsOf = present.Clock(s.at)
	}
	of := s.summary
	if of == nil {
		of = &present.Summary{}
	}
	states := map[book.State]int{} // of the devices, or of the claims that the user may see
	for _, c := range of.Claims {
		if v.may(c.Namespace) {
			row.Claims = append(row.Claims, c)
			states[c.State]++
		}
	}
	for _, i := range of.Incidents {
		i.Hit = slices.DeleteFunc(slices.Clone(i.Hit), func(claim string) bool { return !v.may(namespaceOf(claim)) })
		if v.all || len(i.Hit) > 0 {
			row.Incidents = append(row.Incidents, i)
		}
	}
	if v.all {
		states, row.Devices, row.More = of.Devices, present.Tiles(of.Devices), of.More
		for source, why := range of.Down {
			row.Sources = append(row.Sources, source+": "+string(why))
		}
		slices.Sort(row.Sources)
	}
	unreachable := 0
	if s.err != nil && !row.Waits {
		unreachable = 1
	}
	return row, []int{
		states[book.StateUnhealthy], len(row.Incidents), unreachable, states[book.StateStalled],
		states[book.StateQuiet] + states[book.StateIdle], len(row.Sources), states[book.StateFree],
	}
}

// namespaceOf returns the namespace of NAMESPACE/NAME.
func namespaceOf(name string) string {
	namespace, _, _ := strings.Cut(name, "/")
	return namespace
}

// serveCluster serves the list of nodes.
func (g *gateway) serveCluster(w http.ResponseWriter, r *http.Request, user *access.User) {
	nodes, change, listed := g.nodes.look(r.Context())
	v, err := g.viewOf(r.Context(), user, nodes)
	if err != nil {
		g.unavailable(w)
		return
	}
	g.pages.serve(w, r, "cluster.html", fmt.Sprintf("%d %v %s", change, listed != nil, v.key()), func() any {
		content := newClusterPage(nodes, v, listed)
		content.Grafana = g.Grafana
		return content
	})
}

const (
	maxRendered = 16 // pages in the cache
	renderedFor = time.Minute
)

// pages makes the gateway's own pages, one at a time, and keeps them compressed.
type pages struct {
	templates *template.Template
	making    chan struct{} // has a value while a page is made
	kept      *cache.LRUExpireCache
}

func newPages() *pages {
	functions := template.FuncMap{"clock": present.Clock}
	return &pages{
		templates: template.Must(web.Templates().Funcs(functions).ParseFS(files, "page/*.html")),
		making:    make(chan struct{}, 1), kept: cache.NewLRUExpireCache(maxRendered),
	}
}

// page is a page, compressed.
type page struct {
	compressed []byte
	tag        string
}

// serve serves a page with the given content. A page with a key is kept.
func (p *pages) serve(w http.ResponseWriter, r *http.Request, name, key string, content func() any) {
	made, err := p.get(r, name, key, content)
	if err != nil {
		respond(w, http.StatusInternalServerError, "the page can't be made")
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Vary", "Accept-Encoding")
	zipped := web.AcceptsGzip(r.Header)
	if zipped {
		w.Header().Set("Content-Encoding", "gzip")
	}
	if web.Tagged(w, r, made.tag) {
		return
	}
	w.Header().Set("Cache-Control", "private, no-cache")
	if zipped {
		_, _ = w.Write(made.compressed) // fails if the client is gone
		return
	}
	plain, err := gzip.NewReader(bytes.NewReader(made.compressed))
	if err != nil {
		panic(err) // the page is not gzip: a bug
	}
	_, _ = io.Copy(w, plain) // fails if the client is gone
}

func (p *pages) get(r *http.Request, name, key string, content func() any) (*page, error) {
	select {
	case p.making <- struct{}{}:
		defer func() { <-p.making }()
	case <-r.Context().Done():
		return nil, fmt.Errorf("wait for a page: %w", r.Context().Err())
	}
	if kept, ok := p.kept.Get(key); ok && key != "" {
		return kept.(*page), nil
	}
	var compressed bytes.Buffer
	z, err := gzip.NewWriterLevel(&compressed, web.CompressionLevel)
	if err != nil {
		return nil, fmt.Errorf("compress %s: %w", name, err)
	}
	sum := sha256.New()
	if err := p.templates.ExecuteTemplate(io.MultiWriter(sum, z), name, content()); err != nil {
		return nil, fmt.Errorf("write %s: %w", name, err)
	}
	_ = z.Close() // a buffer's Write does not fail
	made := &page{compressed.Bytes(), fmt.Sprintf(`"%x"`, sum.Sum(nil)[:16])}
	if key != "" {
		p.kept.Add(key, made, renderedFor)
	}
	return made, nil
}
