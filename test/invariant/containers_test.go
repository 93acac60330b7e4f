package invariant

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/standstill"
)

// TestOwnershipOfContainers checks a minute. The pod's container runs from second 10 to second 30,
// its sandbox until second 31. The API server learns of neither before second 50.
func TestOwnershipOfContainers(t *testing.T) {
	stopped := func(from, to int64) func() []standstill.Span {
		return func() []standstill.Span {
			return []standstill.Span{{From: time.Unix(1e9+from, 0), To: time.Unix(1e9+to, 0)}}
		}
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
			var said strings.Builder
			for second := range 60 {
				at := time.Unix(1e9+int64(second), 0)
				var pods []*corev1.Pod
				c, ready := claim(), map[types.UID]bool{}
				if second >= 8 && second < 50 {
					p := pod("a")
					p.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "devices"}}
					if second < 10 {
						p.Status.Phase = corev1.PodPending
					}
					pods, c = append(pods, p), claim("a")
				}
				if second >= 8 && second < 31 {
					ready["a"] = second >= 10 && second < 30
				}
				o.Truth.Observe(at, at, pods, []*resourceapi.ResourceClaim{c})
				o.Containers.Observe(at, at, ready)
				r, reason := holding(at, true), podresources.ReasonListed
				if tt.kept && second >= 31 {
					reason = podresources.ReasonRestarted
				}
				if tt.shown(second) {
					r.Devices[0].Shares[0].Holds = []present.HoldReport{{Pod: "team/user", UID: tt.uid, Reason: reason}}
				}
				for _, err := range o.Check(r) {
					if strings.Contains(err.Error(), "pod team") {
						fmt.Fprintln(&said, err)
					}
				}
			}
			if tt.want == "" && said.Len() > 0 || !strings.Contains(said.String(), tt.want) {
				t.Errorf("wrong: %s, want %q", said.String(), tt.want)
			}
		})
	}
}

// A pod that was deleted by force holds its devices as long as it has a sandbox, however slow the
// kubelet is, and no longer.
func TestKilledPodRunsOn(t *testing.T) {
	for shown, want := range map[int]string{42: "", 46: "and it does not"} {
		o := Ownership{Truth: NewTruth("node1"), Containers: &Containers{}}
		said := ""
		for second := range 60 {
			at := time.Unix(1e9+int64(second), 0)
			var pods []*corev1.Pod
			c, ready := claim(), map[types.UID]bool{}
			if second >= 8 && second < 30 {
				pods, c = append(pods, pod("a")), claim("a")
			}
			if second >= 10 && second < 40 {
				ready["a"] = true
			}
			o.Truth.Observe(at, at, pods, []*resourceapi.ResourceClaim{c})
			o.Containers.Observe(at, at, ready)
			for _, err := range o.Check(holding(at, second >= 10 && second < shown)) {
				said += err.Error() + "\n"
			}
		}
		expect.That(t, (want != "" || said == "") && strings.Contains(said, want),
			"shown until %d: %q, want %q", shown, said, want)
	}
}
