package scenarios

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/invariant"
	"github.com/dra-exporter/dra-exporter/test/must"
	"github.com/dra-exporter/dra-exporter/test/standstill"
	"github.com/dra-exporter/dra-exporter/test/system/cluster"
	"github.com/dra-exporter/dra-exporter/test/system/cluster/deviceplugin"
	"github.com/dra-exporter/dra-exporter/test/system/cluster/node"
)

// hold says that a pod holds a device, with the facts that both the API server and the exporter
// have. Claim is empty if the device comes from a device plugin.
type hold struct {
	Pod, Claim, Device, Share, Request string
	Admin                              bool
	Memory                             float64 // The consumed memory.
}

// held is a hold according to the API server's objects.
type held struct {
	hold
	// Used: a container of the pod names the device's request or the whole claim, or no container
	// names the claim.
	Used bool
	// Listed: a main container or a restartable init container names the claim, so PodResources
	// lists the claim.
	Listed bool
	// Unnamed: the claim was created from a template for a pod group, and PodResources does not
	// list it for this pod. Only the API server has the claim's name.
	Unnamed bool
}

func compareContainers(a, b containerDevice) int {
	return cmp.Or(cmp.Compare(a.Container, b.Container), cmp.Compare(a.Device, b.Device))
}

func compareHolds(a, b hold) int {
	return cmp.Or(cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.Claim, b.Claim), cmp.Compare(a.Device, b.Device),
		cmp.Compare(a.Share, b.Share))
}

// holdsOfCluster returns the holds of a namespace's pods according to the API server. It includes
// pods that have started, or that only wait for their image, and that have not ended.
func (w *world) holdsOfCluster(ctx context.Context, ns string) ([]held, error) {
	pods, err := w.client.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	var holds []held
	for i := range pods.Items {
		pod := &pods.Items[i]
		if !invariant.HasStarted(pod) && !waitsForImage(pod) || ended(pod) {
			continue
		}
		holds = append(holds, w.holdsByPlugin(pod)...)
		for _, c := range claimsOf(pod) {
			claim, err := w.client.ResourceV1().ResourceClaims(ns).Get(ctx, c.Name, metav1.GetOptions{})
			if err != nil {
				return nil, err
			}
			if claim.Status.Allocation == nil {
				return nil, fmt.Errorf("claim %s of running pod %s is not allocated", c.Name, pod.Name)
			}
			listed := invariant.IsListed(pod, c.Name)
			for _, r := range claim.Status.Allocation.Devices.Results {
				holds = append(holds, held{
					hold: newHold(pod.Name, c.Name, &r), Used: invariant.UsesRequest(pod, c.Name, r.Request), Listed: listed,
					Unnamed: c.Made && !listed && ofGroup(claim),
				})
			}
		}
	}
	slices.SortFunc(holds, func(a, b held) int { return compareHolds(a.hold, b.hold) })
	return holds, nil
}

func ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// holdsByPlugin returns the devices that device plugins gave to a pod. It reads them from the
// devices' health in the pod's status (KEP-4680), because nothing else in the API names them.
func (w *world) holdsByPlugin(pod *corev1.Pod) []held {
	var holds []held
	for i := range pod.Status.ContainerStatuses {
		for _, s := range pod.Status.ContainerStatuses[i].AllocatedResourcesStatus {
			if s.Name != deviceplugin.Whole && s.Name != deviceplugin.Shared && s.Name != deviceplugin.Spare {
				continue
			}
			for _, r := range s.Resources {
				uuid, share, _ := strings.Cut(string(r.ResourceID), "::")
				holds = append(holds, held{
					hold: hold{Pod: pod.Name, Device: w.vendor.named(uuid), Share: share}, Used: true, Listed: true,
				})
			}
		}
	}
	return holds
}

// podClaim is a claim that a pod uses.
type podClaim struct {
	Name string // The name of the ResourceClaim.
	Made bool   // Created from a template.
}

// ofGroup reports whether a claim is reserved for a pod group.
func ofGroup(claim *resourceapi.ResourceClaim) bool {
	return slices.ContainsFunc(claim.Status.ReservedFor,
		func(by resourceapi.ResourceClaimConsumerReference) bool { return by.Resource == "podgroups" })
}

// claimsOf returns the claims of a pod, that of its extended resources included.
func claimsOf(pod *corev1.Pod) []podClaim {
	var claims []podClaim
	for _, c := range pod.Spec.ResourceClaims {
		if c.ResourceClaimName != nil {
			claims = append(claims, podClaim{Name: *c.ResourceClaimName})
		}
	}
	for _, s := range pod.Status.ResourceClaimStatuses {
		if s.ResourceClaimName != nil {
			claims = append(claims, podClaim{Name: *s.ResourceClaimName, Made: true})
		}
	}
	if s := pod.Status.ExtendedResourceClaimStatus; s != nil {
		claims = append(claims, podClaim{Name: s.ResourceClaimName})
	}
	return claims
}

func newHold(pod, claim string, r *resourceapi.DeviceRequestAllocationResult) hold {
	h := hold{
		Pod: pod, Claim: claim, Device: r.Device, Request: r.Request, Share: string(ptr.Deref(r.ShareID, "")),
		Admin: ptr.Deref(r.AdminAccess, false),
	}
	if memory, ok := r.ConsumedCapacity["memory"]; ok {
		h.Memory = memory.AsApproximateFloat64()
	}
	return h
}

// holdsOfExporter returns the holds of a namespace's pods according to a snapshot.
func holdsOfExporter(r *present.Report, ns string) []hold {
	var holds []hold
	for i := range r.Devices {
		d := &r.Devices[i]
		for _, s := range d.Shares {
			if s.Namespace != ns {
				continue
			}
			for _, pod := range s.Pods {
				holds = append(holds, hold{
					Pod: strings.TrimPrefix(pod, ns+"/"), Claim: s.Claim, Device: d.Device, Share: s.ShareID, Request: s.Request,
					Admin: s.Admin, Memory: s.Consumed["memory"],
				})
			}
		}
	}
	slices.SortFunc(holds, compareHolds)
	return holds
}

// agree waits until every exporter shows the same holds of the namespace's pods as the API server,
// as far as its sources allow, and until the pods use exactly count devices. It returns the holds
// and the snapshot of the first exporter.
func (n *namespace) agree(count int) ([]held, *present.Report) {
	var want []held
	var first *present.Report
	eventually(n.T, "the exporters agree with the cluster", func() (err error) {
		if want, err = n.holdsOfCluster(n.Context(), n.name); err != nil {
			return err
		}
		used := len(slices.DeleteFunc(slices.Clone(want), func(h held) bool { return !h.Used }))
		if used != count {
			return fmt.Errorf("%d holds of devices, want %d", used, count)
		}
		return ofAll(n.exporters, snapshots(func(e *running, r *present.Report) error {
			if e.program == n.exporter {
				first = r
			}
			if diff := n.diff(e, want, r); diff != "" {
				return fmt.Errorf("who holds what (-cluster +exporter):\n%s", diff)
			}
			return nil
		}))
	})
	if count > 0 {
		n.record()
	}
	return want, first
}

// diff compares the holds that an exporter shows with those of the cluster. In a namespace where
// the kubelet contradicts the API server, it does not compare the devices of an exporter that knows
// no claims, and others may show what the driver has prepared besides (see showsPrepared).
func (n *namespace) diff(e *running, want []held, r *present.Report) string {
	expected, got := e.expect(want), holdsOfExporter(r, n.name)
	if e.noClaims && n.ownership.contradictory()[n.name] {
		for _, holds := range [][]hold{expected, got} {
			for i := range holds {
				holds[i].Device = ""
			}
		}
	} else if n.ownership.contradictory()[n.name] {
		got = slices.DeleteFunc(got, func(h hold) bool {
			allocated := slices.ContainsFunc(expected, func(e hold) bool { return e.Claim == h.Claim && e.Device == h.Device })
			return !allocated && n.isPrepared(h.Claim, h.Device)
		})
	}
	return gocmp.Diff(expected, got)
}

// isPrepared reports whether a device is prepared for a claim of the namespace, according to the
// driver's journal.
func (n *namespace) isPrepared(claim, device string) bool {
	return slices.Contains(n.prepared(claim), device)
}

// prepared returns the devices that are prepared for a claim of the namespace, according to the
// driver's journal.
func (n *namespace) prepared(claim string) []string {
	events, err := n.cluster.Journal()
	expect.That(n, err == nil, "read the journal: %v", err)
	var devices []string
	for _, s := range spans(events, time.Time{}) {
		if s.event.Namespace != n.name || s.event.Name != claim || !s.to.IsZero() {
			continue
		}
		for _, d := range s.event.Devices {
			devices = append(devices, d.Device)
		}
	}
	return devices
}

// showsPrepared waits until every exporter that knows claims shows that a pod holds what the driver
// has prepared for its claim, whatever the claim is allocated now. It returns the number of devices
// that are prepared and not allocated.
func (n *namespace) showsPrepared(pod, claim string) (more int) {
	eventually(n.T, "the exporters show what the driver has prepared", func() error {
		allocated, err := n.holdsOfCluster(n.Context(), n.name)
		more = 0
		for _, device := range n.prepared(claim) {
			is := func(h hold) bool { return h.Pod == pod && h.Claim == claim && h.Device == device }
			if !slices.ContainsFunc(allocated, func(h held) bool { return is(h.hold) }) {
				more++
			}
			err = errors.Join(err, ofAll(n.informed(), snapshots(func(_ *running, r *present.Report) error {
				if !slices.ContainsFunc(holdsOfExporter(r, n.name), is) {
					return fmt.Errorf("%s is prepared for %s, and not shown", device, claim)
				}
				return nil
			})))
		}
		return err
	})
	return more
}

// keeps checks, on every snapshot until lift is called, that the namespace's pods hold what they
// hold now and that their devices are read. If the exporter reads none of the devices of an
// endpoint of the vendor's exporter, the pods' devices there need not be read either: the endpoint
// has then not answered within a second.
func (n *namespace) keeps(count int) (lift func()) {
	all, _ := n.agree(count)
	contradicts := n.ownership.contradictory()[n.name]
	read := func(e *running, strictly bool) func(*present.Report) error {
		want := e.expect(all)
		return func(r *present.Report) error {
			for _, h := range want {
				if e.noClaims && (!n.vendor.has(h.Device) || contradicts) {
					continue // The hardware or the device is unknown.
				}
				if !strictly && n.vendor.has(h.Device) && !n.vendor.answers(r, h.Device, e.noClaims) {
					continue
				}
				if d := deviceOf(r, h.Device); d.Up == nil || !*d.Up {
					return fmt.Errorf("%s is not read", h.Device)
				}
			}
			return nil
		}
	}
	n.each("the devices are read", n.exporters, snapshots(func(e *running, r *present.Report) error {
		return read(e, true)(r)
	}))
	var lifts []func()
	for _, e := range n.exporters {
		var before []present.HoldReport
		lifts = append(lifts, e.watch.guard(n.T, read(e, false)), e.watch.guard(n.T, func(r *present.Report) error {
			if diff := n.diff(e, all, r); diff != "" {
				said, _ := json.Marshal(before) // It has only strings and times.
				return fmt.Errorf("the holders change (-before +now):\n%s\nbefore: %s", diff, said)
			}
			before = holdReports(r, n.name)
			return nil
		}))
	}
	return func() { liftAll(lifts) }
}

func liftAll(lifts []func()) {
	for _, lift := range lifts {
		lift()
	}
}

// holdReports returns the holds of a namespace's pods with their reasons.
func holdReports(r *present.Report, ns string) []present.HoldReport {
	var out []present.HoldReport
	for i := range r.Devices {
		for _, s := range r.Devices[i].Shares {
			if s.Namespace == ns {
				out = append(out, s.Holds...)
			}
		}
	}
	return out
}

// deviceOf returns the device of this name in a snapshot.
func deviceOf(r *present.Report, name string) *present.DeviceReport {
	for i := range r.Devices {
		if r.Devices[i].Device == name {
			return &r.Devices[i]
		}
	}
	return &present.DeviceReport{}
}

// holder returns the row of a claim or a pod for a device.
func holder(rows []present.HolderReport, ns, name, device string) *present.HolderReport {
	for i := range rows {
		if r := &rows[i]; r.Namespace == ns && r.Name == name && r.Device == device {
			return r
		}
	}
	return &present.HolderReport{}
}

// observeEvery is the interval at which the API server's objects are read.
const observeEvery = 100 * time.Millisecond

// ownership is the truth about who holds which device, according to the API server and the tests.
type ownership struct {
	truth      *invariant.Truth
	containers *invariant.Containers
	runtime    runtimeapi.RuntimeServiceClient

	mu     sync.Mutex
	since  map[string]time.Time // When each stopped component was stopped.
	gaps   []standstill.Span    // When components were stopped that run again.
	blind  map[string]bool      // Namespaces in which the kubelet contradicts the API server.
	forced map[string]time.Time // When the pod of a claim was deleted by force; the key is NAMESPACE/CLAIM.
}

// startOwnership observes the API server's pods and claims until the test ends. It lists them each
// time, because an interrupted watch would keep its old state for up to half a minute after the API
// server is back. While the API server is down, nothing is observed.
func startOwnership(t *testing.T, c *cluster.Cluster) *ownership {
	config := must.Get(c.Client())(t)
	o := &ownership{
		truth: invariant.NewTruth(node.Name), containers: &invariant.Containers{},
		since: map[string]time.Time{}, blind: map[string]bool{}, forced: map[string]time.Time{},
	}
	config.ContentType = runtime.ContentTypeProtobuf
	client := must.Get(kubernetes.NewForConfig(config))(t)
	ctx, cancel := context.WithCancel(context.Background())
	var last time.Time // When the last answer arrived.
	observe := func() {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		asked := time.Now()
		pods, err := client.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
		if err != nil {
			return
		}
		claims, err := client.ResourceV1().ResourceClaims("").List(ctx, metav1.ListOptions{})
		if err != nil {
			return
		}
		last = time.Now()
		o.truth.Observe(asked, last, pointers(pods.Items), pointers(claims.Items))
	}
	var working sync.WaitGroup
	working.Go(func() {
		for ctx.Err() == nil {
			observe()
			time.Sleep(observeEvery)
		}
	})
	t.Cleanup(func() {
		cancel()
		working.Wait()
		ago := time.Since(last)
		expect.That(t, ago <= *waitLimit, "the API server was observed for the last time %v ago", ago)
	})
	return o
}

// startContainers observes the sandboxes and containers of the runtime until the test ends.
func (o *ownership) startContainers(t *testing.T, socket string) {
	t.Helper()
	conn := must.Get(grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials())))(t)
	client := runtimeapi.NewRuntimeServiceClient(conn)
	o.runtime = client
	ctx, cancel := context.WithCancel(context.Background())
	observe := func() error {
		asked := time.Now()
		sandboxes, err := client.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
		if err != nil {
			return err
		}
		containers, err := client.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
		if err != nil {
			return err
		}
		runs := map[string]bool{} // By sandbox ID.
		for _, c := range containers.GetContainers() {
			if c.GetState() == runtimeapi.ContainerState_CONTAINER_RUNNING {
				runs[c.GetPodSandboxId()] = true
			}
		}
		ready := map[types.UID]bool{}
		for _, s := range sandboxes.GetItems() {
			if s.GetState() == runtimeapi.PodSandboxState_SANDBOX_READY {
				uid := types.UID(s.GetMetadata().GetUid())
				ready[uid] = ready[uid] || runs[s.GetId()]
			}
		}
		o.containers.Observe(asked, time.Now(), ready)
		return nil
	}
	var working sync.WaitGroup
	working.Go(func() {
		for ctx.Err() == nil {
			if err := observe(); err != nil && ctx.Err() == nil {
				t.Errorf("observe the runtime: %v", err)
			}
			time.Sleep(observeEvery)
		}
	})
	t.Cleanup(func() {
		cancel()
		working.Wait()
		expect.OK(t, conn.Close())
	})
}

// switched records that a component was stopped or, if it was stopped, that it was started.
func (o *ownership) switched(component string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if from, stopped := o.since[component]; stopped {
		delete(o.since, component)
		o.gaps = append(o.gaps, standstill.Span{From: from, To: time.Now()})
		return
	}
	o.since[component] = time.Now()
}

// stopped returns when the kubelet or a driver was stopped. During these times no pod can end.
func (o *ownership) stopped() []standstill.Span {
	o.mu.Lock()
	defer o.mu.Unlock()
	all := slices.Clone(o.gaps)
	for _, from := range o.since {
		all = append(all, standstill.Span{From: from, To: time.Now()})
	}
	return all
}

// pointers returns pointers to the elements of a slice.
func pointers[T any](all []T) []*T {
	out := make([]*T, len(all))
	for i := range all {
		out[i] = &all[i]
	}
	return out
}

// contradicts excludes the namespace from the comparisons with the driver's journal and, for
// exporters that know no claims, with the API server's objects. A test calls it before it makes the
// cluster's own data contradictory there.
func (n *namespace) contradicts() {
	n.ownership.mu.Lock()
	defer n.ownership.mu.Unlock()
	n.ownership.blind[n.name] = true
}

// contradictory returns the namespaces for which contradicts was called.
func (o *ownership) contradictory() map[string]bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return maps.Clone(o.blind)
}

// forcedAt returns when a claim's pod was deleted by force, and whether it was.
func (o *ownership) forcedAt(claim string) (time.Time, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	at, ok := o.forced[claim]
	return at, ok
}

// force deletes a pod by force: the object is gone at once, but its containers run on for the pod's
// grace period. It records the time of the deletion as the end of the claims that were created for
// the pod.
func (n *namespace) force(pod *corev1.Pod) {
	n.no(n.pods().Delete(n.Context(), pod.Name, metav1.DeleteOptions{
		GracePeriodSeconds: ptr.To[int64](0), Preconditions: metav1.NewUIDPreconditions(string(pod.UID)),
	}))
	at := time.Now()
	n.ownership.mu.Lock()
	defer n.ownership.mu.Unlock()
	for _, s := range pod.Status.ResourceClaimStatuses {
		if s.ResourceClaimName != nil {
			n.ownership.forced[n.name+"/"+*s.ResourceClaimName] = at
		}
	}
}
