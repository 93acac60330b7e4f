package xid_test

import (
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/dra-exporter/dra-exporter/driver/nvidia/xid"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// The table is ordered, no code is in two rows, and each row says everything.
func TestTable(t *testing.T) {
	last := 0
	for _, m := range xid.Table() {
		expect.That(t, m.First > last && m.Last >= m.First, "codes %s follow %d", m.Codes(), last)
		last = m.Last
		expect.That(t, m.What != "" && m.Work != "" && m.Cause != "" && m.Action != "" && !strings.HasSuffix(m.What, "."),
			"%s: %+v is incomplete", m.Codes(), m)
		if m.Action == xid.None && m.Work == xid.AllEnds {
			t.Errorf("%s ends all work, and nothing is to be done", m.Codes())
		}
	}
}

// The actions are those of NVIDIA's catalog (its column "immediate action") for codes that it
// restarts the GPU, the host or the program for.
func TestCatalog(t *testing.T) {
	for action, codes := range map[xid.Action][]int{
		xid.Reset:       {46, 48, 62, 64, 74, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158},
		xid.RestartHost: {79, 151},
		xid.RestartWorkload: {
			8, 11, 25, 32, 39, 40, 41, 60, 68, 69, 70, 71, 72, 75, 76, 77, 80, 82, 83, 84, 85, 86, 88, 89, 94, 96, 105,
			126, 135, 139,
		},
		xid.None:        {13, 14, 31, 43, 45, 106, 107}, // the device is healthy: a program's error, or a test
		xid.Watch:       {37, 38, 44, 63, 66, 67, 92, 93, 121, 141, 152, 153, 157, 160, 161},
		xid.Investigate: {0, 1, 12, 47, 54, 78, 90, 108, 142, 154, 159, 173, 999, 9999},
	} {
		for _, code := range codes {
			if got := xid.Of(strconv.Itoa(code), xid.NoSeverity); got.Action != action || got.BySeverity {
				t.Errorf("XID %d: %s, want %s", code, got.Action, action)
			}
		}
	}
	for severity, want := range map[xid.Severity]xid.Action{
		xid.Fatal: xid.Reset, xid.Nonfatal: xid.Watch, xid.Unknown: xid.Investigate, xid.NoSeverity: xid.Investigate,
	} {
		for _, code := range []string{"144", "145", "149", "150", "10001", "28006", "99999"} {
			if got := xid.Of(code, severity); got.Action != want || !got.BySeverity {
				t.Errorf("XID %s (%s): %s, want %s", code, severity, got.Action, want)
			}
		}
	}
	for _, code := range []string{"other", "", "-1"} {
		if got := xid.Of(code, ""); got.Action != xid.Investigate {
			t.Errorf("XID %q: %s", code, got.Action)
		}
	}
}

// The table has exactly the codes that NVIDIA's catalog does not call unused.
func TestCodes(t *testing.T) {
	used := map[int]bool{}
	for r := range strings.FieldsSeq("8 11 13-14 25 31-32 37-41 43-46 48 54 60 62-64 66-72 74-80 82-86 88-89 92-107 " +
		"109-110 119-121 126-137 139-172") {
		first, last, several := strings.Cut(r, "-")
		if !several {
			last = first
		}
		from, _ := strconv.Atoi(first)
		to := must.Get(strconv.Atoi(last))(t)
		for code := from; code <= to; code++ {
			used[code] = true
		}
	}
	for code := range 1000 {
		if m := xid.Of(strconv.Itoa(code), xid.NoSeverity); (m.First > 0) != used[code] {
			t.Errorf("XID %d: it is called unused: %v, and the table has %+v", code, !used[code], m)
		}
	}
}

// The patterns match the codes of an action and no others.
func TestPattern(t *testing.T) {
	type class struct {
		action xid.Action
		severe bool
	}
	classes := map[class]*regexp.Regexp{}
	for _, action := range []xid.Action{
		xid.None, xid.RestartWorkload, xid.Reset, xid.RestartHost, xid.Watch, xid.Investigate,
	} {
		for _, severe := range []bool{false, true} {
			classes[class{action, severe}] = regexp.MustCompile("^(?:" + xid.Pattern(action, severe) + ")$")
		}
	}
	for code := range 100_100 {
		text := strconv.Itoa(code)
		m := xid.Of(text, xid.Fatal)
		if code > 300 && code < 9_990 || code > 10_010 && code < 99_990 {
			continue
		}
		for c, pattern := range classes {
			known := m.Action == c.action && m.BySeverity == c.severe && m.First > 0
			expect.That(t, known == pattern.MatchString(text), "XID %d, %+v: matches %v, want %v", code, c, !known, known)
		}
	}
}

func TestName(t *testing.T) {
	for want, got := range map[string]string{
		"XID 79":             xid.Name("79", ""),
		"XID 145 (nonfatal)": xid.Name("145", xid.Nonfatal),
		"SXid 24007 (fatal)": xid.Name("24007", xid.Fatal),
		"XID other":          xid.Name("other", ""),
	} {
		expect.That(t, got == want, "%s, want %s", got, want)
	}
	text := xid.Of("145", xid.Nonfatal).Text()
	expect.That(t, text == "error of NVLink 5; work goes on; likely cause: a link, or the device at its other end.",
		"%v", text)
}
