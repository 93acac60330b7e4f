package web

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

// checker returns a handler that checks passwords as exporter-toolkit does: one after the other,
// each for a second.
func checker(next http.Handler) http.Handler {
	one := make(chan struct{}, 1)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		one <- struct{}{}
		time.Sleep(time.Second)
		<-one
		if _, password, _ := r.BasicAuth(); !strings.HasPrefix(password, "right") {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// asked is a request for a page, with a password.
type asked struct{ client, path, password string }

// askAll sends the requests at once and counts the answers by status.
func askAll(to http.Handler, requests ...asked) map[int]int {
	var all sync.WaitGroup
	var mu sync.Mutex
	counts := map[int]int{}
	for _, a := range requests {
		all.Go(func() {
			r := httptest.NewRequest(http.MethodGet, a.path, http.NoBody)
			r.RemoteAddr = a.client + ":1"
			r.SetBasicAuth("user", a.password)
			w := httptest.NewRecorder()
			to.ServeHTTP(w, r)
			mu.Lock()
			defer mu.Unlock()
			counts[w.Code]++
		})
		synctest.Wait() // they come in order
	}
	all.Wait()
	return counts
}

// Few passwords are checked at a time, and fewer of one client. Passwords that have been right are
// not limited, and no check is pending after a right one.
func TestPasswords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var counts rejections
		pages := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/slow" {
				time.Sleep(time.Hour)
			}
		})
		server := NewServer(ServerConfig{Handler: pages, Rejected: counts.add})
		server.Handler = checker(server.Handler)
		for range 2 { // addresses
			server.BaseContext(nil)
		}
		var many, wrong, right, slow []asked
		for i := range maxChecks + 4 {
			many = append(many, asked{fmt.Sprintf("198.51.100.%d", i), "/", fmt.Sprint("wrong", i)})
		}
		for i := range 5 {
			wrong = append(wrong, asked{"192.0.2.1", "/", fmt.Sprint("wrong", i)})
			right = append(right, asked{"192.0.2.1", "/", "right"})
		}
		for i := range maxClientChecks {
			slow = append(slow, asked{"192.0.2.3", "/slow", fmt.Sprint("right", i)})
		}
		for _, step := range []struct {
			name     string
			requests []asked
			want     map[int]int
		}{
			{"a client", append(wrong, asked{"192.0.2.2", "/", "right"}), map[int]int{401: 2, 503: 3, 200: 1}},
			{"known", append(wrong, right...), map[int]int{401: 2, 503: 3, 200: 5}},
			{"many clients", append(many, right[0]), map[int]int{401: maxChecks, 503: 4, 200: 1}},
		} {
			got := askAll(server.Handler, step.requests...)
			for status, n := range step.want {
				expect.That(t, got[status] == n, "%s: answers %v by status, want %v", step.name, got, step.want)
			}
		}
		go askAll(server.Handler, slow...)
		time.Sleep(time.Minute)
		if got := askAll(server.Handler, asked{"192.0.2.3", "/", "right-new"}); got[200] != 1 {
			t.Errorf("while a client reads slowly: answers %v by status", got)
		}
		expect.Is(t, counts.count["requests"][driver.ReasonTooMany], 10, "were counted")
		time.Sleep(2 * time.Hour)
	})
}

// The remembered passwords are bounded.
func TestRightPasswordsAreBounded(t *testing.T) {
	c := checks{right: map[password]bool{}}
	for i := range maxRight + 10 {
		c.remember(password{byte(i), byte(i >> 8)})
	}
	expect.That(t, len(c.right) == maxRight, "%d are remembered, want %d", len(c.right), maxRight)
}
