package web

import (
	"context"
	"crypto/sha256"
	"net/http"
	"strings"
	"sync"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/web/client"
)

// Limits of the checks of passwords. A check takes some 60 ms. exporter-toolkit makes one check at
// a time, and remembers the results of a hundred: with it alone, a scrape took up to 5.6 s while 50
// clients guessed passwords for 20 s on two busy processors, and with this 62 ms.
const (
	maxChecks       = 16 // checks at a time, of passwords that are not known to have been right
	maxClientChecks = 2  // the same for one client
	maxRight        = 128
)

// checks counts the checks in progress. It is safe for concurrent use.
type checks struct {
	mu    sync.Mutex
	count map[client.ID]int
	all   int
	right map[password]bool // have been right, and may have changed since
}

// password is the hash of a user's name and password.
type password [sha256.Size]byte

// passedKey is the context key of the function that [checked] calls.
type passedKey struct{}

// passwords bounds the requests that wait for the check of a password. Passwords that have been
// right are not limited. next must check the password, and call a handler of [checked] if it is
// right.
func passwords(next http.Handler, rejected func(driver.Rejection)) http.Handler {
	c := checks{count: map[client.ID]int{}, right: map[password]bool{}}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := r.Header.Get("Authorization")
		if scheme, _, _ := strings.Cut(header, " "); !strings.EqualFold(scheme, "Basic") {
			next.ServeHTTP(w, r)
			return
		}
		by, secret := client.Of(r.RemoteAddr), password(sha256.Sum256([]byte(header)))
		known, ok := c.begin(by, secret)
		switch {
		case known: // exporter-toolkit checks whether it is still right
			next.ServeHTTP(w, passedBy(r, func() {}))
			return
		case !ok:
			refuse(w, "too many passwords to check\n", rejected)
			return
		}
		end := sync.OnceFunc(func() { c.end(by) })
		defer end()
		next.ServeHTTP(w, passedBy(r, func() {
			c.remember(secret)
			end()
		}))
	})
}

// passedBy returns the request with a function for [checked] to call.
func passedBy(r *http.Request, passed func()) *http.Request {
	return r.WithContext(context.WithValue(r.Context(), passedKey{}, passed))
}

// checked is the handler that follows the check of passwords.
func checked(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if passed, ok := r.Context().Value(passedKey{}).(func()); ok {
			recognize(r.Context())
			passed()
		}
		next.ServeHTTP(w, r)
	})
}

// begin begins a check. known: the password has been right, and needs no check. ok is false if too
// many checks are in progress.
func (c *checks) begin(by client.ID, secret password) (known, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.right[secret] {
		return true, false
	}
	if c.all >= maxChecks || c.count[by] >= maxClientChecks {
		return false, false
	}
	c.all++
	c.count[by]++
	return false, true
}

func (c *checks) end(by client.ID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all--
	if c.count[by]--; c.count[by] == 0 {
		delete(c.count, by)
	}
}

// remember records a password that is right. If there are too many, another one is forgotten.
func (c *checks) remember(secret password) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.right) >= maxRight {
		for other := range c.right {
			delete(c.right, other)
			break
		}
	}
	c.right[secret] = true
}
