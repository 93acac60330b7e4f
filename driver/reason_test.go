package driver_test

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// TestReasons compares the list with the constants: all of them, each once, and valid as labels.
func TestReasons(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "reason.go", nil, 0)
	must.Do(t, err)
	var constants []driver.Reason
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || !strings.HasPrefix(spec.Names[0].Name, "Reason") {
			return true
		}
		value, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
		expect.OK(t, err)
		constants = append(constants, driver.Reason(value))
		return true
	})
	if diff := cmp.Diff(constants, driver.Reasons()); diff != "" {
		t.Errorf("constants and Reasons() (-constants +list):\n%s", diff)
	}
	slices.Sort(constants)
	for i, reason := range constants {
		expect.That(t, i <= 0 || constants[i-1] != reason, "%q is there twice", reason)
		expect.That(t, regexp.MustCompile(`^[a-z0-9]+(_[a-z0-9]+)*$`).MatchString(string(reason)),
			"%q is not in snake case", reason)
	}
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
