package invariant

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// report returns a correct snapshot: two pods share the only claim of a device.
func report(second int) *present.Report {
	id := driver.ID{Driver: "gpu.example.com", Pool: "node1", Device: "gpu-0"}
	at := time.Unix(1e9+int64(second), 0)
	joules := func(v float64) []present.ValueReport { return []present.ValueReport{{Quantity: "energy", Value: v}} }
	done := 10 * float64(second)
	return &present.Report{
		Time: at,
		Devices: []present.DeviceReport{{
			Up: new(true),
			ID: id, Values: joules(100 + done), Unattributed: joules(100), AllocatedSeconds: float64(second),
			Shares: []present.ShareReport{
				{Namespace: "team", Claim: "c", Weight: 1}, {Namespace: "ops", Claim: "m", Admin: true},
			},
		}},
		Claims: []present.HolderReport{{
			Namespace: "team", Name: "c", ID: id, Values: joules(done),
			ShareSeconds: float64(second),
		}},
		Pods: []present.HolderReport{
			{Namespace: "team", Name: "a", ID: id, Values: joules(done / 2), ShareSeconds: float64(second) / 2},
			{Namespace: "team", Name: "b", ID: id, Values: joules(done / 2), ShareSeconds: float64(second) / 2},
		},
	}
}

// partition adds a partition of the device with a pod that has used so many of the device's joules.
func partition(r *present.Report, joules float64) {
	values := []present.ValueReport{{Quantity: "energy", Value: joules}}
	id := r.Devices[0].ID
	id.Device = "gpu-0-part-0"
	r.Devices[0].Values[0].Value += joules
	r.Devices = append(r.Devices, present.DeviceReport{ID: id, Parent: "gpu-0", AllocatedSeconds: 1})
	r.Claims = append(r.Claims, present.HolderReport{
		Namespace: "team", Name: "p", ID: id, Values: slices.Clone(values), ShareSeconds: 1,
	})
	r.Pods = append(r.Pods, present.HolderReport{
		Namespace: "team", Name: "p", ID: id, Values: slices.Clone(values), ShareSeconds: 1,
	})
}

// measuresItself adds a partition that measures its pod's joules. They are also in the parent's
// value, where they are unattributed.
func measuresItself(r *present.Report) {
	partition(r, 5)
	r.Devices[0].Values[0].Value -= 5
	r.Devices[1].Values = []present.ValueReport{{Quantity: "energy", Value: 5}}
}

// another adds rows of another claim with the first one's name and of one of its pods, with these
// charges.
func another(r *present.Report, joules float64) {
	for _, rows := range []*[]present.HolderReport{&r.Claims, &r.Pods} {
		other := (*rows)[0]
		other.Values = []present.ValueReport{{Quantity: "energy", Value: joules}}
		other.ShareSeconds = 0
		*rows = append(*rows, other)
	}
	r.Devices[0].Values[0].Value += joules
}

func TestCheck(t *testing.T) {
	endedAt := func(r *present.Report, second int64) {
		at := time.Unix(1e9+second, 0)
		r.Claims[0].Ended, r.Pods[0].Ended, r.Pods[1].Ended = &at, &at, &at
	}
	ended := func(r *present.Report) { endedAt(r, 0) }
	tests := []struct {
		name   string
		second int                     // of the snapshot after those of seconds 1 and 2
		spoil  func(*present.Report)   // that snapshot
		before func(r *present.Report) // the snapshot of second 2
		again  time.Duration           // time after which there is a copy of it
		want   string
	}{
		{name: "right", second: 3, spoil: func(*present.Report) {}},
		{
			name: "not conserved", second: 3, spoil: func(r *present.Report) { r.Devices[0].Values[0].Value++ },
			want: "its claims and nobody",
		},
		{
			name: "pods and claims differ", second: 3, spoil: func(r *present.Report) { r.Pods[0].Values[0].Value++ },
			want: "the pods",
		},
		{
			name: "held time is not conserved", second: 3, spoil: func(r *present.Report) { r.Devices[0].AllocatedSeconds++ },
			want: "held",
		},
		{
			name: "falls", second: 3, spoil: func(r *present.Report) { *r = *report(1); r.Time = r.Time.Add(2 * time.Second) },
			want: "falls from 20 to 10",
		},
		{
			name: "another one has the name", second: 3, before: func(r *present.Report) { another(r, 5) },
			spoil: func(r *present.Report) {
				another(r, 5)
				slices.Reverse(r.Claims)
			},
		},
		{
			name: "another one has the name, and the former is lost", second: 3,
			before: func(r *present.Report) { another(r, 15) }, spoil: func(*present.Report) {}, want: "falls from 35 to 30",
		},
		{name: "pod is lost", second: 3, spoil: func(r *present.Report) {
			r.Pods = r.Pods[:1]
			r.Pods[0].Values[0].Value, r.Pods[0].ShareSeconds = 30, 3
		}, want: "name:b id:{Driver:gpu.example.com Pool:node1 Device:gpu-0}} is lost"},
		{
			name: "admin access has a part", second: 3, spoil: func(r *present.Report) { r.Devices[0].Shares[1].Weight = 0.5 },
			want: "the admin access of ops/m",
		},
		{
			name: "weights do not sum to 1", second: 3, spoil: func(r *present.Report) { r.Devices[0].Shares[0].Weight = 0.5 },
			want: "the weights sum to 0.5",
		},
		{name: "a partition", second: 3, spoil: func(r *present.Report) { partition(r, 5) }},
		{
			name: "a partition is not conserved", second: 3, want: "its claims and nobody",
			spoil: func(r *present.Report) {
				partition(r, 5)
				r.Claims[1].Values[0].Value++
				r.Pods[2].Values[0].Value++
			},
		},
		{
			name: "a partition that is gone", second: 3, before: func(r *present.Report) { partition(r, 5) },
			spoil: func(r *present.Report) {
				partition(r, 5)
				r.Devices = r.Devices[:1]
			},
		},
		{
			name: "a partition that measures itself", second: 3, want: "its claims and nobody",
			spoil: func(r *present.Report) {
				partition(r, 5)
				r.Devices[1].Values = []present.ValueReport{{Quantity: "energy", Value: 5}}
			},
		},
		{
			name: "a partition that measures itself, but not now", second: 3, before: measuresItself,
			spoil: func(r *present.Report) {
				measuresItself(r)
				r.Devices[1].Values = nil
			},
		},
		{name: "rises soon after its end", second: 20, before: ended, spoil: ended},
		{
			name: "rises long after its end", second: 60, before: ended, again: 40 * time.Second, spoil: ended,
			want: "after its end",
		},
		{
			name: "has held again between two snapshots", second: 60, before: ended, again: 40 * time.Second,
			spoil: func(r *present.Report) { endedAt(r, 50) },
		},
		{
			name: "rises when its device is read again", second: 60, again: 40 * time.Second, spoil: ended,
			before: func(r *present.Report) {
				ended(r)
				r.Devices = nil
			},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var c Checker
			first, second, third := report(1), report(2), report(tt.second)
			if tt.before != nil {
				tt.before(second)
			}
			tt.spoil(third)
			all := []*present.Report{first, second}
			if tt.again > 0 {
				again := *second
				again.Time = again.Time.Add(tt.again)
				all = append(all, &again)
			}
			for _, r := range all {
				wrong := c.Check(r)
				must.That(t, len(wrong) == 0, "a right snapshot passes for a wrong one: %v", wrong)
			}
			var said []string
			for _, err := range c.Check(third) {
				said = append(said, err.Error())
			}
			expect.That(t, (tt.want != "" || len(said) == 0) && strings.Contains(strings.Join(said, "\n"), tt.want),
				"said %q, want %q", said, tt.want)
			expect.That(t, c.Compared() != 0, "nothing was compared")
		})
	}
}
