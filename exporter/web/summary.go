package web

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/exporter/exposition"
	"github.com/dra-exporter/dra-exporter/exporter/present"
)

// summaries serves the summary of the latest snapshot. The summary is made once for all requests.
// Its entity tag is a hash of its content.
type summaries struct {
	Config

	turns chan struct{} // has a value while a summary is made; guards the fields below
	of    time.Time     // time of the snapshot
	said  []present.Source
	body  []byte
	tag   string
}

// ServeHTTP implements [http.Handler].
func (c *summaries) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s := c.Latest()
	if s == nil {
		respond(w, http.StatusServiceUnavailable, "no snapshot yet\n")
		return
	}
	body, tag, err := c.ofSnapshot(r.Context(), s)
	if err != nil {
		respond(w, http.StatusInternalServerError, "the answer could not be made\n")
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if Tagged(w, r, tag) {
		return
	}
	_, _ = w.Write(body) // fails if the client is gone
}

// ofSnapshot returns the summary of a snapshot and its tag. It fails if ctx ends first.
func (c *summaries) ofSnapshot(ctx context.Context, s *exposition.Snapshot) (body []byte, tag string, err error) {
	if err := enter(ctx, c.turns); err != nil {
		return nil, "", err
	}
	defer func() { <-c.turns }()
	about := c.about()
	same := slices.EqualFunc(c.said, about.Sources, func(a, b present.Source) bool {
		return a.Name == b.Name && a.Down == b.Down
	})
	if c.body == nil || !c.of.Equal(s.Time) || !same {
		if body, err = json.Marshal(present.NewSummary(s, about)); err != nil {
			return nil, "", fmt.Errorf("encode summary: %w", err)
		}
		c.of, c.said, c.body, c.tag = s.Time, about.Sources, body, TagOf(body)
	}
	return c.body, c.tag, nil
}

// TagOf returns the entity tag of a body.
func TagOf(body []byte) string {
	sum := sha256.Sum256(body)
	return fmt.Sprintf(`"%x"`, sum[:16])
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
