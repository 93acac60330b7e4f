package web

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/dra-exporter/dra-exporter/exporter/exposition"
)

// The content types of documents.
const (
	typeJSON = "application/json"
	typeHTML = "text/html; charset=utf-8"
)

// document is what readers get under a path: the page or a part of it, or JSON.
type document struct {
	contentType string
	among       *answers
	// parse reads the query. key identifies the document among those of the path.
	parse parser
	// early: it is there before the first snapshot.
	early bool
}

type (
	parser func(url.Values) (key any, write writer, err error)
	// writer writes a document of a snapshot. Its error may be a status.
	writer func(w io.Writer, s *exposition.Snapshot) error
)

// errNoRecorder is the error for a document of the flight recorder if there is none.
var errNoRecorder = errors.New("the flight recorder is off (--no-recorder)")

// serve returns the handler of a document. It is made once for all clients, and has an entity tag:
// a client that has a document with the same content gets status 304.
func (c Config) serve(d document) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		key, write, err := d.parse(r.URL.Query())
		s := c.Latest()
		switch {
		case errors.Is(err, errNoRecorder):
			respond(w, http.StatusNotFound, err.Error()+"\n")
			return
		case err != nil:
			respond(w, http.StatusBadRequest, err.Error()+"\n")
			return
		case s == nil && !d.early:
			respond(w, http.StatusServiceUnavailable, "no snapshot yet\n")
			return
		}
		w.Header().Set("Content-Type", d.contentType)
		name := fmt.Sprintf("%s %s?%+v", d.contentType, r.URL.Path, key)
		d.among.serve(w, r, name, nil, func(to io.Writer) ([]exposition.Part, error) {
			if err := write(to, s); err != nil {
				return nil, fmt.Errorf("write %s: %w", r.URL.Path, err)
			}
			return nil, nil
		})
	}
}

// whole returns the parser of the only document of a path.
func whole(write writer) parser {
	return func(url.Values) (any, writer, error) { return nil, write, nil }
}

// TagOf returns the entity tag of a body. It is the same for all encodings of the body.
func TagOf(body []byte) string {
	sum := sha256.Sum256(body)
	return fmt.Sprintf(`W/"%x"`, sum[:16])
}

// Tagged gives an answer an entity tag. If the client already has the answer, Tagged answers with
// status 304 and returns true.
func Tagged(w http.ResponseWriter, r *http.Request, tag string) bool {
	w.Header().Set("Etag", tag)
	w.Header().Set("Cache-Control", "no-cache")
	for have := range strings.SplitSeq(r.Header.Get("If-None-Match"), ",") {
		if strings.TrimSpace(have) == tag {
			w.WriteHeader(http.StatusNotModified)
			return true
		}
	}
	return false
}
