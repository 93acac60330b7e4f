package attack

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/largenode"
	"github.com/dra-exporter/dra-exporter/test/live"
)

// attackTime is the duration of an attack by clients.
func attackTime() time.Duration {
	if *all {
		return 15 * time.Second
	}
	return 2 * time.Second
}

// clients is a number of clients of one kind.
type clients struct {
	kind string // see behaviours
	n    int
}

func behaviours() map[string]func(*target, context.Context) {
	return map[string]func(*target, context.Context){
		"scrape": (*target).scrapeOver, "idle": (*target).idle, "unfinished": (*target).unfinished,
		"slow": (*target).readSlowly, "stuck": (*target).stuckStreams, "stranger": (*target).stranger,
		"guesser": (*target).guesser, "neighbor": (*target).neighbor,
	}
}

// pathBehaviours are the kinds of clients that read paths: KIND:PATH,PATH.
func pathBehaviours() map[string]func(*target, context.Context, string) {
	return map[string]func(*target, context.Context, string){
		"read": (*target).read, "slow": (*target).readSlowlyOf, "unfinished": (*target).unfinishedOf,
		"body": (*target).sendSlowly,
	}
}

// attackers is the environment variable that turns this program into attacking clients: kind,
// number, address, and the file of the trusted certificate, or -.
const attackers = "ATTACKERS"

// attackBy attacks with clients of several kinds at once, and checks the figures.
func attackBy(g *target, crowd ...clients) { g.expectHeld(g.t, g.attackedBy(crowd...)) }

// attackedBy attacks with clients of several kinds at once. Each kind is a process with a lower
// priority: on the same machine, attackers would otherwise take processor time from the program.
func (g *target) attackedBy(crowd ...clients) figures {
	return g.attackedUntil(func() bool { return true }, crowd...)
}

// attackedUntil does the same, at least until a condition holds: on a busy machine, the attackers
// begin late.
func (g *target) attackedUntil(so func() bool, crowd ...clients) figures {
	return g.during(attackTime()+time.Minute, func(ctx context.Context) {
		ctx, stop := context.WithCancel(ctx)
		defer stop()
		var running sync.WaitGroup
		for _, c := range crowd {
			certificate := "-"
			if g.trust != nil {
				certificate = g.node.Path("cert.pem")
			}
			cmd := exec.CommandContext(ctx, "nice", "-n", "19", os.Args[0])
			cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %d %s %s", attackers, c.kind, c.n, g.Address, certificate))
			cmd.Stderr = os.Stderr
			cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
			running.Go(func() {
				err := cmd.Run()
				expect.That(g.t, ctx.Err() != nil, "the clients %v have ended: %v", c, err)
			})
		}
		select {
		case <-ctx.Done():
		case <-time.After(attackTime()):
		}
		for pause(ctx) == nil && !so() {
			continue
		}
		stop()
		running.Wait()
	})
}

// runAttackers attacks until it is killed.
func runAttackers(description string) error {
	var kind, certificate string
	var n int
	g := &target{Program: &live.Program{}}
	if _, err := fmt.Sscan(description, &kind, &n, &g.Address, &certificate); err != nil {
		return fmt.Errorf("read %q: %w", description, err)
	}
	kind, paths, ofPath := strings.Cut(kind, ":")
	var behave []func(*target, context.Context)
	if of := pathBehaviours()[kind]; ofPath && of != nil {
		for path := range strings.SplitSeq(paths, ",") {
			behave = append(behave, func(g *target, ctx context.Context) { of(g, ctx, path) })
		}
	} else if one := behaviours()[kind]; one != nil && !ofPath {
		behave = append(behave, one)
	}
	if behave == nil {
		return fmt.Errorf("no clients of kind %q", kind)
	}
	if certificate != "-" {
		text, err := os.ReadFile(certificate)
		if err != nil {
			return fmt.Errorf("read certificate: %w", err)
		}
		g.trust = x509.NewCertPool()
		g.trust.AppendCertsFromPEM(text)
	}
	var running sync.WaitGroup
	for range n {
		for _, do := range behave {
			running.Go(func() { do(g, context.Background()) })
		}
	}
	running.Wait()
	return nil
}

// scrapeOver scrapes repeatedly over its own connection.
func (g *target) scrapeOver(ctx context.Context) {
	g.readOf(ctx, "/metrics", "Accept-Encoding", "gzip")
}

// attacker connects from another address than the honest scraper, unless it is its neighbor.
func (g *target) attacker() *net.Dialer {
	if g.neighbors {
		return &net.Dialer{}
	}
	return &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
}

// pause waits some time between two steps of an attack, and returns an error when it is over.
func pause(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(50 * time.Millisecond):
		return nil
	}
}

// backOff waits before a client connects again.
func backOff(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(time.Second):
	}
}

// dial connects, with TLS if the program serves it, and retries until it succeeds. It returns nil
// when ctx has ended. The end of ctx also closes the connection. The protocols are for ALPN. A
// receive buffer of 0 bytes means the kernel's default.
func (g *target) dial(ctx context.Context, receiveBuffer int, protocols ...string) net.Conn {
	dialer := g.attacker()
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

// connected opens connections one after the other, and calls a function with each, until ctx ends.
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
func (g *target) unfinished(ctx context.Context) { g.unfinishedOf(ctx, "/metrics") }

func (g *target) unfinishedOf(ctx context.Context, path string) {
	g.connected(ctx, 0, func(conn net.Conn) {
		_, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: %s\r\n", path, g.Address)
		for i := 0; err == nil; i++ {
			_, err = fmt.Fprintf(conn, "X-Header-%d: a\r\n", i)
			if err == nil {
				backOff(ctx)
			}
		}
	})
}

// neighbor does the same from the address of the honest scraper, as all clients of a network behind
// SNAT do.
func (g *target) neighbor(ctx context.Context) {
	(&target{Program: g.Program, trust: g.trust, neighbors: true}).unfinished(ctx)
}

// sendSlowly sends a request with a body that is sent byte by byte and never ends.
func (g *target) sendSlowly(ctx context.Context, path string) {
	g.connected(ctx, 0, func(conn net.Conn) {
		_, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: %s\r\nContent-Length: 100000\r\n\r\n", path, g.Address)
		for ; err == nil; backOff(ctx) {
			_, err = conn.Write([]byte("x"))
		}
	})
}

// readSlowly requests the uncompressed metrics and reads 16 bytes a second.
func (g *target) readSlowly(ctx context.Context) { g.readSlowlyOf(ctx, "/metrics") }

func (g *target) readSlowlyOf(ctx context.Context, path string) {
	g.connected(ctx, 4096, func(conn net.Conn) {
		_, _ = fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: %s\r\n\r\n", path, g.Address)
		for some := make([]byte, 16); ctx.Err() == nil; backOff(ctx) {
			if _, err := conn.Read(some); err != nil {
				return
			}
		}
	})
}

// fewFiles limits the program to 128 open files, which idle connections use up. Honest scrapes use
// new connections.
func fewFiles(t testing.TB) {
	node := largenode.Start(t)
	served := servePods(t, node, largenode.PodList())
	g := launchBy(t, node, []string{"prlimit", "--nofile=128:128"}, nil)
	g.pods = served
	g.client.Transport.(*http.Transport).DisableKeepAlives = true
	g.await("aware of the node", g.complete)
	attackBy(g, clients{"idle", 256})
	expect.That(t, !strings.Contains(g.Log(), "too many open files"), "the program was out of files")
}

// maxStreams is the number of streams that a client opens: the limit of Go's server for a
// connection.
const maxStreams = 250

// stuckStreams requests the metrics on all streams of a connection and prevents the program from
// sending any byte: the window of each stream is 0. It connects again when the program closes the
// connection.
func (g *target) stuckStreams(ctx context.Context) {
	for {
		conn := g.dial(ctx, 0, http2.NextProtoTLS)
		if conn == nil {
			return
		}
		_ = g.stick(conn) // the program, or the end of ctx, closes the connection
		conn.Close()
		backOff(ctx)
	}
}

// stick opens streams, and a new one for each stream that the program ends, until the connection
// breaks.
func (g *target) stick(conn net.Conn) error {
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		return err
	}
	framer := http2.NewFramer(conn, conn)
	if err := framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}); err != nil {
		return err
	}
	var next uint32 = 1
	for range maxStreams {
		if err := g.open(framer, next); err != nil {
			return err
		}
		next += 2
	}
	for {
		frame, err := framer.ReadFrame()
		if err != nil {
			return err
		}
		switch f := frame.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				err = framer.WriteSettingsAck()
			}
		case *http2.PingFrame:
			if !f.IsAck() {
				err = framer.WritePing(true, f.Data)
			}
		case *http2.RSTStreamFrame:
			err = g.open(framer, next)
			next += 2
		case *http2.GoAwayFrame:
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// open requests the metrics on a stream.
func (g *target) open(framer *http2.Framer, stream uint32) error {
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for _, field := range []hpack.HeaderField{
		{Name: ":method", Value: "GET"},
		{Name: ":scheme", Value: "https"},
		{Name: ":authority", Value: g.Address},
		{Name: ":path", Value: "/metrics"},
		{Name: "accept-encoding", Value: "gzip"},
	} {
		if err := encoder.WriteField(field); err != nil {
			return err
		}
	}
	return framer.WriteHeaders(http2.HeadersFrameParam{
		StreamID: stream, BlockFragment: block.Bytes(), EndStream: true, EndHeaders: true,
	})
}
