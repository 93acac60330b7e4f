package web

import (
	"slices"
	"sync"
	"time"

	"github.com/dra-exporter/dra-exporter/exporter/web/client"
)

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
