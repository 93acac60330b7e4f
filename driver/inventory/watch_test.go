package inventory

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/google/go-cmp/cmp"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/sysfs"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// watching runs Watch until the test ends and returns the emitted changes.
func watching(t *testing.T, c *CDI) <-chan event {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	events, done := make(chan event, 1024), make(chan error)
	go func() {
		done <- c.Watch(ctx, func(_ time.Time, gone bool, names []string) { events <- event{gone, names} })
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Watch: error %v, want %v", err, context.Canceled)
		}
	})
	return events
}

func expectEvents(t *testing.T, events <-chan event, want ...event) {
	t.Helper()
	timeout := time.NewTimer(30 * time.Second)
	defer timeout.Stop()
	for _, want := range want {
		select {
		case got := <-events:
			diff := cmp.Diff(want, got)
			must.That(t, diff == "", "-want +got:\n%s", diff)
		case <-timeout.C:
			t.Fatalf("no event, want %+v", want)
		}
	}
}

func came(names ...string) event { return event{false, qualified(names)} }

func gone(names ...string) event { return event{true, qualified(names)} }

func qualified(names []string) []string {
	var out []string
	for _, name := range names {
		out = append(out, "vendor.test/dev="+name)
	}
	return out
}

// TestWatch uses the kernel's inotify: specs as drivers write them (to a temporary name, then
// renamed), specs written in place, and folders that come later, through a symbolic link too, and
// go.
func TestWatch(t *testing.T) {
	root := t.TempDir()
	static, late, link := filepath.Join(root, "static"), filepath.Join(root, "late"), filepath.Join(root, "link")
	must.Do(t, errors.Join(os.Mkdir(static, 0o700), os.Symlink(late, link)))
	write(t, filepath.Join(static, "before.yaml"), spec("before"))
	c := NewCDI([]string{static + "/", link}, "")
	c.Load()
	write(t, filepath.Join(static, "early.yaml"), spec("early"))
	events := watching(t, c)
	expectEvents(t, events, came("early"))

	rename := func(dir, name, content string) {
		tmp := filepath.Join(dir, "spec.123.tmp")
		write(t, tmp, content)
		must.Do(t, os.Rename(tmp, filepath.Join(dir, name)))
	}
	rename(static, "claim.json", spec("claim-gpu-0=/dev/nvidia0", "claim-gpu-1=/dev/nvidia1"))
	expectEvents(t, events, came("claim-gpu-0", "claim-gpu-1"))
	h, ok := c.Lookup(qualified([]string{"claim-gpu-1"}))
	expect.That(t, ok && len(h.DeviceNodes) == 1, "%+v, found %v", h, ok)
	must.Do(t, os.Remove(filepath.Join(static, "claim.json")))
	expectEvents(t, events, gone("claim-gpu-0", "claim-gpu-1"))

	file, err := os.Create(filepath.Join(static, "slow.yaml")) // half a spec, then the other half
	must.Do(t, err)
	t.Cleanup(func() { _ = file.Close() })
	content := spec("slow")
	for _, part := range []string{content[:30], content[30:]} {
		must.Get(file.WriteString(part))(t)
	}
	expectEvents(t, events, came("slow"))

	for round := range 2 {
		must.Do(t, os.Mkdir(late, 0o700))
		name := fmt.Sprint("late-", round)
		rename(late, "late.yaml", spec(name))
		expectEvents(t, events, came(name))
		rename(late, "more.yaml", spec("more"))
		expectEvents(t, events, came("more"))
		must.Do(t, os.RemoveAll(late))
		for left := 2; left > 0; { // in one look or two
			e := <-events
			must.That(t, e.Gone, "%+v", e)
			left -= len(e.Names)
		}
	}
}

// TestWatchPolls holds that, without inotify, changes are found within a poll's interval and dated.
func TestWatchPolls(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		c := NewCDI([]string{dir}, "")
		var got []event
		var times []time.Duration
		start := time.Now()
		done := make(chan error)
		go func() {
			done <- c.watch(ctx, watcher{}, func(at time.Time, gone bool, names []string) {
				got, times = append(got, event{gone, names}), append(times, at.Sub(start))
			})
		}()
		synctest.Wait()
		path := filepath.Join(dir, "a.yaml")
		write(t, path, spec("a"))
		<-time.NewTimer(pollInterval + time.Millisecond).C
		synctest.Wait()
		must.Do(t, os.Remove(path))
		<-time.NewTimer(pollInterval).C
		synctest.Wait()
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("error %v", err)
		}
		expect.Equal(t, "", []event{came("a"), gone("a")}, got)
		expect.Equal(t, "times", []time.Duration{pollInterval, 2 * pollInterval}, times)
	})
}

// TestWaitOverflow holds that a lost event means another look, and that a foreign file's does not.
func TestWaitOverflow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewCDI([]string{"/cdi"}, "")
		w := watcher{events: make(chan fsnotify.Event, 1), errors: make(chan error, 1)}
		returned := false
		go func() {
			expect.OK(t, c.wait(t.Context(), w, true))
			returned = true
		}()
		w.events <- fsnotify.Event{Name: "/cdi/spec.123.tmp", Op: fsnotify.Create}
		synctest.Wait()
		expect.That(t, !returned, "a temporary file caused a look")
		w.errors <- fsnotify.ErrEventOverflow
		synctest.Wait()
		expect.That(t, returned, "an overflow caused none")
	})
}

// A file system that hangs under a spec's file delays only the watch: known devices are served, the
// hang is reported once, the end is not delayed, and the file counts once it can be read.
func TestWatchHangs(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a.yaml"), spec("a=/dev/nvidia0"))
	synctest.Test(t, func(t *testing.T) {
		c := NewCDI([]string{dir}, "")
		must.Do(t, c.Load())
		release := make(chan struct{})
		c.readFile = func(path string, limit int64) ([]byte, error) {
			<-release
			return sysfs.ReadFile(path, limit)
		}
		var reported []error
		c.Report = func(_ time.Duration, err error) { reported = append(reported, err) }
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var got []event
		done := make(chan error)
		go func() {
			done <- c.watch(ctx, watcher{}, func(_ time.Time, gone bool, names []string) {
				got = append(got, event{gone, names})
			})
		}()
		synctest.Wait()
		write(t, filepath.Join(dir, "b.yaml"), spec("b"))
		time.Sleep(time.Minute)
		synctest.Wait()
		if h, ok := c.Lookup(qualified([]string{"a"})); !ok || len(h.DeviceNodes) != 1 || len(c.Rejected()) != 0 {
			t.Errorf("%+v, found %v, rejected %v", h, ok, c.Rejected())
		}
		if n := len(reported); driver.ReasonOf(reported[n-1]) != driver.ReasonHung || n > 1 && reported[n-2] != nil {
			t.Errorf("reported %v, want once that it hangs", reported)
		}
		close(release)
		synctest.Wait()
		expect.Equal(t, "", []event{came("b")}, got)
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("error %v", err)
		}
	})
}

// While a file system hangs, Load fails after its deadline, and a watch ends.
func TestHangDelaysNoEnd(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a.yaml"), spec("a"))
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		defer close(release)
		hung := func() *CDI {
			c := NewCDI([]string{dir}, "")
			c.readFile = func(string, int64) ([]byte, error) { <-release; return nil, os.ErrNotExist }
			return c
		}
		if err := hung().Load(); driver.ReasonOf(err) != driver.ReasonHung {
			t.Errorf("Load: error %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begun := time.Now()
		err := hung().watch(ctx, watcher{}, nil)
		if took := time.Since(begun); !errors.Is(err, context.DeadlineExceeded) || took > time.Second+driver.ReadWait {
			t.Errorf("watch: error %v after %v", err, took)
		}
	})
}
