package web

import (
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/dra-exporter/dra-exporter/exporter/exposition"
	"github.com/dra-exporter/dra-exporter/exporter/present"
)

//go:embed page
var pageFiles embed.FS

// underPage is the path of the files and answers that only the page at / needs.
const underPage = "/page/"

// pages serves the page: as HTML, its rows as JSON for its script, and the details of a device or a
// claim. It is safe for concurrent use.
type pages struct {
	Config
	templates *template.Template

	mu   sync.Mutex
	of   *exposition.Snapshot // the snapshot of view; nil: none
	view *present.Page
}

func newPages(c Config) *pages {
	return &pages{Config: c, templates: template.Must(template.ParseFS(pageFiles, "page/*.html"))} // a test executes them all
}

// Assets returns handlers of the page's script and style, by path.
func Assets() map[string]http.Handler {
	return map[string]http.Handler{
		underPage + "script.js": asset("script.js", "text/javascript; charset=utf-8"),
		underPage + "style.css": asset("style.css", "text/css; charset=utf-8"),
	}
}

// asset serves an embedded file.
func asset(name, kind string) http.HandlerFunc {
	content, err := pageFiles.ReadFile("page/" + name)
	if err != nil {
		panic(err) // the file is not embedded: a bug
	}
	tag := fmt.Sprintf(`"%x"`, sha256.Sum256(content))[:18] + `"`
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", kind)
		w.Header().Set("Cache-Control", "no-cache") // a newer program may have another file
		w.Header().Set("Etag", tag)
		http.ServeContent(w, r, name, time.Time{}, bytes.NewReader(content))
	}
}

// viewOf returns the view of a snapshot. It is made once for all requests within a second.
func (p *pages) viewOf(s *exposition.Snapshot) *present.Page {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.of != s {
		time.AfterFunc(freshFor, func() { p.forget(s) })
		p.of, p.view = s, present.NewPage(s, p.about())
	}
	return p.view
}

// forget drops a snapshot and its view.
func (p *pages) forget(s *exposition.Snapshot) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.of == s {
		p.of, p.view = nil, nil
	}
}

// page is the input of page.html.
type page struct {
	Node, Version, MetricsPath string
	*present.Page              // nil: no snapshot yet
}

// writePage writes the page of a snapshot; nil: there is none yet.
func (p *pages) writePage(_ context.Context, to io.Writer, s *exposition.Snapshot) error {
	out := page{Node: p.Node, Version: p.Version, MetricsPath: strings.TrimPrefix(p.MetricsPath, "/")}
	if s != nil {
		out.Page = p.viewOf(s)
	}
	return p.templates.ExecuteTemplate(to, "page.html", out)
}

// Ready reports whether there is a snapshot.
func (p page) Ready() bool { return p.Page != nil }

func (p *pages) writeRows(_ context.Context, to io.Writer, s *exposition.Snapshot) error {
	return json.NewEncoder(to).Encode(p.viewOf(s))
}

// detail reads ?device=NAME, ?device=DRIVER/POOL/NAME, ?claim=NAMESPACE/NAME, ?pod=NAMESPACE/NAME
// and ?incident=ID.
func (p *pages) detail(query url.Values) (any, writer, error) {
	of := subjectOf(query)
	return of, func(ctx context.Context, to io.Writer, s *exposition.Snapshot) error {
		d, err := p.viewOf(s).Detail(ctx, of)
		if err == nil {
			err = p.templates.ExecuteTemplate(to, "detail.html", d)
		}
		if err == nil && len(d.Sections) == 0 {
			err = status(http.StatusNotFound)
		}
		return err
	}, nil
}

func subjectOf(query url.Values) present.Subject {
	of := present.Subject{
		Incident: query.Get("incident"), Claim: query.Get("claim"), Pod: query.Get("pod"), Device: query.Get("device"),
	}
	switch {
	case of.Incident != "":
		return present.Subject{Incident: of.Incident}
	case of.Claim != "":
		return present.Subject{Claim: of.Claim}
	case of.Pod != "":
		return present.Subject{Pod: of.Pod}
	default:
		return of
	}
}
