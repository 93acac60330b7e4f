package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/exporter/web/decode"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// asked are nodes whose exporters answer after 5 ms, or hang.
type asked struct {
	mu    sync.Mutex
	hangs map[string]bool
	times map[string]int
	body  string
}

func (a *asked) ask(ctx context.Context, node, _, _ string, read func(io.Reader) error) (string, error) {
	a.mu.Lock()
	a.times[node]++
	hangs := a.hangs[node]
	a.mu.Unlock()
	if hangs {
		<-ctx.Done()
		return "", context.Cause(ctx)
	}
	time.Sleep(5 * time.Millisecond)
	return "", read(strings.NewReader(a.body))
}

func newFleet(nodes, hanging int) (*fleet, *asked) {
	a := &asked{hangs: map[string]bool{}, times: map[string]int{}, body: `{"devices":{"free":1}}`}
	addresses := map[string]string{}
	for i := range nodes {
		node := fmt.Sprintf("n%d", i)
		addresses[node], a.hangs[node] = node, i < hanging
	}
	list := func(context.Context) (map[string]string, error) { return addresses, nil }
	return &fleet{
		now: time.Now, exporters: list, ask: a.ask, memory: decode.NewBudget(summaryShare, summaryPool),
		slow: make(chan struct{}, slowPlaces),
	}, a
}

// Nodes that answer are asked every ten seconds, however many others hang. Those are asked less
// often, are said to be silent only after the longer time, and are found again when they answer.
func TestHangingNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const nodes, hanging = 1000, 500
		f, a := newFleet(nodes, hanging)
		look := func() (healthy, silent int, oldest time.Duration) {
			began := time.Now()
			found, _, _ := f.look(t.Context())
			took := time.Since(began)
			expect.That(t, took <= firstAnswers, "a page waits %v", took)
			for _, s := range found {
				switch {
				case errors.Is(s.err, errSilent):
					silent++
				case s.err == nil:
					healthy++
					oldest = max(oldest, time.Since(s.at))
				}
				var i int
				_, err := fmt.Sscanf(s.node, "n%d", &i)
				must.That(t, err == nil && (s.err == nil || errors.Is(s.err, errNotAsked) || i < hanging),
					"%s: %v, %v", s.node, s.err, err)
			}
			time.Sleep(time.Until(began.Add(5 * time.Second)))
			return healthy, silent, oldest
		}
		var healthy, silent int
		for i := range 24 {
			var oldest time.Duration
			healthy, silent, oldest = look()
			expect.That(t, i <= 1 || healthy == nodes-hanging && oldest <= 11*time.Second,
				"after %d s: %d nodes answer, the oldest %v ago", 5*i, healthy, oldest)
		}
		expect.Is(t, silent, hanging, "nodes are said to be silent")
		a.mu.Lock()
		for i, most := range []int{5, 13} { // in two minutes
			if node := fmt.Sprintf("n%d", i*hanging); a.times[node] > most || a.times[node] < 2+9*i {
				t.Errorf("%s was asked %d times in two minutes", node, a.times[node])
			}
		}
		a.hangs = map[string]bool{}
		a.mu.Unlock()
		for range 14 { // a minute's pause, and one round
			healthy, silent, _ = look()
		}
		expect.That(t, silent == 0 && healthy == nodes,
			"%d nodes are said to be silent, though they answer; %d of %d answer", silent, healthy, nodes)
		time.Sleep(askTimeout)
	})
}

// A node that is late once, as on a busy machine, is asked again before those that hang, not among
// them.
func TestLateOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const hanging, late = 500, "n999"
		f, a := newFleet(1000, hanging)
		a.hangs[late] = true
		_, _, _ = f.look(t.Context())
		time.Sleep(5 * time.Second)
		a.mu.Lock()
		a.hangs[late] = false
		a.mu.Unlock()
		_, _, _ = f.look(t.Context())
		time.Sleep(5 * time.Second)
		found, _, _ := f.look(t.Context())
		for _, s := range found {
			expect.That(t, s.node != late || s.err == nil, "%s: %v", s.node, s.err)
		}
		time.Sleep(askTimeout)
	})
}

// What a node has said stays while it is not asked, with its time.
func TestOldAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, a := newFleet(1, 0)
		found, before, _ := f.look(t.Context())
		if row, _ := newRow(found[0], &view{all: true}); row.AsOf != "" || len(row.Devices) != 1 {
			t.Errorf("a fresh answer: %+v", row)
		}
		at := present.Clock(time.Now())
		a.hangs["n0"] = true
		time.Sleep(time.Hour)
		found, after, _ := f.look(t.Context())
		row, _ := newRow(found[0], &view{all: true})
		expect.That(t, row.AsOf == at && row.Trouble == "" && len(row.Devices) == 1 && after != before,
			"an old answer: %+v, change %d, %d; want as of %s", row, before, after, at)
		time.Sleep(5 * time.Second)
		_, _, _ = f.look(t.Context()) // promptly once more
		time.Sleep(5 * time.Second)
		_, _, _ = f.look(t.Context()) // with more time
		time.Sleep(5 * time.Second)
		found, _, _ = f.look(t.Context())
		if row, _ = newRow(found[0], &view{all: true}); row.Trouble != errSilent.Error() || row.AsOf != at {
			t.Errorf("a node that hangs: %+v", row)
		}
	})
}

// Answers of all nodes together are bounded. Large ones lose, and small ones have room.
func TestMemoryOfAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, a := newFleet(30, 0)
		small := a.body
		claim := `{"namespace":"` + strings.Repeat("x", 2000) + `"}`
		a.body = `{"claims":[` + claim + strings.Repeat(","+claim, 400) + `]}`
		found, _, _ := f.look(t.Context())
		full := 0
		for _, s := range found {
			if errors.Is(s.err, decode.ErrNoRoom) {
				full++
			}
		}
		expect.That(t, full != 0 && full != len(found), "%d of %d large answers have no room", full, len(found))
		a.body = small
		time.Sleep(askedEach)
		found, _, _ = f.look(t.Context())
		for _, s := range found {
			expect.That(t, s.err == nil, "%s: %v", s.node, s.err)
		}
	})
}

// An answer must begin in time, and all of it must have come in time.
func TestSlowAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, of := range []struct {
			header, body time.Duration // until the first byte of the answer, and until the next one
			want         error
			after        time.Duration
		}{
			{askTimeout - 1, 5 * time.Second, nil, askTimeout - 1 + 2*5*time.Second}, // and its end is read
			{time.Hour, 0, errSilent, askTimeout},
			{time.Second, time.Hour, errSlow, wholeTimeout},
		} {
			g := &gateway{Config: Config{Transport: late{of.header, of.body}}}
			begun := time.Now()
			_, err := g.ask(t.Context(), "n", "/", "", func(r io.Reader) error {
				_, err := io.ReadAll(r)
				return err
			})
			took := time.Since(begun)
			expect.That(t, errors.Is(err, of.want) && took == of.after,
				"%v after %v, want %v after %v", err, took, of.want, of.after)
		}
	})
}

// late is a transport whose answers and bodies come late.
type late struct{ header, body time.Duration }

// RoundTrip implements [http.RoundTripper].
func (l late) RoundTrip(r *http.Request) (*http.Response, error) {
	body := lateBody{r, l.body}
	if _, err := (lateBody{r, l.header}).Read(nil); !errors.Is(err, io.EOF) {
		return nil, err
	}
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(body)}, nil
}

// lateBody is an empty body that ends after a time.
type lateBody struct {
	of    *http.Request
	after time.Duration
}

// Read implements [io.Reader].
func (b lateBody) Read([]byte) (int, error) {
	select {
	case <-time.After(b.after):
		return 0, io.EOF
	case <-b.of.Context().Done():
		return 0, b.of.Context().Err()
	}
}
