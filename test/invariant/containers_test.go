package invariant

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/test/standstill"
)

// TestOwnershipOfContainers checks a minute. The pod's container runs from second 10 to second 30,
// its sandbox until second 31. The API server learns of neither before second 50.
func TestOwnershipOfContainers(t *testing.T) {
	stopped := func(from, to int) func() []standstill.Span {
		return func() []standstill.Span { return seconds(from, to) }
	}
	shown := func(from, to int) func(int) bool { return func(s int) bool { return s >= from && s < to } }
	for _, tt := range []struct {
		name    string
		uid     string
		shown   func(second int) bool
		stopped func() []standstill.Span
		except  bool
		kept    bool // until the API server knows of its end
		want    string
	}{
		{name: "right", uid: "a", shown: shown(10, 32)},
		{name: "two seconds late", uid: "a", shown: shown(12, 34)},
		{name: "long before its sandbox", uid: "a", shown: shown(0, 32)},
		{name: "its UID is unknown", shown: shown(10, 32)},
		{
			name: "overlooked for a while", uid: "a", shown: func(s int) bool { return s >= 10 && s < 32 && s != 20 },
			want: "runs",
		},
		{name: "another one's UID", uid: "b", shown: shown(10, 32), want: "container of pod team/user, a, runs"},
		{name: "shown too long", uid: "a", shown: shown(10, 35), want: "its sandbox ended"},
		{
			name: "shown again", uid: "a", shown: func(s int) bool { return s >= 10 && s < 32 || s == 45 },
			want: "its sandbox ended",
		},
		{name: "nobody ends it", uid: "a", shown: shown(10, 50), stopped: stopped(30, 32)},
		{name: "nobody did long before", uid: "a", shown: shown(10, 50), stopped: stopped(20, 25), want: "its sandbox ended"},
		{name: "not compared", uid: "a", shown: shown(20, 50), except: true},
		{name: "kept until the API server knows", uid: "a", shown: shown(10, 52), kept: true},
		{name: "kept too long", uid: "a", shown: shown(10, 54), kept: true, want: "its sandbox ended"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := Ownership{
				Truth: NewTruth("node1"), Containers: &Containers{}, Stopped: tt.stopped,
				Except: map[string]bool{"team": tt.except}, EndsFromServer: tt.kept,
			}
			said := play(&o, 60, func(s int) world {
				w := world{claim: claim(), ready: map[types.UID]bool{}, report: holding(second(s), true)}
				if s >= 8 && s < 50 {
					w.pod, w.claim = pod("a"), claim("a")
					w.pod.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "devices"}}
					if s < 10 {
						w.pod.Status.Phase = corev1.PodPending
					}
				}
				if s >= 8 && s < 31 {
					w.ready["a"] = s >= 10 && s < 30
				}
				reason := podresources.ReasonListed
				if tt.kept && s >= 31 {
					reason = podresources.ReasonRestarted
				}
				if tt.shown(s) {
					w.report.Devices[0].Shares[0].Holds = []present.HoldReport{{Pod: "team/user", UID: tt.uid, Reason: reason}}
				}
				return w
			})
			lines := slices.DeleteFunc(strings.Split(said, "\n"), func(line string) bool {
				return !strings.Contains(line, "pod team")
			})
			wants(t, strings.Join(lines, "\n"), tt.want)
		})
	}
}

// A pod that was deleted by force holds its devices as long as it has a sandbox, however slow the
// kubelet is, and no longer.
func TestKilledPodRunsOn(t *testing.T) {
	for shown, want := range map[int]string{42: "", 46: "and it does not"} {
		o := Ownership{Truth: NewTruth("node1"), Containers: &Containers{}}
		wants(t, play(&o, 60, func(s int) world {
			w := world{claim: claim(), ready: map[types.UID]bool{}, row: s >= 10 && s < shown}
			if s >= 8 && s < 30 {
				w.pod, w.claim = pod("a"), claim("a")
			}
			if s >= 10 && s < 40 {
				w.ready["a"] = true
			}
			return w
		}), want)
	}
}
