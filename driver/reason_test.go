package driver_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// TestReasons: the constants are all there are, each once, and valid as labels.
func TestReasons(t *testing.T) {
	text := string(must.Get(os.ReadFile("reason.go"))(t))
	seen := map[string]bool{}
	for _, found := range regexp.MustCompile(`Reason = "([^"]*)"`).FindAllStringSubmatch(text, -1) {
		expect.That(t, !seen[found[1]], "%q is there twice", found[1])
		snake := regexp.MustCompile(`^[a-z0-9]+(_[a-z0-9]+)*$`).MatchString(found[1])
		expect.That(t, snake, "%q is not in snake case", found[1])
		seen[found[1]] = true
	}
	expect.That(t, len(seen) > 50, "%d reasons", len(seen))
	other := regexp.MustCompile(`driver\.Reason\("\w|WithReason\("`)
	must.Do(t, filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".go") && path != "reason_test.go" {
			made := other.Find(must.Get(os.ReadFile(path))(t))
			expect.That(t, made == nil, "%s makes a reason: %s", path, made)
		}
		return err
	}))
}

func TestReasonOf(t *testing.T) {
	lost := driver.WithReason(driver.ReasonGPULost, errors.New("lost"))
	for _, tc := range []struct {
		err  error
		want driver.Reason
	}{
		{nil, ""},
		{errors.New("x"), driver.ReasonOther},
		{lost, driver.ReasonGPULost},
		{fmt.Errorf("read: %w", lost), driver.ReasonGPULost},
		{errors.Join(errors.New("x"), lost), driver.ReasonGPULost},
		{driver.WithReason(driver.ReasonHostEngine, lost), driver.ReasonHostEngine}, // the outer one
		{driver.WithReason(driver.ReasonGPULost, context.Canceled), driver.ReasonGPULost},
		{driver.WithReason(driver.ReasonGPULost, nil), ""},
		{driver.Hung("call NVML"), driver.ReasonHung},
		{fmt.Errorf("read: %w", context.DeadlineExceeded), driver.ReasonTimeout},
		{&fs.PathError{Op: "read", Path: "x", Err: os.ErrDeadlineExceeded}, driver.ReasonTimeout},
		{context.Canceled, driver.ReasonCanceled},
		{&fs.PathError{Op: "open", Path: "x", Err: fs.ErrPermission}, driver.ReasonForbidden},
	} {
		expect.Is(t, driver.ReasonOf(tc.err), tc.want, "ReasonOf(%v) =", tc.err)
	}
	expect.Is(t, driver.Hung("call NVML").Error(), "call NVML: no answer in time", "hung")
}

func TestRejections(t *testing.T) {
	counts := driver.Rejections{}
	counts.Add(driver.ReasonTooMany, 2)
	counts.Add(driver.ReasonDuplicate, 1)
	counts.Add(driver.ReasonTooMany, 1)
	counts.Add(driver.ReasonStale, 0)
	counts.Add(driver.ReasonStale, -1)
	want := []driver.Rejection{
		{Input: "slices", Reason: driver.ReasonDuplicate, Count: 1},
		{Input: "slices", Reason: driver.ReasonTooMany, Count: 3},
	}
	expect.Equal(t, "rejections", want, counts.Of("slices"))
}
