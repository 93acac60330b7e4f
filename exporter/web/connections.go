package web

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/web/client"
)

// connections bounds the open connections. New ones have places of their own until they have sent a
// request: a new one replaces the oldest one there, so that each of them has some time to say who
// it is. Connections of known clients also have places of their own, so that others with the same
// address do not take them: those with a verified certificate, or with a token or a password that
// was right.
//
// Behind netutil.LimitListener, 22 of 60 scrapes on new connections were answered in 30 s, after up
// to 4 s, while 400 clients sent headers slowly on two busy processors; here all 60, within 34 ms.
type connections struct {
	arriving, served, known crowd
	rejected                func(driver.Rejection)
	seats                   sync.Map // of net.Conn: *seat
}

// newConnections returns places for at most so many connections.
func newConnections(most int, rejected func(driver.Rejection)) *connections {
	arriving, known := max(1, most/4), max(1, most/8)
	return &connections{
		arriving: crowd{max: arriving}, known: crowd{max: known, settled: settledConnection},
		served: crowd{max: max(1, most-arriving-known), settled: settledConnection}, rejected: rejected,
	}
}

// seat is the place of a connection.
type seat struct {
	by    client.ID
	close func()

	mu   sync.Mutex
	in   *crowd // nil: none yet
	m    *member
	gone bool // the connection is closed
}

// move takes a place in a crowd if there is room, else it renews the present place. It reports
// whether another connection was closed for it.
func (s *seat) move(to *crowd) (expelled bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.gone:
		return false
	case s.in == to:
		to.renew(s.m)
		return false
	}
	m, expelled := to.enter(s.by, s.close)
	switch {
	case m != nil && s.in != nil:
		s.in.leave(s.m)
	case m == nil && s.in != nil:
		s.in.renew(s.m)
		return expelled
	}
	s.in, s.m = to, m
	return expelled
}

// leave gives the place up. A request that is still in progress does not take another one.
func (s *seat) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.in != nil {
		s.in.leave(s.m)
	}
	s.gone = true
}

// changed is a server's ConnState. A connection that becomes active counts as the youngest one.
func (c *connections) changed(conn net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		c.move(c.seatOf(conn), &c.arriving)
	case http.StateActive:
		if found, ok := c.seats.Load(conn); ok {
			s := found.(*seat)
			c.move(s, c.after(s))
		}
	case http.StateClosed, http.StateHijacked:
		if found, ok := c.seats.LoadAndDelete(conn); ok {
			s := found.(*seat)
			s.leave()
		}
	}
}

// seatOf returns the seat of a connection.
func (c *connections) seatOf(conn net.Conn) *seat {
	if found, ok := c.seats.Load(conn); ok {
		return found.(*seat)
	}
	raw := conn
	if encrypted, ok := conn.(*tls.Conn); ok {
		raw = encrypted.NetConn() // its Close does not wait for the peer
	}
	if t, ok := raw.(*net.TCPConn); ok {
		_ = t.SetWriteBuffer(sendBuffer) // on error, the kernel's default size works as well
	}
	s := &seat{by: client.Of(conn.RemoteAddr().String()), close: func() { _ = raw.Close() }}
	c.seats.Store(conn, s)
	return s
}

// after returns the crowd of a connection that has sent a request.
func (c *connections) after(s *seat) *crowd {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.in == &c.known {
		return &c.known
	}
	return &c.served
}

func (c *connections) move(s *seat, to *crowd) {
	if s.move(to) {
		c.rejected(driver.Rejection{Input: "connections", Reason: driver.ReasonTooMany, Count: 1})
	}
}

// seatKey is the context key of the [seating] of a request.
type seatKey struct{}

// seating is the connection of a request.
type seating struct {
	of   *connections
	seat *seat
}

// context is a server's ConnContext, which is called before the first state.
func (c *connections) context(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, seatKey{}, seating{c, c.seatOf(conn)})
}

// recognize gives the connection of a request a place among those of known clients.
func recognize(ctx context.Context) {
	if of, ok := ctx.Value(seatKey{}).(seating); ok {
		of.of.move(of.seat, &of.of.known)
	}
}

// isKnown reports whether the connection of a request is that of a known client.
func isKnown(ctx context.Context) bool {
	of, ok := ctx.Value(seatKey{}).(seating)
	return ok && of.of.after(of.seat) == &of.of.known
}

// Recognized returns the handler that follows a check of tokens. Clients whose requests reach it
// are known, except by requests for probes, which need no token.
func Recognized(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !slices.Contains(Probes(), r.URL.Path) {
			recognize(r.Context())
		}
		next.ServeHTTP(w, r)
	})
}

// crowd bounds the number of its members: connections, or requests in flight. When it is full, a
// new member replaces the oldest member of the client with the most members, so that clients with
// few members find room. crowd is safe for concurrent use.
type crowd struct {
	max int
	// settled is the age from which a member may be expelled for a member of a client that has as
	// many.
	settled time.Duration

	mu      sync.Mutex
	members []*member // oldest first
	count   map[client.ID]int
}

// member is in a crowd until it leaves or is expelled.
type member struct {
	by    client.ID
	since time.Time
	expel func() // called with the crowd's lock held
}

// enter adds a member. It reports whether another member was expelled for it; m is nil if there is
// no room. expel must not call the crowd, and does not run after leave has returned.
func (c *crowd) enter(by client.ID, expel func()) (m *member, expelled bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.count == nil {
		c.count = map[client.ID]int{}
	}
	now := time.Now()
	if len(c.members) >= c.max {
		oldest := c.oldestOfMost()
		if c.count[oldest.by] <= c.count[by] && now.Sub(oldest.since) < c.settled {
			return nil, false
		}
		c.remove(oldest)
		oldest.expel()
		expelled = true
	}
	m = &member{by: by, since: now, expel: expel}
	c.members = append(c.members, m)
	c.count[by]++
	return m, expelled
}

// renew makes a member the youngest one, unless it was expelled.
func (c *crowd) renew(m *member) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.remove(m) {
		m.since = time.Now()
		c.members = append(c.members, m)
		c.count[m.by]++
	}
}

// leave removes a member, unless it was expelled.
func (c *crowd) leave(m *member) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.remove(m)
}

// oldestOfMost returns the oldest member of the clients with the most members.
func (c *crowd) oldestOfMost() *member {
	most := 0
	for _, n := range c.count {
		most = max(most, n)
	}
	return c.members[slices.IndexFunc(c.members, func(m *member) bool { return c.count[m.by] == most })]
}

func (c *crowd) remove(m *member) bool {
	i := slices.Index(c.members, m)
	if i < 0 {
		return false
	}
	c.members = slices.Delete(c.members, i, i+1)
	if c.count[m.by]--; c.count[m.by] == 0 {
		delete(c.count, m.by)
	}
	return true
}
