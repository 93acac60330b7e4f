package present

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/exporter/recorder"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

// TestOverview: a device is held by one pod after another, for a while by two at once, and
// monitored with admin access. An incident hits it, another one hits another device.
func TestOverview(t *testing.T) {
	begin := jointest.Start()
	at := func(seconds int) time.Time { return begin.Add(time.Duration(seconds) * time.Second) }
	until := func(seconds int) *time.Time { end := at(seconds); return &end }
	chart := &recorder.Chart{}
	for second := 0; second <= 100; second += 10 {
		chart.Times = append(chart.Times, at(second))
	}
	hold := func(pod string, from int, to *time.Time) recorder.Holder {
		return recorder.Holder{Namespace: "team", Claim: pod + "-gpu", Pod: pod, From: at(from), To: to}
	}
	monitor := hold("monitor", 0, nil)
	monitor.Admin = true
	history := recorder.History{Chart: chart, Holders: []recorder.Holder{
		hold("third", 60, nil), hold("second", 50, until(80)), hold("first", -60, until(50)), monitor,
		hold("earlier", -60, until(-10)),
	}}
	line := func(q driver.Quantity) sparkline { return sparkline{Name: q.String(), quantity: q.String()} }
	incidents := []*recorder.Incident{
		{Text: "gpu-0: XID 31", Device: jointest.ID("gpu-0"), Onset: at(25)},
		{Text: "gpu-1: XID 79", Device: jointest.ID("gpu-1"), Onset: at(30)},
	}
	of := Subject{Device: jointest.ID("gpu-0").String()}
	lines := []sparkline{line(driver.Utilization), line(driver.Clock), line(driver.Power)}
	got := newOverview(history, lines, incidents, of)
	var bands [][3]string
	for _, b := range got.Bands {
		bands = append(bands, [3]string{b.Name, b.X, b.Width})
	}
	if diff := cmp.Diff([][3]string{
		{"team/first", "0.00%", "50.00%"}, {"team/second", "50.00%", "30.00%"}, {"team/third", "60.00%", "40.00%"},
	}, bands); diff != "" {
		t.Errorf("the bands: %s", diff)
	}
	if got.Bands[0].Y != got.Bands[1].Y || got.Bands[2].Y == got.Bands[1].Y || got.Height != 2*bandHeight ||
		got.Bands[2].Claim != "team/third-gpu" {
		t.Errorf("who holds it at once is not side by side: %+v", got.Bands)
	}
	expect.That(t, len(got.Lines) == 2 && len(got.Marks) == 1 && got.Marks[0].X == "60.0" && got.Begin == Clock(begin),
		"lines %v, marks %v, from %s", got.Lines, got.Marks, got.Begin)
	expect.That(t, newOverview(history, []sparkline{line(driver.Clock)}, nil, of) == nil,
		"there is a chart without a line")
}
