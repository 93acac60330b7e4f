package scenarios

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/invariant"
	"github.com/dra-exporter/dra-exporter/test/system/cluster/deviceplugin"
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
