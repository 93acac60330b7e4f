package web

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/exporter/exposition"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// The page and its rows have the same content, and name the device of each claim.
func TestRowsAsJSON(t *testing.T) {
	h := exportertest.NewNode(t)
	exportertest.Play(h)
	server := serving(t, h.Last, func(c *Config) {
		c.Sources = func() []present.Source { return []present.Source{{Name: "nvml", Down: driver.ReasonDriverMismatch}} }
	})
	_, body := fetch(t, server.URL+"/page/rows")
	var rows struct {
		Claims []struct {
			Name, Device string
			Quiet        []any
		}
		Troubles []struct{ Do string }
	}
	must.Do(t, json.Unmarshal([]byte(body), &rows))
	first := rows.Claims[0]
	expect.That(t, first.Name == "lazy" && first.Device == "gpu-3" && fmt.Sprint(first.Quiet) == "[2 min 120]",
		"the first claim is %v", first)
	expect.That(t, len(rows.Troubles) == 1 && strings.HasPrefix(rows.Troubles[0].Do, "restart the node"),
		"the troubles are %+v", rows.Troubles)
	_, page := fetch(t, server.URL+"/")
	for _, want := range []string{
		"Source nvml is down: driver_mismatch. To do: restart the node", "2 shares, equal", "+1 admin",
		`href="page/detail?claim=team%2flazy"`, "1 GiB of 80 GiB", "61 °C", `<meta http-equiv="refresh" content="5">`,
	} {
		expect.That(t, strings.Contains(page, want), "the page does not have %s", want)
	}
	if inline := regexp.MustCompile(`<script>|<style|style=|onclick=|onload=|javascript:`).FindString(page); inline != "" {
		t.Errorf("the page has %s, which its Content-Security-Policy forbids", inline)
	}
}

// A client that has the latest snapshot gets no second copy, and one that has an older one does.
func TestUnchanged(t *testing.T) {
	h := exportertest.NewNode(t)
	exportertest.Play(h)
	latest := h.Last
	server := serving(t, nil, func(c *Config) { c.Latest = func() *exposition.Snapshot { return latest } })
	get := func(path, tag string) (int, string, string) {
		r := must.Get(http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+path, http.NoBody))(t)
		r.Header.Set("If-None-Match", tag)
		response, err := http.DefaultClient.Do(r)
		must.Do(t, err)
		defer response.Body.Close()
		return response.StatusCode, response.Header.Get("Etag"), response.Header.Get("Content-Type")
	}
	for path, changes := range map[string]bool{
		"/": true, "/page/rows": true, "/page/detail?device=gpu-2": true, "/api/v1/snapshot": true,
		"/page/script.js": false, "/page/style.css": false,
	} {
		_, tag, _ := get(path, "")
		if status, _, _ := get(path, `"other", `+tag); status != http.StatusNotModified || tag == "" {
			t.Errorf("%s: status %d for the tag %s", path, status, tag)
		}
		s := *latest
		s.Time = s.Time.Add(time.Second)
		latest = &s
		want := map[bool]int{true: http.StatusOK, false: http.StatusNotModified}[changes]
		if status, _, _ := get(path, tag); status != want {
			t.Errorf("%s: status %d after another snapshot, want %d", path, status, want)
		}
	}
	for path, want := range map[string]string{"/page/script.js": "text/javascript", "/page/style.css": "text/css"} {
		_, _, kind := get(path, "")
		expect.That(t, strings.HasPrefix(kind, want), "%s is %s, which a browser refuses", path, kind)
	}
}

// The details of a device have absent values with reason and remedy.
func TestDetail(t *testing.T) {
	h := exportertest.NewNode(t)
	exportertest.Play(h)
	server := serving(t, h.Last, func(c *Config) {
		c.Sources = func() []present.Source {
			return []present.Source{
				{Name: "a", Fills: []driver.Quantity{driver.Utilization, driver.Power}},
				{Name: "b", Fills: []driver.Quantity{driver.Clock}},
				{Name: "c", Fills: []driver.Quantity{driver.Occupancy}, Down: driver.ReasonForbidden},
			}
		}
	})
	for _, tc := range []struct {
		query  string
		status int
		want   []string
	}{
		{"device=gpu-2", 200, []string{
			"Device gpu-2", "active: held and used", "1 GiB", "admin access: none", "a: this device does not report it",
			"b: reads it, and this device is none of its hardware", "c is down: forbidden", "run as root",
			"no source that runs reads it", "--source.scrape.config",
		}},
		{"device=" + url.QueryEscape(jointest.ID("gpu-5").String()), 200, []string{
			"tainted", "worn:NoSchedule (ResourceSlice)", "all telemetry", "(no_match)", "source c", "it is down: forbidden",
		}},
		{"claim=team%2fhalf-a", 200, []string{
			"Claim team/half-a", "50 %, equal", "team/pod-of-half-a", "last active", "s ago",
		}},
		{"device=gpu-1", 404, []string{"nothing of that name"}},
		{"claim=%3Cscript%3E", 404, []string{"Claim &lt;script&gt;"}},
		{"", 404, nil},
	} {
		status, body := fetch(t, server.URL+"/page/detail?"+tc.query)
		expect.Is(t, status, tc.status, "%s: status", tc.query)
		for _, want := range tc.want {
			expect.That(t, strings.Contains(body, want), "%s does not have %q:\n%s", tc.query, want, body)
		}
	}
	if _, body := fetch(t, server.URL+"/page/detail?claim=team%2fhalf-a"); strings.Contains(body, "half-b") {
		t.Error("the details of a claim name another one")
	}
}

// Texts have a contrast of 4.5 to their background, in both schemes (WCAG 2.2, AA).
func TestContrast(t *testing.T) {
	css := must.Get(pageFiles.ReadFile("page/style.css"))(t)
	light, dark, _ := strings.Cut(string(css), "prefers-color-scheme: dark")
	for scheme, text := range map[string]string{"light": light, "dark": dark} {
		colours := map[string]float64{}
		for _, found := range regexp.MustCompile(`--(\w+): #(\w{6});`).FindAllStringSubmatch(text, -1) {
			colours[found[1]] = luminance(t, found[2])
		}
		for _, front := range []string{"text", "dim", "link", "good", "warn", "bad"} {
			for _, behind := range []string{"back", "row"} {
				a, b := colours[front]+0.05, colours[behind]+0.05
				ratio := max(a, b) / min(a, b)
				expect.That(t, ratio >= 4.5, "%s: %s on %s has a contrast of %.1f", scheme, front, behind, ratio)
			}
		}
	}
}

// luminance is the relative luminance of a colour, as WCAG defines it.
func luminance(t *testing.T, colour string) float64 {
	sum := 0.0
	for i, weight := range []float64{0.2126, 0.7152, 0.0722} {
		n := must.Get(strconv.ParseUint(colour[2*i:2*i+2], 16, 8))(t)
		c := float64(n) / 255
		if c <= 0.04045 {
			c /= 12.92
		} else {
			c = math.Pow((c+0.055)/1.055, 2.4)
		}
		sum += weight * c
	}
	return sum
}
