package attack

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"syscall"
	"testing"
	"time"
)

// scrapeAttacks are those of many clients.
func scrapeAttacks() []attack {
	by := func(n int, client func(*target, context.Context)) func(testing.TB) {
		return func(t testing.TB) { clients(t, newTarget(t, nil), n, client) }
	}
	byTLS := func(n int, client func(*target, context.Context)) func(testing.TB) {
		return func(t testing.TB) { clients(t, newTLSTarget(t, nil), n, client) }
	}
	return []attack{
		{name: "200 concurrent gzip scrapes", short: true, run: by(200, (*target).scrapeOver)},
		{name: "2 000 idle connections", run: by(2000, (*target).idle)},
		{name: "2 000 unfinished requests", run: by(2000, (*target).unfinished)},
		{name: "2 000 idle connections with TLS", run: byTLS(2000, (*target).idle)},
		{name: "300 slow readers", short: true, run: by(300, (*target).readSlowly)},
		{name: "250 stuck streams of HTTP/2", short: true, run: byTLS(1, (*target).stuckStreams)},
		{name: "all of these at once", run: allAtOnce},
	}
}

// attackTime is how long clients attack.
func attackTime() time.Duration {
	if *all || *before != "" {
		return 15 * time.Second
	}
	return 2 * time.Second
}

// clients attacks with n clients at once, each of which ends with its context.
func clients(t testing.TB, g *target, n int, client func(*target, context.Context)) {
	g.expectHeld(t, g.during(attackTime(), func(ctx context.Context) {
		var running sync.WaitGroup
		for range n {
			running.Go(func() { client(g, ctx) })
		}
		running.Wait()
	}))
}

func allAtOnce(t testing.TB) {
	g := newTLSTarget(t, nil)
	g.expectHeld(t, g.during(2*attackTime(), func(ctx context.Context) {
		var running sync.WaitGroup
		for range 2000 {
			running.Go(func() { g.idle(ctx) })
		}
		for range 300 {
			running.Go(func() { g.readSlowly(ctx) })
		}
		for range 200 {
			running.Go(func() { g.scrapeOver(ctx) })
		}
		running.Go(func() { g.stuckStreams(ctx) })
		running.Wait()
	}))
}

// scrapeOver scrapes again and again, with a connection of its own.
func (g *target) scrapeOver(ctx context.Context) {
	client := newClient(g.trust)
	client.Transport.(*http.Transport).DialContext = attacker().DialContext
	defer client.CloseIdleConnections()
	for ctx.Err() == nil {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, g.url("/metrics"), http.NoBody)
		if err != nil {
			g.t.Error(err)
			return
		}
		request.Header.Set("Accept-Encoding", "gzip")
		response, err := client.Do(request)
		if err != nil {
			backOff(ctx) // refused
			continue
		}
		_, _ = io.Copy(io.Discard, response.Body) // as above
		response.Body.Close()
	}
}

// attacker connects from another address than the honest scraper.
func attacker() *net.Dialer {
	return &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
}

// backOff waits before a client connects again.
func backOff(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(time.Second):
	}
}

// dial connects, with TLS if the program serves it, and tries again until that is possible. It
// returns nil when ctx has ended, which closes the connection, too. Protocols are those of ALPN. A
// receive buffer of 0 bytes is the kernel's default.
func (g *target) dial(ctx context.Context, receiveBuffer int, protocols ...string) net.Conn {
	dialer := attacker()
	dialer.Control = func(_, _ string, raw syscall.RawConn) error {
		return raw.Control(func(fd uintptr) {
			if receiveBuffer > 0 {
				_ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, receiveBuffer)
			}
		})
	}
	for ; ctx.Err() == nil; backOff(ctx) {
		conn, err := dialer.DialContext(ctx, "tcp", g.Address)
		if err != nil {
			continue
		}
		context.AfterFunc(ctx, func() { conn.Close() })
		if g.trust == nil {
			return conn
		}
		encrypted := tls.Client(conn, &tls.Config{RootCAs: g.trust, ServerName: "127.0.0.1", NextProtos: protocols})
		if err := encrypted.HandshakeContext(ctx); err == nil {
			return encrypted
		}
		conn.Close()
	}
	return nil
}

// connected does something with connections, one after the other, until ctx ends.
func (g *target) connected(ctx context.Context, receiveBuffer int, do func(net.Conn)) {
	for {
		conn := g.dial(ctx, receiveBuffer)
		if conn == nil {
			return
		}
		do(conn)
		conn.Close()
		backOff(ctx)
	}
}

// idle keeps a connection open after one request.
func (g *target) idle(ctx context.Context) {
	g.connected(ctx, 0, func(conn net.Conn) {
		_, _ = fmt.Fprintf(conn, "GET /healthz HTTP/1.1\r\nHost: %s\r\n\r\n", g.Address)
		_, _ = io.Copy(io.Discard, conn) // until the program closes it
	})
}

// unfinished sends a request line by line and never ends it.
func (g *target) unfinished(ctx context.Context) {
	g.connected(ctx, 0, func(conn net.Conn) {
		_, err := fmt.Fprintf(conn, "GET /metrics HTTP/1.1\r\nHost: %s\r\n", g.Address)
		for i := 0; err == nil; i++ {
			_, err = fmt.Fprintf(conn, "X-Header-%d: a\r\n", i)
			if err == nil {
				backOff(ctx)
			}
		}
	})
}

// readSlowly asks for the uncompressed metrics and reads 16 bytes a second.
func (g *target) readSlowly(ctx context.Context) {
	g.connected(ctx, 4096, func(conn net.Conn) {
		_, _ = fmt.Fprintf(conn, "GET /metrics HTTP/1.1\r\nHost: %s\r\n\r\n", g.Address)
		for some := make([]byte, 16); ctx.Err() == nil; backOff(ctx) {
			if _, err := conn.Read(some); err != nil {
				return
			}
		}
	})
}
