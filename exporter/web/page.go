package web

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"net/http"
	"net/url"
	"strings"
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
}

// Templates returns the templates of the page (page.html, of a [Page]) and of details (detail.html,
// of a [present.Detail]).
func Templates() *template.Template {
	return template.Must(template.ParseFS(pageFiles, "page/*.html")) // a test executes them all
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

// Page is the input of page.html.
type Page struct {
	MetricsPath string
	*present.Page
}

// NewPage returns the input of page.html of an exporter with a path of the metrics.
func NewPage(metricsPath string, of *present.Page) Page {
	return Page{strings.TrimPrefix(metricsPath, "/"), of}
}

// Ready reports whether there is a snapshot.
func (p Page) Ready() bool { return p.Time != "" }

// writePage writes the page of a snapshot; nil: there is none yet.
func (p *pages) writePage(to io.Writer, s *exposition.Snapshot) error {
	of := &present.Page{Node: p.Node, Version: p.Version}
	if s != nil {
		of = present.NewPage(s, p.about())
	}
	return p.templates.ExecuteTemplate(to, "page.html", NewPage(p.MetricsPath, of))
}

func (p *pages) writeRows(to io.Writer, s *exposition.Snapshot) error {
	return json.NewEncoder(to).Encode(present.NewPage(s, p.about()))
}

// detail returns the parser of ?device=NAME, ?device=DRIVER/POOL/NAME, ?claim=NAMESPACE/NAME,
// ?pod=NAMESPACE/NAME and ?incident=ID, for details that are laid out by a function. With &own, a
// claim or a pod is without what belongs to others.
func (p *pages) detail(layOut func(to io.Writer, d present.Detail) error) parser {
	return func(query url.Values) (any, writer, error) {
		of := subjectOf(query)
		return of, func(to io.Writer, s *exposition.Snapshot) error {
			return layOut(to, present.NewDetail(s, p.about(), of))
		}, nil
	}
}

// serveDetail returns the handler of details: as HTML, and with ?json as JSON.
func (p *pages) serveDetail(among *answers) http.HandlerFunc {
	asHTML := p.serve(document{typeHTML, among, p.detail(func(to io.Writer, d present.Detail) error {
		err := p.templates.ExecuteTemplate(to, "detail.html", d)
		if err == nil && len(d.Sections) == 0 {
			err = status(http.StatusNotFound)
		}
		return err
	}), false})
	asJSON := p.serve(document{typeJSON, among, p.detail(func(to io.Writer, d present.Detail) error {
		return json.NewEncoder(to).Encode(d)
	}), false})
	return func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Has("json") {
			asJSON(w, r)
		} else {
			asHTML(w, r)
		}
	}
}

func subjectOf(query url.Values) present.Subject {
	own := query.Has("own")
	switch {
	case query.Get("incident") != "":
		return present.Subject{Incident: query.Get("incident"), Own: own}
	case query.Get("claim") != "":
		return present.Subject{Claim: query.Get("claim"), Own: own}
	case query.Get("pod") != "":
		return present.Subject{Pod: query.Get("pod"), Own: own}
	default:
		return present.Subject{Device: query.Get("device"), Own: own}
	}
}
