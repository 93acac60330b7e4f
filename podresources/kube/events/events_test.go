package events

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"path"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/testmain"
)

func TestMain(m *testing.M) { testmain.Main(m) }

// server is a fake API server, which keeps events.
type server struct {
	mu      sync.Mutex
	objects map[string]*corev1.Event
	writes  []time.Time             // of events
	fault   func(path string) error // nil: none
	denied  bool                    // by reviews
}

func newServer() *server { return &server{objects: map[string]*corev1.Event{}} }

func (s *server) Post(ctx context.Context, to string, object []byte) (io.ReadCloser, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if to == reviews {
		return answer(&authorizationv1.SelfSubjectAccessReview{
			Status: authorizationv1.SubjectAccessReviewStatus{Allowed: !s.denied},
		})
	}
	var e corev1.Event
	if err := json.Unmarshal(object, &e); err != nil {
		return nil, err
	}
	return s.write(ctx, to+"/"+e.Name, func(before *corev1.Event) (*corev1.Event, error) {
		if before != nil {
			return nil, driver.WithReason(driver.ReasonServerError, apierrors.NewAlreadyExists(schema.GroupResource{}, e.Name))
		}
		return &e, nil
	})
}

func (s *server) Patch(ctx context.Context, to string, patch []byte) (io.ReadCloser, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.write(ctx, to, func(before *corev1.Event) (*corev1.Event, error) {
		if before == nil {
			return nil, driver.WithReason(driver.ReasonAbsent, apierrors.NewNotFound(schema.GroupResource{}, path.Base(to)))
		}
		after := before.DeepCopy()
		return after, json.Unmarshal(patch, after)
	})
}

// write applies a change to the object at a path. s.mu is held.
func (s *server) write(
	ctx context.Context, to string, change func(*corev1.Event) (*corev1.Event, error),
) (io.ReadCloser, error) {
	s.writes = append(s.writes, time.Now())
	if s.fault != nil {
		if err := s.fault(to); err != nil {
			return nil, err
		}
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	after, err := change(s.objects[to])
	if err != nil {
		return nil, err
	}
	s.objects[to] = after
	return answer(after)
}

func answer(object any) (io.ReadCloser, error) {
	body, err := json.Marshal(object)
	return io.NopCloser(bytes.NewReader(body)), err
}

// counts returns the counts of the events of an object, by reason and message.
func (s *server) counts(of Object) map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[string]int{}
	for _, e := range s.objects {
		o := e.InvolvedObject
		if (Object{o.Kind, o.Namespace, o.Name, string(o.UID)}) == of {
			out[e.Reason+": "+e.Message] += int(e.Count)
		}
	}
	return out
}

// run is a writer that runs, and what it counted.
type run struct {
	*Writer
	stop func()

	mu      sync.Mutex
	results map[Result]int
	states  []driver.Reason // that changed
}

func start(t *testing.T, api API) *run {
	r := &run{results: map[Result]int{}}
	r.Writer = New(Config{
		API: api, Node: "node-1",
		Count: func(result Result) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.results[result]++
		},
		State: func(err error) {
			r.mu.Lock()
			defer r.mu.Unlock()
			why := driver.ReasonOf(err)
			if len(r.states) == 0 || r.states[len(r.states)-1] != why {
				r.states = append(r.states, why)
			}
		},
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); r.Run(ctx) }()
	r.stop = func() { cancel(); <-ended }
	t.Cleanup(r.stop)
	return r
}

// want compares what was counted.
func (r *run) want(t *testing.T, want map[Result]int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	expect.Equal(t, "results", want, r.results)
}

func pod(n int) Object {
	return Object{Pod, "team", fmt.Sprintf("pod-%d", n), fmt.Sprintf("uid-%d", n)}
}

func xid(of Object, times int) Event {
	return Event{Object: of, Reason: "DeviceXID", Message: "XID 79", At: time.Now(), Times: times}
}

// An error that happens each second is one event, whose count is soon, and a minute after the end,
// how often it happened. The object has what kubectl looks for.
func TestRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		r := start(t, s)
		began := time.Now()
		for range 200 {
			r.Write(xid(pod(1), 3), xid(Object{ResourceClaim, "team", "claim", "uid-c"}, 1))
			time.Sleep(time.Second)
		}
		time.Sleep(time.Minute)
		for of, want := range map[Object]int{pod(1): 600, {ResourceClaim, "team", "claim", "uid-c"}: 200} {
			expect.Equal(t, fmt.Sprintf("events of %v", of), map[string]int{"DeviceXID: XID 79": want}, s.counts(of))
		}
		r.want(t, map[Result]int{Created: 2, Updated: 8})
		for _, e := range s.objects {
			if e.FirstTimestamp.Sub(began) > time.Second || e.LastTimestamp.Sub(began) < 198*time.Second ||
				e.Type != "Warning" || e.Source.Host != "node-1" || e.ReportingController != "dra-exporter" ||
				e.Namespace != "team" || e.Kind != "Event" || e.InvolvedObject.APIVersion == "" {
				t.Errorf("the event is %+v", e)
			}
		}
	})
}

// A new writer continues the count of the event that its predecessor created. An event that the API
// server has deleted is created again, with the complete count.
func TestRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		for range 2 {
			r := start(t, s)
			r.Write(xid(pod(1), 2))
			synctest.Wait()
			r.Write(xid(pod(1), 1))
			time.Sleep(2 * time.Minute)
			r.stop()
		}
		if diff := cmp.Diff(map[string]int{"DeviceXID: XID 79": 6}, s.counts(pod(1))); diff != "" || len(s.objects) != 1 {
			t.Errorf("events (-want +got):\n%s", diff)
		}
		r := start(t, s)
		r.Write(xid(pod(1), 1))
		time.Sleep(2 * time.Minute)
		s.mu.Lock()
		clear(s.objects)
		s.mu.Unlock()
		r.Write(xid(pod(1), 1))
		time.Sleep(2 * time.Minute)
		expect.Equal(t, "events after they expired", map[string]int{"DeviceXID: XID 79": 8}, s.counts(pod(1)))
	})
}

// Without the right every event is counted as forbidden, and that is known before there is one.
// With the right events are written again. What is about a namespace that ends is lost alone.
func TestRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		s.denied = true
		forbidden := driver.WithReason(driver.ReasonForbidden, fmt.Errorf("no"))
		s.fault = func(string) error { return forbidden }
		r := start(t, s)
		synctest.Wait()
		if diff := cmp.Diff([]driver.Reason{driver.ReasonForbidden}, r.states); diff != "" {
			t.Errorf("states before the first event:\n%s", diff)
		}
		r.Write(xid(pod(1), 1), xid(pod(2), 1), xid(Object{Kind: Pod, Namespace: "team", Name: "unknown"}, 1))
		time.Sleep(time.Minute)
		r.want(t, map[Result]int{Result(driver.ReasonForbidden): 2, UIDUnknown: 1})
		s.mu.Lock()
		s.fault = func(to string) error {
			if strings.Contains(to, "/ended/") {
				return driver.WithReason(driver.ReasonAbsent, fmt.Errorf("the namespace ends"))
			}
			return nil
		}
		s.mu.Unlock()
		r.Write(xid(Object{Pod, "ended", "x", "uid-x"}, 1), xid(pod(3), 1), xid(pod(1), 1))
		time.Sleep(time.Minute)
		r.want(t, map[Result]int{
			Result(driver.ReasonForbidden): 2, UIDUnknown: 1, Result(driver.ReasonAbsent): 1, Created: 2,
		})
		expect.Is(t, s.counts(pod(1))["DeviceXID: XID 79"], 2, "the event that was refused before has the count")
	})
}

// While the API server can't be reached, events wait for up to ten minutes.
func TestUnreachable(t *testing.T) {
	for _, test := range []struct {
		outage time.Duration
		want   map[Result]int
	}{
		{4 * time.Minute, map[Result]int{Created: 2}},
		{15 * time.Minute, map[Result]int{Result(driver.ReasonUnavailable): 2}},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newServer()
			again := time.Now().Add(test.outage)
			s.fault = func(string) error {
				if time.Now().Before(again) {
					return driver.WithReason(driver.ReasonUnavailable, fmt.Errorf("down"))
				}
				return nil
			}
			r := start(t, s)
			r.Write(xid(pod(1), 1), xid(pod(2), 1))
			time.Sleep(35 * time.Minute)
			r.want(t, test.want)
			expect.That(t, len(s.writes) <= 40, "%d requests in %v", len(s.writes), test.outage)
		})
	}
}

// A storm of incidents costs the API server a burst and then a request a second; what does not fit
// is counted. Nothing waits for it.
func TestStorm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		r := start(t, s)
		synctest.Wait()
		began := time.Now()
		for n := range 64 * 32 {
			r.Write(xid(pod(n), 1))
		}
		took := time.Since(began)
		expect.That(t, took <= 0, "to write events took %v", took)
		time.Sleep(30 * time.Second)
		s.mu.Lock()
		expect.That(t, len(s.writes) <= burst+31, "%d requests in 30 s", len(s.writes))
		s.mu.Unlock()
		time.Sleep(10 * time.Minute)
		r.stop()
		created, lost := r.results[Created], r.results[Result(driver.ReasonTooMany)]
		expect.That(t, created == len(s.objects) && created <= maxWaiting+burst+1 && created+lost == 64*32,
			"%d events are created, results %v", len(s.objects), r.results)
	})
}

// At the end what waits is written, unless the API server hangs.
func TestEnd(t *testing.T) {
	for _, hangs := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := newServer()
			var api API = s
			if hangs {
				api = hanging{s}
			}
			r := start(t, api)
			for n := range burst + 5 {
				r.Write(xid(pod(n), 1))
			}
			synctest.Wait()
			began := time.Now()
			r.stop()
			took := time.Since(began)
			expect.That(t, took <= drainTimeout, "the end took %v", took)
			got := len(s.objects)
			expect.That(t, (got == burst+5) != hangs, "%d events are written", got)
			total := 0
			for n := range maps.Values(r.results) {
				total += n
			}
			expect.That(t, total == burst+5, "of %d events %d are counted: %v", burst+5, total, r.results)
		})
	}
}

// hanging answers reviews alone.
type hanging struct{ *server }

func (h hanging) Post(ctx context.Context, to string, object []byte) (io.ReadCloser, error) {
	if to == reviews {
		return h.server.Post(ctx, to, object)
	}
	<-ctx.Done()
	return nil, driver.WithReason(driver.ReasonTimeout, ctx.Err())
}

// The names of events are names of objects, whatever the pod's is.
func TestName(t *testing.T) {
	w := New(Config{Node: "node-1"})
	names := map[string]bool{}
	for _, name := range []string{
		"a", strings.Repeat("a", 253), strings.Repeat("a.", 126) + "a", strings.Repeat("a", 199) + "-b",
	} {
		for _, reason := range []string{"A", "B"} {
			e := w.object(&record{Event: Event{Object: Object{Pod, "team", name, "uid"}, Reason: reason, Message: "é" + name}})
			names[e.Name] = true
			problems := validation.IsDNS1123Subdomain(e.Name)
			expect.That(t, len(problems) == 0, "%s: %v", e.Name, problems)
		}
	}
	expect.Is(t, len(names), 8, "names of 8 events")
}
