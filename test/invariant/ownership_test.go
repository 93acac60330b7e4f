package invariant

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/standstill"
)

var gpu = driver.ID{Driver: "gpu.example.com", Pool: "node1", Device: "gpu-0"}

// pod returns a pod of the node whose only container runs. It holds claim "c", which no container
// names.
func pod(uid types.UID) *corev1.Pod {
	claim := "c"
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "user", UID: uid},
		Spec: corev1.PodSpec{
			NodeName: "node1", Containers: []corev1.Container{{Name: "main"}},
			ResourceClaims: []corev1.PodResourceClaim{{Name: "devices", ResourceClaimName: &claim}},
		},
		Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
}

// claim returns a claim that is allocated gpu-0 and reserved for pods.
func claim(pods ...types.UID) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "c", UID: "claim"},
		Status: resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{
			Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{
				{Request: "gpu", Driver: gpu.Driver, Pool: gpu.Pool, Device: gpu.Device},
			}},
		}},
	}
	for _, uid := range pods {
		c.Status.ReservedFor = append(c.Status.ReservedFor,
			resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: "user", UID: uid})
	}
	return c
}

// world is a node whose API objects and exporter's report are known for each second.
type world struct {
	pod   *corev1.Pod                // nil: there is none
	claim *resourceapi.ResourceClaim // nil: the API server is away
	row   bool                       // the report has the claim's hold
	// report is the exporter's report; nil: it has the row alone.
	report *present.Report
	ready  map[types.UID]bool // the pods with a sandbox, and whether a container runs; see Containers
}

// running is the world with the pod and its claim, which holds the device.
func running(row bool) world { return world{pod: pod("a"), claim: claim("a"), row: row} }

func second(s int) time.Time { return time.Unix(1e9+int64(s), 0) }

func seconds(from, to int) []standstill.Span {
	span := standstill.Span{From: second(from)}
	if to > 0 {
		span.To = second(to)
	}
	return []standstill.Span{span}
}

// play checks the snapshots of some seconds, and returns the errors, each once.
func play(o *Ownership, length int, is func(second int) world) string {
	var said []string
	for s := range length {
		w, at := is(s), second(s)
		if w.claim != nil {
			var pods []*corev1.Pod
			if w.pod != nil {
				pods = append(pods, w.pod)
			}
			o.Truth.Observe(at, at, pods, []*resourceapi.ResourceClaim{w.claim})
		}
		if o.Containers != nil {
			o.Containers.Observe(at, at, w.ready)
		}
		if w.report == nil {
			w.report = holding(at, w.row)
		}
		for _, err := range o.Check(w.report) {
			said = append(said, err.Error())
		}
	}
	slices.Sort(said)
	return strings.Join(slices.Compact(said), "\n")
}

// wants checks that the errors contain a text, or that there are none if it is empty.
func wants(t *testing.T, said, want string) {
	expect.That(t, (want != "" || said == "") && strings.Contains(said, want), "wrong: %s, want %q", said, want)
}

// TestOwnership checks a minute. The pod starts at second 10 and is deleted at second 40.
func TestOwnership(t *testing.T) {
	right := func(second int) world {
		w := world{claim: claim()}
		if second >= 10 && second < 40 {
			w = running(true)
		}
		return w
	}
	for _, tt := range []struct {
		name   string
		listed bool
		both   bool // the kubelet contradicts the API server
		is     func(second int, w *world)
		want   string
		held   float64 // the device-seconds in the report
		off    bool    // that number is wrong
	}{
		{name: "right", held: 30, is: func(int, *world) {}},
		{
			name: "overlooked for a while", held: 30, is: func(s int, w *world) { w.row = w.row && s != 25 },
			want: "claim team/c holds",
		},
		{name: "not by PodResources", listed: true, is: func(_ int, w *world) { w.row = false }},
		{name: "listed by PodResources", held: 30, listed: true, is: func(_ int, w *world) {
			if w.row = false; w.pod != nil {
				w.pod.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "devices"}}
			}
		}, want: "no row says so"},
		{name: "by a plain init container", listed: true, is: func(_ int, w *world) {
			if w.row = false; w.pod != nil {
				init := corev1.Container{Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "devices"}}}}
				w.pod.Spec.InitContainers = []corev1.Container{init}
			}
		}},
		{name: "an init container runs", held: 30, is: func(_ int, w *world) {
			if w.row = false; w.pod != nil {
				w.pod.Status = corev1.PodStatus{Phase: corev1.PodPending, InitContainerStatuses: []corev1.ContainerStatus{
					{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}},
				}}
			}
		}, want: "no row says so"},
		{name: "waits for its devices", held: 30, is: func(_ int, w *world) {
			if w.pod != nil {
				w.pod.Status.Phase = corev1.PodPending
			}
		}},
		{name: "invented", held: 30, is: func(s int, w *world) { w.row = s == 20 || s > 50 }, want: "and it does not"},
		{
			name: "overlooked beside another", held: 60, both: true, is: func(_ int, w *world) { w.row = false },
			want: "no row says so",
		},
		{name: "one more row", held: 60, both: true, is: func(s int, w *world) { w.row = s >= 10 }},
		{name: "a pod that has ended holds nothing", held: 30, is: func(_ int, w *world) {
			if w.pod != nil {
				w.pod.Status.Phase = corev1.PodFailed
			}
		}, want: "and it does not", off: true},
		{name: "reserved for an earlier pod of that name", held: 30, is: func(_ int, w *world) {
			if w.pod != nil {
				w.pod.UID = "b"
			}
		}, want: "and it does not", off: true},
		{name: "not counted before its start", held: 20, is: starts(20), off: true},
		{name: "until its deletion", held: 25, is: deleted(35)},
		{name: "until its removal", held: 30, is: deleted(35)},
		{name: "no row from soon after its deletion on", held: 26, is: func(s int, w *world) {
			deleted(35)(s, w)
			w.row = s >= 10 && s < 36
		}},
		{
			name: "no row from long before its deletion on", held: 26, want: "and no row says so",
			is: func(s int, w *world) {
				deleted(35)(s, w)
				w.row = s >= 10 && s < 30
			},
		},
		{name: "longer than until its removal", held: 32, is: deleted(35), off: true},
		{
			name: "a row stays while a pod runs on that was killed by force", held: 33,
			is: func(s int, w *world) { w.row = s >= 10 && s < 45 },
		},
		{
			name: "a row stays longer", held: 33, is: func(s int, w *world) { w.row = s >= 10 && s < 47 },
			want: "and it does not",
		},
		{name: "longer than a pod killed by force", held: 35, is: func(int, *world) {}, off: true},
		{name: "a second late", held: 30, is: func(s int, w *world) { w.row = s >= 11 && s < 41 }},
		{name: "too short", held: 28, is: func(int, *world) {}, off: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := Ownership{
				Truth: NewTruth("node1"), ListedOnly: tt.listed,
				Contradicted: map[string]bool{"team": tt.both},
			}
			wants(t, play(&o, 60, func(second int) world {
				w := right(second)
				tt.is(second, &w)
				return w
			}), tt.want)
			held := present.HolderReport{Namespace: "team", Name: "c", ID: gpu, AllocatedSeconds: tt.held}
			r := &present.Report{Claims: []present.HolderReport{held}}
			if sums := o.Seconds(r); (sums.Check() != nil) != tt.off {
				t.Errorf("%+v: %v", sums, sums.Check())
			}
		})
	}
}

// starts makes the pod's containers start at a second.
func starts(at int) func(int, *world) {
	return func(second int, w *world) {
		if w.pod != nil && second < at {
			w.pod.Status.Phase = corev1.PodPending
		}
	}
}

// deleted makes the pod one that is deleted at a second, and has not ended.
func deleted(at int) func(int, *world) {
	return func(second int, w *world) {
		if w.pod != nil && second >= at {
			w.pod.DeletionTimestamp = &metav1.Time{Time: time.Unix(1e9+int64(at), 0)}
		}
	}
}

// holding returns a snapshot in which the claim holds the device, or not.
func holding(at time.Time, row bool) *present.Report {
	d := present.DeviceReport{ID: gpu}
	if row {
		d.Shares = []present.ShareReport{{Namespace: "team", Claim: "c", Weight: 1}}
	}
	return &present.Report{Time: at, Devices: []present.DeviceReport{d}}
}

// Two shares of one claim on one device, at the same time or one after the other, are one row whose
// time counts once. Exceptions are not compared.
func TestOwnershipOfShares(t *testing.T) {
	c := claim("a")
	results := &c.Status.Allocation.Devices.Results
	one, other := types.UID("s1"), types.UID("s2")
	*results = append(*results, (*results)[0])
	(*results)[0].ShareID, (*results)[1].ShareID = &one, &other
	for _, except := range []bool{false, true} {
		o := Ownership{Truth: NewTruth("node1"), Except: map[string]bool{"team": except}}
		wrong := play(&o, 21, func(s int) world {
			r := holding(second(s), true)
			r.Devices[0].Shares[0].ShareID = "s1" // the other share is missing
			return world{pod: pod("a"), claim: c, report: r}
		})
		expect.That(t, (wrong == "") == except && (o.Compared() == 0) == except,
			"excepted: %v, compared: %d, wrong: %v", except, o.Compared(), wrong)
		want := Sums{Least: 20, Most: 20, Apart: 20, Outside: []string{
			"team/c of gpu.example.com/node1/gpu-0: 0.0 s, in truth 20.0 to 20.0 s",
		}}
		if except {
			want = Sums{}
		}
		expect.Equal(t, fmt.Sprintf("excepted: %v,", except), want, o.Seconds(&present.Report{}))
	}
}

// If a driver does not report the share to the kubelet, the claim's row has no share until the API
// server has described the claim: it is not present together with the share's own row, and not for
// long.
func TestOwnershipOfAShareThatIsNotKnownYet(t *testing.T) {
	const invented = "claim team/c holds gpu.example.com/node1/gpu-0, and it does not"
	for name, tt := range map[string]struct {
		without, with [2]int // the seconds in which there is a row without the share, and with it
		other         bool   // there is a row with another share, too
		stood         [2]int // the seconds in which the machine stood still
		want          string
	}{
		"known at once":     {with: [2]int{10, 40}},
		"known a bit later": {without: [2]int{10, 11}, with: [2]int{11, 40}},
		"stood still":       {without: [2]int{10, 13}, with: [2]int{13, 40}, stood: [2]int{10, 12}},
		"known too late":    {without: [2]int{10, 13}, with: [2]int{13, 40}, want: invented},
		"forgotten":         {without: [2]int{25, 40}, with: [2]int{10, 25}, want: invented},
		"counted twice":     {without: [2]int{10, 13}, with: [2]int{12, 40}, want: invented},
		"another share":     {with: [2]int{10, 40}, other: true, want: "holds gpu.example.com/node1/gpu-0 share s2"},
	} {
		t.Run(name, func(t *testing.T) {
			shareID := types.UID("s1")
			held := claim("a")
			held.Status.Allocation.Devices.Results[0].ShareID = &shareID
			stood := func() []standstill.Span { return seconds(tt.stood[0], tt.stood[1]) }
			o := Ownership{Truth: NewTruth("node1"), Stood: stood}
			wants(t, play(&o, 40, func(s int) world {
				w := world{claim: claim(), report: holding(second(s), false)}
				if s < 10 {
					return w
				}
				w.pod, w.claim = pod("a"), held
				for share, is := range map[string]bool{
					"":   s >= tt.without[0] && s < tt.without[1],
					"s1": s >= tt.with[0] && s < tt.with[1],
					"s2": tt.other,
				} {
					if is {
						d := &w.report.Devices[0]
						d.Shares = append(d.Shares, present.ShareReport{Namespace: "team", Claim: "c", ShareID: share})
					}
				}
				return w
			}), tt.want)
		})
	}
}

// The API server is away from second 30 on, when the driver takes the claim's devices back. Showing
// the row afterwards is an error; ending it is right.
func TestOwnershipEnded(t *testing.T) {
	for _, goesOn := range []bool{false, true} {
		o := Ownership{Truth: NewTruth("node1")}
		wrong := play(&o, 50, func(s int) world {
			if s == 32 { // when the journal was read
				o.Truth.Ended(claim().UID, second(30))
			}
			return running(s < 30 || goesOn)
		})
		expect.That(t, (wrong != "") == goesOn, "a row that goes on: %v; wrong: %v", goesOn, wrong)
		got := o.Seconds(&present.Report{})
		expect.That(t, got.Least == 30 && got.Most == 30, "held for %v to %v s, want 30", got.Least, got.Most)
	}
}

// A claim has a device for each of two requests. The pod that names the first one ends at second
// 10, the one that names the second at second 20.
func TestLastUse(t *testing.T) {
	truth, c := NewTruth("node1"), claim("a", "b")
	of := func(device string) driver.ID { return driver.ID{Driver: gpu.Driver, Pool: gpu.Pool, Device: device} }
	results := c.Status.Allocation.Devices.Results
	results = append(results, results[0])
	results[0].Request, results[1].Request, results[1].Device = "a", "b", "gpu-1"
	c.Status.Allocation.Devices.Results = results
	user := func(uid types.UID) *corev1.Pod {
		p := pod(uid)
		p.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "devices", Request: string(uid)}}
		return p
	}
	for s := range 30 {
		var pods []*corev1.Pod
		if s < 10 {
			pods = append(pods, user("a"))
		}
		if s < 20 {
			pods = append(pods, user("b"))
		}
		truth.Observe(second(s), second(s), pods, []*resourceapi.ResourceClaim{c})
	}
	for device, want := range map[string]time.Time{"gpu-0": second(9), "gpu-1": {}, "gpu-2": {}} {
		if got := truth.LastUse(c.UID, of(device)); !got.Equal(want) {
			t.Errorf("%s was used until %v before the others, want %v", device, got, want)
		}
	}
}

// The kubelet takes back the devices of a claim at second 20, and reports the end of its pod to the
// API server at second 40: the row may be missing from second 20 on, if the journal says so.
func TestOwnershipOfWhatWasTakenBack(t *testing.T) {
	for name, tt := range map[string]struct {
		prepared []standstill.Span
		least    float64
		misses   bool
	}{
		"no journal":     {least: 39, misses: true},
		"still prepared": {prepared: seconds(0, 0), least: 39, misses: true},
		"taken back":     {prepared: seconds(0, 20), least: 20},
		"prepared again": {prepared: append(seconds(0, 20), seconds(24, 0)...), least: 35, misses: true},
	} {
		t.Run(name, func(t *testing.T) {
			o := Ownership{Truth: NewTruth("node1")}
			if tt.prepared != nil {
				o.Prepared = func(types.UID) []standstill.Span { return tt.prepared }
			}
			wrong := play(&o, 60, func(s int) world {
				w := running(s < 20)
				if s >= 40 {
					w.pod = nil
				}
				return w
			})
			expect.That(t, wrong != "" == tt.misses, "wrong: %v", wrong)
			if got := o.Seconds(&present.Report{}); got.Least != tt.least {
				t.Errorf("held for %v s at least, want %v", got.Least, tt.least)
			}
		})
	}
}

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
