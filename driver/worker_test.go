package driver_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

// A call that panics has a result with an error.
func TestCallPanics(t *testing.T) {
	call := driver.Go(func() error { panic("no luck") }, func(err error) error { return err })
	err, done := call.Wait(t.Context())
	expect.That(t, done && driver.ReasonOf(err) == driver.ReasonPanic && err.Error() == "panic: no luck",
		"done %v, error %v", done, err)
}

// reports are the reports of a worker.
type reports []error

func (r *reports) add(o driver.Outcome[int]) { *r = append(*r, o.Err) }

// A call that hangs blocks only the worker, is reported once, and is finished when it returns.
func TestWorkerHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reported reports
		w := driver.Worker[int]{Operation: "read", Deadline: driver.ReadDeadline, Report: reported.add}
		release := make(chan struct{})
		hang := func(context.Context) (int, error) { <-release; return 1, nil }
		good := func(context.Context) (int, error) { return 2, nil }
		takes := func(want time.Duration, f func(context.Context) (int, error)) (int, error) {
			begun := time.Now()
			value, err := w.Do(t.Context(), driver.ReadWait, f)
			expect.Is(t, time.Since(begun), want, "Do took")
			return value, err
		}
		if _, err := takes(driver.ReadWait, hang); driver.ReasonOf(err) != driver.ReasonHung || len(reported) != 0 {
			t.Errorf("at first: error %v, reported %v", err, reported)
		}
		for range 3 {
			time.Sleep(driver.ReadDeadline + driver.HangAfter)
			if _, err := takes(0, good); driver.ReasonOf(err) != driver.ReasonHung || !w.Busy() {
				t.Errorf("while it hangs: error %v", err)
			}
		}
		expect.That(t, len(reported) == 1 && driver.ReasonOf(reported[0]) == driver.ReasonHung,
			"reported %v, want once that it hangs", reported)
		close(release)
		synctest.Wait()
		if value, err := takes(0, good); value != 2 || err != nil || w.Busy() {
			t.Errorf("after it: %d, error %v", value, err)
		}
		expect.That(t, len(reported) == 3 && reported[1] == nil && reported[2] == nil,
			"reported %v, want two calls that ended, too", reported)
	})
}

// A call has a context with the deadline; one that panics fails, and the next one does not.
func TestWorkerDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := driver.Worker[int]{Operation: "read", Deadline: time.Second}
		_, err := w.Do(t.Context(), time.Minute, func(ctx context.Context) (int, error) { <-ctx.Done(); return 0, ctx.Err() })
		expect.That(t, errors.Is(err, context.DeadlineExceeded), "error %v", err)
		_, err = w.Do(t.Context(), time.Minute, func(context.Context) (int, error) { panic("x") })
		expect.That(t, driver.ReasonOf(err) == driver.ReasonPanic && err.Error() == "read: panic: x", "error %v", err)
		value, err := w.Do(t.Context(), time.Minute, func(context.Context) (int, error) { return 3, nil })
		expect.That(t, value == 3 && err == nil, "%d, error %v", value, err)
	})
}

// Run waits for as long as a call takes, reports one that hangs, and ends with its context.
func TestWorkerRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reported reports
		w := driver.Worker[int]{Operation: "read", Deadline: driver.ReadDeadline, Report: reported.add}
		value, err := w.Run(t.Context(), func(context.Context) (int, error) { time.Sleep(time.Minute); return 4, nil })
		expect.That(t, value == 4 && err == nil && len(reported) == 2 && driver.ReasonOf(reported[0]) == driver.ReasonHung,
			"%d, error %v, reported %v", value, err, reported)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		begun, release := time.Now(), make(chan struct{})
		_, err = w.Run(ctx, func(context.Context) (int, error) { <-release; return 0, nil })
		if took := time.Since(begun); !errors.Is(err, context.Canceled) || !w.Busy() || took != time.Second+driver.ReadWait {
			t.Errorf("after %v: error %v", took, err)
		}
		close(release)
	})
}
