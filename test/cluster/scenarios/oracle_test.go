package scenarios

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/dra-exporter/dra-exporter/exporter"
	"github.com/dra-exporter/dra-exporter/test/cluster/deviceplugin"
)

// hold is a pod's hold of a device, as far as both the API and the exporter tell it. The claim of a device plugin's device is empty.
type hold struct {
	Pod, Claim, Device, Share, Request string
	Admin                              bool
	Memory                             float64 // consumed
}

func compareHolds(a, b hold) int {
	return cmp.Or(cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.Claim, b.Claim), cmp.Compare(a.Device, b.Device), cmp.Compare(a.Share, b.Share))
}

// holdsOfCluster returns what the pods of a namespace that run hold, by the API.
func (w *world) holdsOfCluster(ctx context.Context, ns string) ([]hold, error) {
	pods, err := w.client.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	var holds []hold
	for i := range pods.Items {
		pod := &pods.Items[i]
		if pod.Status.Phase != corev1.PodRunning {
			continue
		}
		holds = append(holds, w.holdsByPlugin(pod)...)
		for _, name := range claimsOf(pod) {
			claim, err := w.client.ResourceV1().ResourceClaims(ns).Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return nil, err
			}
			if claim.Status.Allocation == nil {
				return nil, fmt.Errorf("claim %s of running pod %s is not allocated", name, pod.Name)
			}
			for _, r := range claim.Status.Allocation.Devices.Results {
				holds = append(holds, newHold(pod.Name, name, &r))
			}
		}
	}
	slices.SortFunc(holds, compareHolds)
	return holds, nil
}

// holdsByPlugin returns what device plugins gave to a pod, by the health of these devices (KEP-4680): nothing else in the API names them.
func (w *world) holdsByPlugin(pod *corev1.Pod) []hold {
	var holds []hold
	for i := range pod.Status.ContainerStatuses {
		for _, s := range pod.Status.ContainerStatuses[i].AllocatedResourcesStatus {
			if s.Name != deviceplugin.Whole && s.Name != deviceplugin.Shared {
				continue
			}
			for _, r := range s.Resources {
				uuid, share, _ := strings.Cut(string(r.ResourceID), "::")
				holds = append(holds, hold{Pod: pod.Name, Device: w.vendor.named(uuid), Share: share})
			}
		}
	}
	return holds
}

// claimsOf returns the names of a pod's claims.
func claimsOf(pod *corev1.Pod) []string {
	var names []string
	for _, c := range pod.Spec.ResourceClaims {
		if c.ResourceClaimName != nil {
			names = append(names, *c.ResourceClaimName)
		}
	}
	for _, s := range pod.Status.ResourceClaimStatuses {
		if s.ResourceClaimName != nil {
			names = append(names, *s.ResourceClaimName)
		}
	}
	if s := pod.Status.ExtendedResourceClaimStatus; s != nil {
		names = append(names, s.ResourceClaimName)
	}
	return names
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
func holdsOfExporter(r *exporter.Report, ns string) []hold {
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

// agree waits until the exporter says of the namespace's pods what the API says, which is to be so many holds of devices, and returns
// both the holds and the snapshot.
func (n *namespace) agree(count int) ([]hold, *exporter.Report) {
	n.Helper()
	var want []hold
	var r *exporter.Report
	eventually(n.T, "the exporter agrees with the cluster", func() error {
		var err, fileErr error
		var file *exporter.Report
		want, err = n.holdsOfCluster(n.Context(), n.name)
		if err != nil {
			return err
		}
		r, err = n.exporter.report()
		file, fileErr = n.file.report()
		if err := errors.Join(err, fileErr); err != nil {
			return err
		}
		if diff := gocmp.Diff(want, holdsOfExporter(r, n.name)); diff != "" {
			return fmt.Errorf("they differ (-cluster +exporter):\n%s", diff)
		}
		if diff := gocmp.Diff(want, holdsOfExporter(file, n.name)); diff != "" {
			return fmt.Errorf("they differ (-cluster +exporter with a file):\n%s", diff)
		}
		if len(want) != count {
			return fmt.Errorf("%d holds of devices, want %d", len(want), count)
		}
		return nil
	})
	if count > 0 {
		n.record()
	}
	return want, r
}

// keeps checks that every snapshot from now on shows what the namespace's pods hold now, and that these devices are read, until it is
// lifted.
func (n *namespace) keeps(count int) (lift func()) {
	n.Helper()
	want, _ := n.agree(count)
	guard := func(r *exporter.Report) error {
		if diff := gocmp.Diff(want, holdsOfExporter(r, n.name)); diff != "" {
			return fmt.Errorf("%s: the holders change while the cluster is in trouble (-before +now):\n%s", n.name, diff)
		}
		return nil
	}
	read := func(r *exporter.Report) error {
		for _, h := range want {
			if d := deviceOf(r, h.Device); d.Up == nil || !*d.Up {
				return fmt.Errorf("%s: %s is not read while the cluster is in trouble", n.name, h.Device)
			}
		}
		return nil
	}
	eventually(n.T, "the devices are read", func() error {
		r, err := n.exporter.report()
		file, fileErr := n.file.report()
		if err := errors.Join(err, fileErr); err != nil {
			return err
		}
		return errors.Join(read(r), read(file))
	})
	var lifts []func()
	for _, w := range n.watched {
		lifts = append(lifts, w.guard(guard), w.guard(read))
	}
	return func() {
		for _, lift := range lifts {
			lift()
		}
	}
}

// deviceOf returns what a snapshot says of a device.
func deviceOf(r *exporter.Report, name string) *exporter.DeviceReport {
	for i := range r.Devices {
		if r.Devices[i].Device == name {
			return &r.Devices[i]
		}
	}
	return &exporter.DeviceReport{}
}

// holder returns the row of a claim or pod and a device.
func holder(rows []exporter.HolderReport, ns, name, device string) *exporter.HolderReport {
	for i := range rows {
		if r := &rows[i]; r.Namespace == ns && r.Name == name && r.Device == device {
			return r
		}
	}
	return &exporter.HolderReport{}
}
