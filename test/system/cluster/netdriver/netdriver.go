// Package netdriver is a DRA driver for real network interfaces: ends of veth pairs. It moves an
// interface into the pod that holds it, as dranet does, and publishes the same attributes under the
// same driver name. It needs a container runtime with NRI.
package netdriver

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/utils/ptr"

	"github.com/dra-exporter/dra-exporter/test/system/cluster/plugin"
)

// Name is the driver's name in ResourceSlices, and the name of its only device class.
const Name = "dra.net"

const (
	interfaces = 4
	mtu        = 1500
)

// nic is the number N of an interface nicN. What a pod sends arrives at the other end, wireN on the
// node.
type nic int

func (n nic) device() string  { return fmt.Sprintf("nic%d", int(n)) }
func (n nic) wire() string    { return fmt.Sprintf("wire%d", int(n)) }
func (n nic) inPod() string   { return fmt.Sprintf("net%d", int(n)) }
func (n nic) near() string    { return fmt.Sprintf("198.18.%d.2/24", int(n)) } // RFC 2544.
func (n nic) far() string     { return fmt.Sprintf("198.18.%d.1/24", int(n)) }
func (n nic) address() string { return fmt.Sprintf("02:00:00:00:00:%02x", int(n)+1) }

// Driver moves interfaces between the node and pods.
type Driver struct {
	client kubernetes.Interface
	log    *slog.Logger

	mu      sync.Mutex
	holders map[nic]holder
}

// holder is the claim that has an interface, and the pods that use the claim.
type holder struct {
	claim types.NamespacedName
	uid   types.UID
	pods  []types.UID
}

// New creates the missing interfaces. After a restart of the driver, it takes the holders of the
// existing interfaces from the API server's claims.
func New(ctx context.Context, client kubernetes.Interface, log *slog.Logger) (*Driver, error) {
	for n := range nic(interfaces) {
		if err := n.make(ctx); err != nil {
			return nil, err
		}
	}
	d := &Driver{client: client, log: log, holders: map[nic]holder{}}
	claims, err := client.ResourceV1().ResourceClaims(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list claims: %w", err)
	}
	for i := range claims.Items {
		claim := &claims.Items[i]
		if claim.Status.Allocation == nil {
			continue
		}
		if err := d.prepared(claim, plugin.Results(claim, Name)); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// make creates the veth pair unless wireN exists. If it does, nicN exists too, on the node or in a
// pod.
func (n nic) make(ctx context.Context) error {
	if _, err := os.Stat("/sys/class/net/" + n.wire()); err == nil {
		return nil
	}
	for _, args := range []string{
		fmt.Sprintf("link add %s address %s mtu %d type veth peer name %s", n.device(), n.address(), mtu, n.wire()),
		fmt.Sprintf("addr add %s dev %s", n.far(), n.wire()),
		fmt.Sprintf("link set %s up", n.wire()),
	} {
		if err := ip(ctx, args); err != nil {
			return err
		}
	}
	return nil
}

func ip(ctx context.Context, args string) error {
	if output, err := exec.CommandContext(ctx, "ip", strings.Fields(args)...).CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w: %s", args, err, output)
	}
	return nil
}

// Plugin returns the driver's configuration for package plugin.
func (d *Driver) Plugin() plugin.Driver {
	var devices []resourceapi.Device
	for n := range nic(interfaces) {
		devices = append(devices, resourceapi.Device{
			Name: n.device(),
			Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
				"ifName":  {StringValue: ptr.To(n.device())},
				"mac":     {StringValue: ptr.To(n.address())},
				"mtu":     {IntValue: ptr.To(int64(mtu))},
				"type":    {StringValue: ptr.To("veth")},
				"state":   {StringValue: ptr.To("up")},
				"virtual": {BoolValue: ptr.To(true)},
			},
		})
	}
	return plugin.Driver{
		Name: Name, Slices: []resourceslice.Slice{{Devices: devices}}, Prepared: d.prepared, Unprepared: d.unprepared,
		Classes: []resourceapi.DeviceClass{plugin.Class(Name, "device.driver == '"+Name+"'")},
	}
}

// prepared records the pods that may use the interfaces. Their sandboxes are created later.
func (d *Driver) prepared(claim *resourceapi.ResourceClaim, results []resourceapi.DeviceRequestAllocationResult) error {
	h := holder{claim: types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}, uid: claim.UID}
	for _, consumer := range claim.Status.ReservedFor {
		h.pods = append(h.pods, consumer.UID)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, r := range results {
		n, err := numbered(r.Device)
		if err != nil {
			return err
		}
		d.holders[n] = h
	}
	return nil
}

func numbered(device string) (n nic, err error) {
	if _, err := fmt.Sscanf(device, "nic%d", &n); err != nil {
		return 0, fmt.Errorf("%s is no device of this driver: %w", device, err)
	}
	return n, nil
}

// unprepared creates an interface again that was deleted with its pod's network namespace. It fails
// while the interface is neither back nor deleted: the kernel deletes a network namespace later.
func (d *Driver) unprepared(claim types.UID) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for n, h := range d.holders {
		if h.uid != claim {
			continue
		}
		if err := n.make(context.Background()); err != nil {
			return err
		}
		if _, err := os.Stat("/sys/class/net/" + n.device()); err != nil {
			return fmt.Errorf("the network namespace of its pod still has it: %w", err)
		}
		delete(d.holders, n)
	}
	return nil
}

// Serve handles the runtime's events about sandboxes until the context ends.
func (d *Driver) Serve(ctx context.Context) error {
	s, err := stub.New(d, stub.WithPluginName(Name), stub.WithPluginIdx("10"))
	if err != nil {
		return fmt.Errorf("make the runtime's plugin: %w", err)
	}
	if err := s.Run(ctx); err != nil && ctx.Err() == nil {
		return fmt.Errorf("run the runtime's plugin: %w", err)
	}
	return nil
}

// RunPodSandbox moves the pod's interfaces into its network namespace and records that in the
// status of the claims. NRI calls it before any container starts.
func (d *Driver) RunPodSandbox(ctx context.Context, pod *api.PodSandbox) error {
	for n, h := range d.heldBy(pod) {
		namespace := networkNamespace(pod)
		for _, args := range []string{
			fmt.Sprintf("link set %s netns %s", n.device(), namespace),
			fmt.Sprintf("-n %s link set %s name %s", namespace, n.device(), n.inPod()),
			fmt.Sprintf("-n %s link set %s addrgenmode none", namespace, n.inPod()), // No IPv6: it sends by itself.
			fmt.Sprintf("-n %s addr add %s dev %s", namespace, n.near(), n.inPod()),
			fmt.Sprintf("-n %s link set %s up", namespace, n.inPod()),
		} {
			if err := ip(ctx, args); err != nil {
				return err
			}
		}
		if err := d.report(ctx, n, h.claim); err != nil {
			return err
		}
		d.log.Info("moved", "device", n.device(), "pod", pod.Uid)
	}
	return nil
}

// StopPodSandbox moves the pod's interfaces back to the node. If that fails, unprepared creates the
// interface again.
func (d *Driver) StopPodSandbox(ctx context.Context, pod *api.PodSandbox) error {
	for n := range d.heldBy(pod) {
		namespace := networkNamespace(pod)
		for _, args := range []string{
			fmt.Sprintf("-n %s link set %s down", namespace, n.inPod()),
			fmt.Sprintf("-n %s link set %s name %s", namespace, n.inPod(), n.device()),
			fmt.Sprintf("-n %s link set %s netns 1", namespace, n.device()), // The network namespace of process 1 is the node's.
		} {
			if err := ip(ctx, args); err != nil {
				d.log.Info("not moved back", "device", n.device(), "pod", pod.Uid, "err", err)
				break
			}
		}
	}
	return nil
}

// heldBy returns the interfaces of a pod.
func (d *Driver) heldBy(pod *api.PodSandbox) map[nic]holder {
	d.mu.Lock()
	defer d.mu.Unlock()
	held := map[nic]holder{}
	for n, h := range d.holders {
		for _, uid := range h.pods {
			if string(uid) == pod.Uid {
				held[n] = h
			}
		}
	}
	return held
}

// networkNamespace returns the name of the pod's network namespace for ip(8).
func networkNamespace(pod *api.PodSandbox) string {
	for _, n := range pod.GetLinux().GetNamespaces() {
		if n.Type == "network" {
			return filepath.Base(n.Path)
		}
	}
	return ""
}

// report writes the interface's name and addresses in the pod to the claim's status (KEP-4817).
func (d *Driver) report(ctx context.Context, n nic, claim types.NamespacedName) error {
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		object, err := d.client.ResourceV1().ResourceClaims(claim.Namespace).Get(ctx, claim.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, r := range object.Status.Allocation.Devices.Results {
			if r.Driver != Name || r.Device != n.device() {
				continue
			}
			object.Status.Devices = append(object.Status.Devices, resourceapi.AllocatedDeviceStatus{
				Driver: r.Driver, Pool: r.Pool, Device: r.Device,
				NetworkData: &resourceapi.NetworkDeviceData{
					InterfaceName: n.inPod(), IPs: []string{n.near()},
					HardwareAddress: n.address(),
				},
				Conditions: []metav1.Condition{{
					Type: "Ready", Status: metav1.ConditionTrue, Reason: "Moved", LastTransitionTime: metav1.Now(),
				}},
			})
		}
		_, err = d.client.ResourceV1().ResourceClaims(claim.Namespace).UpdateStatus(ctx, object, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		return fmt.Errorf("say in the claim's status where the interface is: %w", err)
	}
	return nil
}
