package simnode

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"
	cdi "tags.cncf.io/container-device-interface/specs-go"

	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/test/node"
)

// writeInventory writes the API objects in the format of kubectl get resourceslices,resourceclaims
// -A -o yaml.
func (n *Node) writeInventory() {
	out := []byte("apiVersion: v1\nkind: List\nitems:\n")
	out = append(out, n.slices...)
	for _, c := range slices.SortedFunc(maps.Values(n.claims), func(a, b *claim) int { return a.Compare(b.Claim) }) {
		out = append(out, c.item...)
	}
	n.try("write inventory", n.Write(node.Inventory, out))
}

// item returns an object as an item of a list, in YAML.
func (n *Node) item(object any) []byte {
	data, err := yaml.Marshal(object)
	n.try("encode object", err)
	lines := strings.TrimSuffix(string(data), "\n")
	return []byte("- " + strings.ReplaceAll(lines, "\n", "\n  ") + "\n")
}

// specPath returns the path of the CDI spec that a driver writes for a claim.
func (c *claim) specPath(driverName string) string {
	return filepath.Join(node.CDI, driverName+"-"+c.uid+".json")
}

// prepare writes the CDI specs of a claim: one for each driver that uses CDI.
func (n *Node) prepare(c *claim) {
	specs := map[string]*cdi.Spec{}
	for _, a := range c.allocated {
		if a.device.CDIClass == "" {
			continue
		}
		spec, ok := specs[a.device.Driver]
		if !ok {
			spec = &cdi.Spec{Version: "0.6.0", Kind: a.device.Driver + "/" + a.device.CDIClass}
			specs[a.device.Driver] = spec
		}
		spec.Devices = append(spec.Devices, cdi.Device{
			Name:           c.cdiDevice(a),
			ContainerEdits: cdi.ContainerEdits{Env: []string{fmt.Sprintf("GPU_DEVICE_%d=%s", len(spec.Devices), a.device.Name)}},
		})
	}
	for driverName, spec := range specs {
		data, err := json.Marshal(spec)
		n.try("write CDI spec", errors.Join(err, n.Write(c.specPath(driverName), data)))
	}
}

// unprepare removes the CDI specs of a claim.
func (n *Node) unprepare(c *claim) {
	for _, a := range c.allocated {
		n.try("remove CDI spec", os.RemoveAll(n.Path(c.specPath(a.device.Driver))))
	}
}

// makeBus writes the sysfs of devices with a PCI address.
func (n *Node) makeBus() {
	for _, d := range n.devices {
		if _, logged := d.Attributes["resource.kubernetes.io/pciBusID"]; !logged {
			continue
		}
		bus := n.Path(node.Sysfs, "bus", "pci", "devices")
		root := d.Attributes["resource.kubernetes.io/pcieRoot"].StringValue
		folder := n.Path(node.Sysfs, "devices", *root, d.Hardware.PCI)
		n.try("make PCI device", errors.Join(os.MkdirAll(folder, 0o755), os.MkdirAll(bus, 0o755),
			os.Symlink(filepath.Join("..", "..", "..", "devices", *root, d.Hardware.PCI), filepath.Join(bus, d.Hardware.PCI)),
			os.WriteFile(filepath.Join(folder, "vendor"), []byte("0x10de\n"), 0o644),
			os.WriteFile(filepath.Join(folder, "class"), []byte("0x030200\n"), 0o644)))
	}
}

// makeProcess writes the cgroup of the pod's process.
func (n *Node) makeProcess(p *pod) {
	if p.spec.PID != 0 {
		cgroup := strings.TrimPrefix(node.Cgroup(p.uid), node.Cgroups)
		folder := n.Path(node.Procfs, strconv.Itoa(p.spec.PID))
		n.try("make process", errors.Join(os.MkdirAll(folder, 0o755),
			os.WriteFile(filepath.Join(folder, "cgroup"), []byte("0::"+cgroup+"/cri-containerd-0.scope\n"), 0o644)))
	}
}

func (n *Node) removeProcess(p *pod) {
	if p.spec.PID != 0 {
		n.try("remove process", os.RemoveAll(n.Path(node.Procfs, strconv.Itoa(p.spec.PID))))
	}
}

// Fault writes the XID of a page fault to the kernel log, as NVIDIA's driver does.
func (n *Node) Fault(f Fault) (err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := n.pods[podresources.Pod{Namespace: f.Namespace, Name: f.Pod}]
	log, err := os.OpenFile(n.Path(node.KernelLog), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("write to the kernel log: %w", err)
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	n.logged++
	const machineStart = time.Hour // before the node's
	_, err = fmt.Fprintf(log, "4,%d,%d,-;NVRM: Xid (PCI:%s): %d, pid=%d, name=python3, Ch 00000008, intr 00000000. "+
		"MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_8 faulted @ 0x7f1a_00000000. "+
		"Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ\n",
		n.logged, (n.now().Sub(n.begun) + machineStart).Microseconds(),
		n.devices[f.Device].Hardware.PCI[:len("0000:00:00")], pageFault, p.spec.PID)
	return err
}

// announce makes the Pods API report the present state of a pod.
func (n *Node) announce(p *pod, phase corev1.PodPhase) {
	if n.api != nil {
		n.api.Set(p.object(phase, metav1.NewTime(n.now())))
	}
}

// retract makes the Pods API report that a pod is gone.
func (n *Node) retract(p *pod) {
	if n.api != nil {
		n.api.Remove(p.uid)
	}
}

// object returns the pod in the form of its kubelet.
func (p *pod) object(phase corev1.PodPhase, now metav1.Time) *corev1.Pod {
	out := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: p.Namespace, Name: p.Name, UID: types.UID(p.uid), Labels: p.spec.Labels, CreationTimestamp: now,
		},
		Status: corev1.PodStatus{Phase: phase},
	}
	if kind, name, ok := strings.Cut(p.spec.Owner, "/"); ok {
		out.OwnerReferences = []metav1.OwnerReference{{Kind: kind, Name: name, Controller: new(true)}}
	}
	for i, spec := range p.spec.Claims {
		out.Spec.ResourceClaims = append(out.Spec.ResourceClaims, corev1.PodResourceClaim{
			Name: spec.Name, ResourceClaimName: new(p.claims[i].Name),
		})
	}
	for _, name := range p.spec.Containers {
		c := corev1.Container{Name: name}
		for _, spec := range p.spec.Claims {
			if spec.usedBy(name) {
				c.Resources.Claims = append(c.Resources.Claims, corev1.ResourceClaim{Name: spec.Name})
			}
		}
		out.Spec.Containers = append(out.Spec.Containers, c)
		if phase == corev1.PodRunning {
			out.Status.ContainerStatuses = append(out.Status.ContainerStatuses, corev1.ContainerStatus{
				Name: name, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}},
			})
		}
	}
	return out
}
