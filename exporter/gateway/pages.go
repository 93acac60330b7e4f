package gateway

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"html/template"
	"io"
	"net/http"
	"time"

	"github.com/klauspost/compress/gzip"
	"k8s.io/apimachinery/pkg/util/cache"

	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/exporter/web"
)

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
