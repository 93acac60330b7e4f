package gateway

import (
	"fmt"
	"net/http"
	"sync"

	"github.com/dra-exporter/dra-exporter/exporter/web/access"
)

// places bounds the requests for exporters' pages: those for one node, since it may hang, those of
// one user, and all. The zero value is ready to use. It is safe for concurrent use.
type places struct {
	mu    sync.Mutex
	all   int
	taken map[string]int // by node, and by user
}

// enter takes a place for a request, or answers it with status 503. leave must be called if ok.
func (p *places) enter(w http.ResponseWriter, node string, user *access.User) (leave func(), ok bool) {
	ofNode, ofUser := "node "+node, "user "+user.Name()
	p.mu.Lock()
	defer p.mu.Unlock()
	full := ""
	switch {
	case p.taken[ofNode] >= placesOfNode:
		full = fmt.Sprintf("%d other requests already wait for the exporter of node %s", placesOfNode, node)
	case p.taken[ofUser] >= placesOfUser:
		full = fmt.Sprintf("%d other requests of yours already wait for exporters", placesOfUser)
	case p.all >= placesOfAll:
		full = fmt.Sprintf("%d other requests already wait for exporters", placesOfAll)
	}
	if full != "" {
		w.Header().Set("Retry-After", "1")
		respond(w, http.StatusServiceUnavailable, full)
		return nil, false
	}
	p.add(1, ofNode, ofUser)
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.add(-1, ofNode, ofUser)
	}, true
}

// add changes the number of taken places. p.mu is held.
func (p *places) add(n int, keys ...string) {
	if p.taken == nil {
		p.taken = map[string]int{}
	}
	p.all += n
	for _, key := range keys {
		if p.taken[key] += n; p.taken[key] == 0 {
			delete(p.taken, key)
		}
	}
}
