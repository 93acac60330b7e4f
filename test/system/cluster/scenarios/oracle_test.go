package scenarios

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/dra-exporter/dra-exporter/exporter/web"
	"github.com/dra-exporter/dra-exporter/test/system/cluster/deviceplugin"
)

// hold is a pod's hold of a device, as far as both the API and the exporter tell it. The claim of a
// device plugin's device is empty.
type hold struct {
	Pod, Claim, Device, Share, Request string
	Admin                              bool
	Memory                             float64 // consumed
}

// held is a hold as the API server's objects say it is.
type held struct {
	hold
	// Used: one of the pod's containers, of any kind, names the device's request or the whole
	// claim, or none of them names the claim.
	Used bool
	// Listed: a main container or a restartable init container names the claim, so that
	// PodResources lists it.
	Listed bool
	// Unnamed: the claim was made for a pod group from a template, and PodResources does not list it
	// for this pod: only the API server has its name.
	Unnamed bool
}

func compareContainers(a, b containerDevice) int {
	return cmp.Or(cmp.Compare(a.Container, b.Container), cmp.Compare(a.Device, b.Device))
}

func compareHolds(a, b hold) int {
	return cmp.Or(cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.Claim, b.Claim), cmp.Compare(a.Device, b.Device),
		cmp.Compare(a.Share, b.Share))
}

// holdsOfCluster returns what the pods of a namespace that have started, or would have with their
// image, and have not ended hold, by the API.
func (w *world) holdsOfCluster(ctx context.Context, ns string) ([]held, error) {
	pods, err := w.client.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	var holds []held
	for i := range pods.Items {
		pod := &pods.Items[i]
		if !started(pod) && !waitsForImage(pod) || ended(pod) {
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
			for _, r := range claim.Status.Allocation.Devices.Results {
				holds = append(holds,
					held{
						hold: newHold(pod.Name, c.Name, &r), Used: c.uses(pod, r.Request), Listed: c.listed(pod),
						Unnamed: c.Made && !c.listed(pod) && ofGroup(claim),
					})
			}
		}
	}
	slices.SortFunc(holds, func(a, b held) int { return compareHolds(a.hold, b.hold) })
	return holds, nil
}

// started reports whether a container of a pod, of whatever kind, has started.
func started(pod *corev1.Pod) bool {
	if pod.Status.Phase == corev1.PodRunning {
		return true
	}
	return slices.ContainsFunc(slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses),
		func(s corev1.ContainerStatus) bool {
			return s.State.Running != nil || s.State.Terminated != nil || s.LastTerminationState.Terminated != nil
		})
}

func ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// holdsByPlugin returns what device plugins gave to a pod, by the health of these devices
// (KEP-4680): nothing else in the API names them.
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

// podClaim is a claim of a pod.
type podClaim struct {
	Local    string // the name in the pod's spec
	Name     string // that of the ResourceClaim
	Made     bool   // from a template
	Extended bool   // made by the scheduler for extended resources
}

// ofGroup reports whether a claim is reserved for a pod group.
func ofGroup(claim *resourceapi.ResourceClaim) bool {
	return slices.ContainsFunc(claim.Status.ReservedFor,
		func(by resourceapi.ResourceClaimConsumerReference) bool { return by.Resource == "podgroups" })
}

// claimsOf returns a pod's claims.
func claimsOf(pod *corev1.Pod) []podClaim {
	var claims []podClaim
	for _, c := range pod.Spec.ResourceClaims {
		if c.ResourceClaimName != nil {
			claims = append(claims, podClaim{Local: c.Name, Name: *c.ResourceClaimName})
		}
	}
	for _, s := range pod.Status.ResourceClaimStatuses {
		if s.ResourceClaimName != nil {
			claims = append(claims, podClaim{Local: s.Name, Name: *s.ResourceClaimName, Made: true})
		}
	}
	if s := pod.Status.ExtendedResourceClaimStatus; s != nil {
		claims = append(claims, podClaim{Name: s.ResourceClaimName, Extended: true})
	}
	return claims
}

// uses reports whether a pod uses the device of a request of its claim.
func (c podClaim) uses(pod *corev1.Pod, request string) bool {
	request, _, _ = strings.Cut(request, "/") // of a request with alternatives (KEP-4816)
	named := false
	for _, container := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		for _, r := range container.Resources.Claims {
			if r.Name == c.Local && (r.Request == "" || r.Request == request) {
				return true
			}
			named = named || r.Name == c.Local
		}
	}
	return !named
}

// listed reports whether PodResources lists the claim.
func (c podClaim) listed(pod *corev1.Pod) bool {
	if c.Extended {
		return true
	}
	restartable := slices.DeleteFunc(slices.Clone(pod.Spec.InitContainers), func(c corev1.Container) bool {
		return ptr.Deref(c.RestartPolicy, "") != corev1.ContainerRestartPolicyAlways
	})
	return slices.ContainsFunc(slices.Concat(restartable, pod.Spec.Containers), func(container corev1.Container) bool {
		return slices.ContainsFunc(container.Resources.Claims, func(r corev1.ResourceClaim) bool { return r.Name == c.Local })
	})
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

// holdsOfExporter returns what the pods of a namespace hold, by a snapshot.
func holdsOfExporter(r *web.Report, ns string) []hold {
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

// agree waits until every exporter says of the namespace's pods what the API says, as far as its
// way can know, and returns both the holds and the snapshot of the first exporter. The pods are to
// use so many devices.
func (n *namespace) agree(count int) ([]held, *web.Report) {
	n.Helper()
	var want []held
	var first *web.Report
	eventually(n.T, "the exporters agree with the cluster", func() error {
		var err error
		want, err = n.holdsOfCluster(n.Context(), n.name)
		if err != nil {
			return err
		}
		used := len(slices.DeleteFunc(slices.Clone(want), func(h held) bool { return !h.Used }))
		if used != count {
			return fmt.Errorf("%d holds of devices, want %d", used, count)
		}
		var wrong error
		for i, e := range n.exporters {
			r, err := e.report()
			if err != nil {
				return err
			}
			if i == 0 {
				first = r
			}
			if diff := n.diff(e, want, r); diff != "" {
				wrong = errors.Join(wrong, fmt.Errorf("%s: who holds what (-cluster +exporter):\n%s", e.name, diff))
			}
		}
		return wrong
	})
	if count > 0 {
		n.record()
	}
	return want, first
}

// diff compares what an exporter says of the namespace with what the cluster says. Where the
// kubelet contradicts the API server, an exporter without claims can't know the device.
func (n *namespace) diff(e *running, want []held, r *web.Report) string {
	expected, got := e.expect(want), holdsOfExporter(r, n.name)
	if e.noClaims && n.ownership.contradictory()[n.name] {
		for _, holds := range [][]hold{expected, got} {
			for i := range holds {
				holds[i].Device = ""
			}
		}
	}
	return gocmp.Diff(expected, got)
}

// keeps checks that every snapshot from now on shows what the namespace's pods hold now, and that
// these devices are read, until it is lifted. While the exporter reads no device of the vendor at
// all, which takes answers within a second, those of the pods need not be read either.
func (n *namespace) keeps(count int) (lift func()) {
	n.Helper()
	all, _ := n.agree(count)
	contradicts := n.ownership.contradictory()[n.name]
	read := func(e *running, strictly bool) func(*web.Report) error {
		want := e.expect(all)
		return func(r *web.Report) error {
			away := !strictly && !n.vendor.isRead(r)
			for _, h := range want {
				if e.noClaims && (!n.vendor.has(h.Device) || contradicts) {
					continue // the hardware, or the device, is not known
				}
				if away && n.vendor.has(h.Device) {
					continue
				}
				if d := deviceOf(r, h.Device); d.Up == nil || !*d.Up {
					return fmt.Errorf("%s is not read", h.Device)
				}
			}
			return nil
		}
	}
	eventually(n.T, "the devices are read", func() error {
		var wrong error
		for _, e := range n.exporters {
			r, err := e.report()
			if err != nil {
				return err
			}
			if err := read(e, true)(r); err != nil {
				wrong = errors.Join(wrong, fmt.Errorf("%s: %w", e.name, err))
			}
		}
		return wrong
	})
	var lifts []func()
	for _, e := range n.exporters {
		var before []web.HoldReport
		lifts = append(lifts, e.watch.guard(n.T, read(e, false)), e.watch.guard(n.T, func(r *web.Report) error {
			if diff := n.diff(e, all, r); diff != "" {
				said, _ := json.Marshal(before) // of strings and times
				return fmt.Errorf("the holders change (-before +now):\n%s\nbefore: %s", diff, said)
			}
			before = holdReports(r, n.name)
			return nil
		}))
	}
	return func() {
		for _, lift := range lifts {
			lift()
		}
	}
}

// holdReports returns why the pods of a namespace hold devices.
func holdReports(r *web.Report, ns string) []web.HoldReport {
	var out []web.HoldReport
	for i := range r.Devices {
		for _, s := range r.Devices[i].Shares {
			if s.Namespace == ns {
				out = append(out, s.Holds...)
			}
		}
	}
	return out
}

// deviceOf returns what a snapshot says of a device.
func deviceOf(r *web.Report, name string) *web.DeviceReport {
	for i := range r.Devices {
		if r.Devices[i].Device == name {
			return &r.Devices[i]
		}
	}
	return &web.DeviceReport{}
}

// holder returns the row of a claim or pod and a device.
func holder(rows []web.HolderReport, ns, name, device string) *web.HolderReport {
	for i := range rows {
		if r := &rows[i]; r.Namespace == ns && r.Name == name && r.Device == device {
			return r
		}
	}
	return &web.HolderReport{}
}
