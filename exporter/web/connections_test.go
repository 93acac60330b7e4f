package web

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dra-exporter/dra-exporter/exporter/web/client"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// A scraper with a right token is answered, on a new connection and on one that it keeps, while
// clients with the same address have more connections than there are places: some with unfinished
// requests, others with requests that take long.
func TestScrapeAmongSlowConnections(t *testing.T) {
	const right = "Bearer right"
	slow := make(chan struct{})
	metrics := Recognized(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "metrics")
	}))
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/slow":
			select {
			case <-slow:
			case <-r.Context().Done():
			}
		case r.Header.Get("Authorization") == right:
			metrics.ServeHTTP(w, r)
		default:
			w.WriteHeader(http.StatusUnauthorized)
		}
	})
	server := NewServer(ServerConfig{Log: slog.DiscardHandler, Handler: handler})
	listener := must.Get((&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	var attackers []net.Conn
	defer func() {
		close(slow)
		for _, c := range attackers {
			_ = c.Close()
		}
		_ = server.Close()
		<-served
	}()
	kept := &http.Transport{}
	defer kept.CloseIdleConnections()
	scrape := func(transport *http.Transport) error {
		at := "http://" + listener.Addr().String()
		request, err := http.NewRequestWithContext(context.Background(), http.MethodGet, at, http.NoBody)
		if err != nil {
			return err
		}
		request.Header.Set("Authorization", right)
		answer, err := transport.RoundTrip(request)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		if body, err := io.ReadAll(answer.Body); err != nil || string(body) != "metrics" {
			return fmt.Errorf("status %s, %q, %w", answer.Status, body, err)
		}
		return nil
	}
	must.Do(t, scrape(kept))
	const unfinished, unanswered = "GET / HTTP/1.1\r\nHost: a\r\n", "GET /slow HTTP/1.1\r\nHost: a\r\n\r\n"
	for round, request := range []string{unanswered, unfinished, unanswered, unfinished} {
		for range 200 {
			c := must.Get((&net.Dialer{}).DialContext(t.Context(), "tcp", listener.Addr().String()))(t)
			_, _ = io.WriteString(c, request)
			attackers = append(attackers, c)
		}
		for name, transport := range map[string]*http.Transport{"kept": kept, "new": {DisableKeepAlives: true}} {
			if err := scrape(transport); err != nil {
				t.Errorf("round %d: on a %s connection: %v", round, name, err)
			}
		}
	}
}

// A full crowd expels the oldest member of the client that has the most.
func TestCrowd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := crowd{max: 3, settled: time.Second}
		here, there := client.Of("192.0.2.1:1"), client.Of("192.0.2.2:1")
		var gone []string
		enter := func(name string, client client.ID, place, expels bool) *member {
			m, expelled := c.enter(client, func() { gone = append(gone, name) })
			expect.That(t, (m != nil) == place && expelled == expels,
				"%s: has a place: %v, want %v; expelled another: %v, want %v", name, m != nil, place, expelled, expels)
			time.Sleep(time.Millisecond)
			return m
		}
		first := enter("here 1", here, true, false)
		enter("here 2", here, true, false)
		left := enter("here 3", here, true, false)
		enter("here 4", here, false, false) // all are young, and its own
		c.renew(first)
		enter("there 1", there, true, true) // in place of here 2, the oldest now
		c.leave(left)
		enter("there 2", there, true, false)
		enter("here 5", here, true, true)     // in place of there 1
		enter("there 3", there, true, true)   // in place of here 1
		enter("there 4", there, false, false) // has the most, and all are young
		time.Sleep(time.Second)
		enter("there 4", there, true, true) // in place of there 2
		if want := []string{"here 2", "there 1", "here 1", "there 2"}; !slices.Equal(gone, want) {
			t.Errorf("expelled: %q, want %q", gone, want)
		}
		c.leave(first)
		c.renew(first) // is gone, and stays so
		expect.That(t, len(c.members) == 3 && c.count[here]+c.count[there] == 3,
			"%d members, counted %v", len(c.members), c.count)
	})
}
