package cpu

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"

	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// times returns the times of a CPU.
func times(cpu int, busy, idle uint64) ticks { return ticks{cpu: cpu, busy: busy, idle: idle} }

func testdata(tb testing.TB, name string) []byte {
	content := must.Get(os.ReadFile(filepath.Join("testdata", name)))(tb)
	return content
}

func TestParseStat(t *testing.T) {
	var tooMany strings.Builder
	tooMany.WriteString("cpu  1 2 3 4 5 6 7 8\n")
	all := make([]ticks, maxCPUs)
	for n := range all {
		fmt.Fprintf(&tooMany, "cpu%d 1 0 0 0 0 0 0 0\n", n)
		all[n] = times(n, 1, 0)
	}
	for _, tc := range []struct {
		name, stat string
		want       []ticks
		err        error
	}{
		{
			"offline", string(testdata(t, "stat-offline")),
			[]ticks{times(0, 180, 4400), times(1, 340, 3300), times(3, 610, 2200)},
			nil,
		},
		{"no guests yet", "cpu0 1 2 3 4 5 6 7 8\n", []ticks{times(0, 27, 9)}, nil},
		{"columns to come", "cpu0 1 2 3 4 5 6 7 8 9 10 11 12\n", []ticks{times(0, 27, 9)}, nil},
		{"no end of line", "cpu0 1 2 3 4 5 6 7 8", []ticks{times(0, 27, 9)}, nil},
		{"stops at the rest", "cpu0 1 2 3 4 5 6 7 8\nintr 1\ncpu1 1 2 3 4 5 6 7 8\n", []ticks{times(0, 27, 9)}, nil},
		{
			"long rest", "cpu0 1 2 3 4 5 6 7 8\nintr" + strings.Repeat(" 0", bufio.MaxScanTokenSize),
			[]ticks{times(0, 27, 9)},
			nil,
		},
		{
			"too few columns", "cpu0 1 2 3 4 5 6 7\ncpu1 1 2 3 4 5 6 7 8\n",
			[]ticks{{garbled: true}, times(1, 27, 9)},
			errColumns,
		},
		{"twice", "cpu1 1 2 3 4 5 6 7 8\ncpu1 2 2 3 4 5 6 7 8\n", []ticks{times(1, 27, 9)}, errTwice},
		{"no number", "cpux 1 2 3 4 5 6 7 8\ncpu1 1 2 3 4 5 6 7 8\n", []ticks{times(1, 27, 9)}, errNumber},
		{"CPU too high", "cpu8192 1 2 3 4 5 6 7 8\ncpu8191 1 2 3 4 5 6 7 8\n", []ticks{times(8191, 27, 9)}, errNumber},
		{
			"garbage", "cpu0 1 2 3 ? 5 6 7 8\ncpu1 1 2 3 4 5 6 7 8\n",
			[]ticks{{garbled: true}, times(1, 27, 9)},
			strconv.ErrSyntax,
		},
		{
			"negative", "cpu0 -1 2 3 4 5 6 7 8\ncpu1 1 2 3 4 5 6 7 8\n",
			[]ticks{{garbled: true}, times(1, 27, 9)},
			strconv.ErrSyntax,
		},
		{
			"time too high", "cpu0 1 2 3 4 5 6 7 9007199254740993\ncpu1 1 2 3 4 5 6 7 8\n",
			[]ticks{{garbled: true}, times(1, 27, 9)},
			strconv.ErrRange,
		},
		{"as many as can be", tooMany.String(), all, nil},
		{"none", "intr 1 2 3\n", nil, errNone},
		{"the sum alone", "cpu  1 2 3 4 5 6 7 8 9 10\n", nil, errNone},
		{"empty", "", nil, errNone},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := parseStat(strings.NewReader(tc.stat))
			diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(ticks{}))
			expect.That(t, diff == "" && errors.Is(err, tc.err), "error %v, want %v; CPUs (-want +got):\n%s", err, tc.err, diff)
		})
	}
}

func TestParseStatOfReaderThatFails(t *testing.T) {
	errRead := errors.New("input/output error")
	for _, head := range []string{"", "cpu0 1 2 3 4 5 6 7 8\n", "cpu0 1 2"} {
		r := io.MultiReader(strings.NewReader(head), iotest.ErrReader(errRead))
		got, err := parseStat(r)
		expect.That(t, errors.Is(err, errRead) && got == nil, "after %.30q: %v, %v", head, got, err)
	}
}

func FuzzParseStat(f *testing.F) {
	for _, name := range []string{"stat", "stat-offline"} {
		f.Add(testdata(f, name))
	}
	f.Add([]byte("cpu 1\ncpu\ncpu0\ncpu00 1 2 3 4 5 6 7 8\ncpu0 1 2 3 4 5 6 7 8"))
	f.Fuzz(func(t *testing.T, stat []byte) {
		all, err := parseStat(bytes.NewReader(stat))
		if len(all) == 0 && err == nil {
			t.Error("neither CPUs nor an error")
		}
		seen := map[int]bool{}
		for _, c := range all {
			expect.That(t, c.cpu >= 0 && c.cpu < maxCPUs && !seen[c.cpu] && c.busy <= 6*maxTicks && c.idle <= 2*maxTicks,
				"CPU %+v, seen before: %v", c, seen[c.cpu])
			seen[c.cpu] = true
		}
		again, _ := parseStat(iotest.OneByteReader(bytes.NewReader(stat)))
		if diff := cmp.Diff(all, again, cmp.AllowUnexported(ticks{})); diff != "" {
			t.Errorf("read byte by byte (-whole +bytes):\n%s", diff)
		}
	})
}
