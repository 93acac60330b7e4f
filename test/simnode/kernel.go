package simnode

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/test/node"
)

// makeBus writes the sysfs of devices with a PCI address.
func (n *Node) makeBus() error {
	for _, d := range n.devices {
		if _, logged := d.Attributes["resource.kubernetes.io/pciBusID"]; !logged {
			continue
		}
		bus := n.Path(node.Sysfs, "bus", "pci", "devices")
		root := d.Attributes["resource.kubernetes.io/pcieRoot"].StringValue
		folder := n.Path(node.Sysfs, "devices", *root, d.Hardware.PCI)
		err := errors.Join(os.MkdirAll(folder, 0o755), os.MkdirAll(bus, 0o755),
			os.Symlink(filepath.Join("..", "..", "..", "devices", *root, d.Hardware.PCI), filepath.Join(bus, d.Hardware.PCI)))
		if err != nil {
			return fmt.Errorf("make PCI device: %w", err)
		}
		for name, value := range map[string]string{"vendor": "0x10de\n", "class": "0x030200\n"} {
			if err := os.WriteFile(filepath.Join(folder, name), []byte(value), 0o644); err != nil {
				return fmt.Errorf("make PCI device: %w", err)
			}
		}
	}
	return nil
}

// makeProcess writes the cgroup of the pod's process.
func (n *Node) makeProcess(p *pod) error {
	if p.spec.PID == 0 {
		return nil
	}
	cgroup, err := filepath.Rel(node.Cgroups, node.Cgroup(p.uid))
	if err != nil {
		return fmt.Errorf("make process: %w", err)
	}
	folder := n.Path(node.Procfs, strconv.Itoa(p.spec.PID))
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return fmt.Errorf("make process: %w", err)
	}
	content := []byte("0::/" + cgroup + "/cri-containerd-0.scope\n")
	if err := os.WriteFile(filepath.Join(folder, "cgroup"), content, 0o644); err != nil {
		return fmt.Errorf("make process: %w", err)
	}
	return nil
}

func (n *Node) removeProcess(p *pod) error {
	if p.spec.PID == 0 {
		return nil
	}
	return os.RemoveAll(n.Path(node.Procfs, strconv.Itoa(p.spec.PID)))
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
