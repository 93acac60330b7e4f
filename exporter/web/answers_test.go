package web

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dra-exporter/dra-exporter/exporter/exposition"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

// desk is answers with a maker that counts.
type desk struct {
	*answers
	latest *exposition.Snapshot
	log    bytes.Buffer
	made   int
	body   []byte
	before func() // is called before one is made
	fail   error
}

func newDesk() *desk {
	d := &desk{latest: &exposition.Snapshot{}, body: []byte("one,two,ok"), before: func() {}}
	d.answers = newAnswers(&Config{
		Latest: func() *exposition.Snapshot { return d.latest }, Log: slog.New(slog.NewTextHandler(&d.log, nil)),
		MaxAnswers: 8 << 20, GiveWay: func(context.Context) {},
	}, 10, make(chan struct{}, 1), make(chan struct{}, 1))
	return d
}

// get asks for a variant of a name.
func (d *desk) get(w http.ResponseWriter, name, encoding string, names []string) {
	r := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
	r.Header.Set("Accept-Encoding", encoding)
	d.serve(w, r, name, names, func(w io.Writer) ([]exposition.Part, error) {
		d.made++
		d.before()
		_, _ = w.Write(d.body)
		return []exposition.Part{
			{Family: "one", End: 4}, {Family: "two", Begin: 4, End: 8}, {Begin: 8, End: len(d.body)},
		}, d.fail
	})
}

// Each variant of a snapshot is made once for all clients, and again a second later, since the
// exporter's own metrics change without a snapshot.
func TestAnswersAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const clients = 40
		d := newDesk()
		together := false
		d.before = func() { // the first one is made when all have asked
			for users := 0; users < clients && !together; runtime.Gosched() {
				users = 0
				d.mu.Lock()
				for _, a := range d.held {
					users += a.users
				}
				d.mu.Unlock()
			}
			together = true
		}
		ask := func(want int, why string) {
			together = false
			var asking sync.WaitGroup
			for i := range clients {
				asking.Go(func() {
					w := httptest.NewRecorder()
					d.get(w, fmt.Sprint("format ", i%2), []string{"", "gzip"}[i/2%2], nil)
					expect.That(t, w.Code == http.StatusOK && w.Body.Len() != 0, "status %d, %d bytes", w.Code, w.Body.Len())
				})
			}
			asking.Wait()
			expect.That(t, d.made == want, "%s: %d answers were made, want %d", why, d.made, want)
		}
		ask(2, "two formats, compressed and not")
		ask(2, "the same snapshot")
		d.latest = &exposition.Snapshot{}
		ask(4, "another snapshot")
		time.Sleep(freshFor)
		ask(6, "a second later")
		if held, _ := d.holds(); held != 2 {
			t.Errorf("%d answers are held, want the fresh ones", held)
		}
		time.Sleep(freshFor + 1)
		synctest.Wait()
		if held, size := d.holds(); held != 0 || size != 0 {
			t.Errorf("%d answers of %d bytes are held a second later, want none", held, size)
		}
	})
}

// holds returns how many answers are in memory, and their bytes.
func (a *answers) holds() (held, size int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.held), a.bytes
}

// reader is a client that does not read: a write ends when its deadline is over.
type reader struct {
	httptest.ResponseRecorder
	cut  chan struct{}
	once sync.Once
}

func newReader() *reader {
	return &reader{ResponseRecorder: *httptest.NewRecorder(), cut: make(chan struct{})}
}

func (r *reader) Write([]byte) (int, error) {
	<-r.cut
	return 0, os.ErrDeadlineExceeded
}

func (r *reader) SetWriteDeadline(at time.Time) error {
	if at.Before(time.Now()) {
		r.once.Do(func() { close(r.cut) })
	}
	return nil
}

func (r *reader) isCut() bool {
	select {
	case <-r.cut:
		return true
	default:
		return false
	}
}

// Clients that keep old answers in memory by reading slowly are cut off, those of the oldest first.
func TestSlowReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk()
		d.body = make([]byte, d.most/4)
		_, _ = rand.NewChaCha8([32]byte{}).Read(d.body) // it can't be compressed
		var readers []*reader
		var reading sync.WaitGroup
		for i := range 5 {
			r := newReader()
			readers = append(readers, r)
			d.latest = &exposition.Snapshot{}
			reading.Go(func() { d.get(r, "text", "", nil) })
			synctest.Wait()
			for j, earlier := range readers {
				expect.Is(t, earlier.isCut(), i-j > 2, "after %d answers: reader %d is cut off", i+1, j)
			}
			expect.That(t, d.bytes <= d.most, "%d bytes are held, want %d at most", d.bytes, d.most)
		}
		for _, r := range readers {
			_ = r.SetWriteDeadline(past())
		}
		reading.Wait()
		expect.That(t, len(d.held) == 1 && d.bytes == cap(d.held[0].body),
			"%d answers of %d bytes are held, want the fresh one", len(d.held), d.bytes)
	})
}

// Where answers are decompressed in turns, all of each is sent, and a client that does not read
// delays no other.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk()
		d.turns = make(chan struct{}, 1)
		d.body = make([]byte, 3*pieceSize+1)
		_, _ = rand.NewChaCha8([32]byte{}).Read(d.body)
		stuck := newReader()
		var reading sync.WaitGroup
		reading.Go(func() { d.get(stuck, "text", "", nil) })
		synctest.Wait()
		w := httptest.NewRecorder()
		d.get(w, "text", "", nil)
		expect.That(t, bytes.Equal(w.Body.Bytes(), d.body), "%d bytes of %d were sent", w.Body.Len(), len(d.body))
		d.turns <- struct{}{} // another's turn
		w = httptest.NewRecorder()
		reading.Go(func() { d.get(w, "text", "", nil) })
		synctest.Wait()
		expect.That(t, w.Body.Len() <= 0, "%d bytes were sent out of turn", w.Body.Len())
		<-d.turns
		_ = stuck.SetWriteDeadline(past())
		reading.Wait()
		expect.That(t, w.Body.Len() == len(d.body), "%d bytes of %d were sent", w.Body.Len(), len(d.body))
		time.Sleep(2 * freshFor) // until the answers are dropped
	})
}

// Missing parts of answers are logged once, until the error changes.
func TestFaultsAreLoggedOnce(t *testing.T) {
	d := newDesk()
	for _, fail := range []error{nil, errors.New("one"), errors.New("one"), errors.New("two"), nil, nil} {
		d.latest, d.fail = &exposition.Snapshot{}, fail
		w := httptest.NewRecorder()
		if d.get(w, "text", "", nil); w.Code != http.StatusOK {
			t.Errorf("status %d", w.Code)
		}
	}
	if got := strings.Count(d.log.String(), "\n"); got != 3 || strings.Count(d.log.String(), "incomplete") != 2 {
		t.Errorf("the log has %d lines, want 3: %s", got, &d.log)
	}
}

// An answer that can't be made is an error for all who wait for it, and not for later requests.
func TestAnswerThatFails(t *testing.T) {
	d := newDesk()
	ask := func(encoding string, do maker) int {
		r := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
		r.Header.Set("Accept-Encoding", encoding)
		w := httptest.NewRecorder()
		d.serve(w, r, "page", nil, do)
		return w.Code
	}
	for _, encoding := range []string{"", "gzip"} {
		d.latest = &exposition.Snapshot{}
		bad := func(io.Writer) ([]exposition.Part, error) { return nil, errors.New("broken") }
		good := func(w io.Writer) ([]exposition.Part, error) {
			_, err := io.WriteString(w, "page")
			return nil, err
		}
		expect.Is(t, ask(encoding, bad), http.StatusInternalServerError, "%q: status", encoding)
		d.latest = &exposition.Snapshot{}
		if got := ask(encoding, good); got != http.StatusOK {
			t.Errorf("%q: status %d for the next one", encoding, got)
		}
	}
}

func TestAcceptsGzip(t *testing.T) {
	for header, want := range map[string]bool{
		"": false, "gzip": true, "GZIP": true, "deflate, gzip;q=0.5": true, "gzip;q=0": false, "gzip; q=0.0, *": false,
		"*": true, "*;q=0": false, "identity": false, "gzip;q=x": false, "br;q=1.0, gzip;q=0.8, *;q=0.1": true,
	} {
		expect.Is(t, AcceptsGzip(http.Header{"Accept-Encoding": {header}}), want, "%q", header)
	}
}

// So many different answers wait to be made, and one more is refused. Those that wait in vain end
// with their requests.
func TestQueueOfDifferentAnswers(t *testing.T) {
	d := newDesk()
	hold := make(chan struct{})
	d.before = func() { <-hold }
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var asking sync.WaitGroup
	for n := range maxMaking {
		asking.Go(func() {
			r := httptest.NewRequest(http.MethodGet, "/", http.NoBody).WithContext(ctx)
			wait := func(io.Writer) ([]exposition.Part, error) {
				<-hold
				return nil, nil
			}
			d.serve(httptest.NewRecorder(), r, fmt.Sprint("answer?", n), nil, wait)
		})
	}
	queued := func() int {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.queue
	}
	for queued() < maxMaking {
		runtime.Gosched()
	}
	w := httptest.NewRecorder()
	d.get(w, "one too many", "", nil)
	expect.That(t, w.Code == http.StatusServiceUnavailable && w.Header().Get("Retry-After") != "",
		"status %d, Retry-After %q", w.Code, w.Header().Get("Retry-After"))
	cancel()
	for queued() > 1 { // the one that is made
		runtime.Gosched()
	}
	close(hold)
	asking.Wait()
	if w = httptest.NewRecorder(); queued() != 0 {
		t.Errorf("%d answers are in the queue", queued())
	}
	if d.get(w, "one too many", "", nil); w.Code != http.StatusOK {
		t.Errorf("status %d", w.Code)
	}
}

// All answers but those to probes wait while other work is more urgent.
func TestRequestsGiveWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		urgent := make(chan struct{})
		handler := NewHandler(Config{
			MetricsPath: "/metrics", Scrapes: &Scrapes{}, Pprof: true, Latest: func() *exposition.Snapshot { return nil },
			GiveWay: func(ctx context.Context) {
				select {
				case <-urgent:
				case <-ctx.Done():
				}
			},
		})
		answered := map[string]time.Time{}
		var mu sync.Mutex
		var asking sync.WaitGroup
		routes := Routes("/metrics")
		for _, route := range routes {
			if route.Kind == KindMetrics || route.Kind == KindProfile {
				continue // they need a renderer, and seconds
			}
			asking.Go(func() {
				r := httptest.NewRequest(http.MethodGet, route.Example, http.NoBody)
				handler.ServeHTTP(httptest.NewRecorder(), r)
				mu.Lock()
				defer mu.Unlock()
				answered[route.Example] = time.Now()
			})
		}
		begun := time.Now()
		time.Sleep(time.Second)
		close(urgent)
		asking.Wait()
		for _, route := range routes {
			at, asked := answered[route.Example]
			expect.That(t, !asked || at.Equal(begun) == (route.Kind == KindProbe),
				"%s is answered after %v", route.Example, at.Sub(begun))
		}
		expect.That(t, len(answered) >= 10, "only %d paths were asked for", len(answered))
	})
}

// An answer that is being made or sent waits at its next piece.
func TestPiecesGiveWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk()
		var pause time.Duration
		d.giveWay = func(context.Context) { time.Sleep(pause) }
		took := func(encoding string) time.Duration {
			from := time.Now()
			d.get(httptest.NewRecorder(), "a", encoding, nil)
			return time.Since(from)
		}
		d.before = func() { pause = time.Second }
		expect.Is(t, took("gzip"), time.Second, "an answer of one piece is made in")
		d.body = make([]byte, 3*pieceSize)
		d.latest = &exposition.Snapshot{}
		if took := took(""); took < 4*time.Second {
			t.Errorf("an answer is made, and three pieces are sent, in %v", took)
		}
	})
}
