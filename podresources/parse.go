package podresources

import (
	"cmp"
	"slices"
	"strings"
	"unicode/utf8"

	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/dra-exporter/dra-exporter/driver"
)

// Bounds of one answer. A claim has at most 32 devices and 256 pods (k8s.io/api resource/v1), a
// node some hundred pods.
const (
	// maxRows is the field Rows of [FullBounds]: each allocation takes some 10 kB of memory in all.
	// Devices of claims have priority over those of device plugins.
	maxRows = 4 << 10

	maxName       = 253  // pod, claim, pool, device and share: the length of a DNS subdomain
	maxDriverName = 63   // resource/v1 DriverNameMaxLength
	maxResource   = 317  // DOMAIN/NAME: a DNS subdomain, a slash, and a qualified name's part of 63
	maxCDIName    = 1024 // vendor/class=name
)

// Parse returns the allocations of a response of PodResources List: one for each claim, device and
// share, with all containers that hold it. They are sorted, and the order of pods, containers and
// claims in the answer does not matter.
//
// A device that a device plugin gave (ContainerResources.devices) is an allocation of its pod: its
// driver is the name of the resource, its pool is empty, its name is the plugin's ID. The pool
// of a claim's device that a kubelet before 1.31 lists is empty, too.
//
// A pod, container, claim, device or CDI name that is not usable is left out, and is counted once
// by reason. Names are only checked for length and UTF-8; the API server checks the rest.
//
// The kubelet lists a device with the CDI names of all devices before it, of the same driver and
// claim (k8s.io/kubernetes pkg/kubelet/cm/container_manager_linux.go, GetDynamicResources):
// Allocation.CDI has only the device's own names.
func (b Bounds) Parse(answer *v1.ListPodResourcesResponse) ([]Allocation, driver.Rejections) {
	p := parser{most: b.orFull().Rows, rows: map[rowKey]*row{}, rejected: driver.Rejections{}}
	// In order, so that holders are sorted, and the bounds always cut off the same ones.
	var containers []holding
	for _, pod := range sorted(answer.GetPodResources(), comparePods) {
		containers = p.containers(containers, pod)
	}
	for _, c := range containers {
		for _, claim := range c.DynamicResources {
			p.claim(c.Holder, claim)
		}
	}
	for _, c := range containers {
		for _, devices := range c.Devices {
			p.plugins(c.Holder, devices)
		}
	}
	p.rejected.Add(driver.ReasonTooMany, leftOut(answer))
	allocations := make([]Allocation, 0, len(p.rows))
	for _, r := range p.rows {
		SortHolders(&r.Allocation)
		allocations = append(allocations, r.Allocation)
	}
	slices.SortFunc(allocations, Allocation.Compare)
	return allocations, p.rejected
}

// ListedPods returns the pods of an answer, including those without devices.
func ListedPods(answer *v1.ListPodResourcesResponse) map[Pod]struct{} {
	pods := make(map[Pod]struct{}, len(answer.GetPodResources()))
	for _, pod := range answer.GetPodResources() {
		if pod != nil {
			pods[Pod{Namespace: pod.Namespace, Name: pod.Name}] = struct{}{}
		}
	}
	return pods
}

// rowKey identifies an allocation.
type rowKey struct {
	claim   Claim
	device  driver.ID
	shareID string
	pod     Pod // only for a device plugin's device
}

// holding is a container with devices.
type holding struct {
	Holder
	*v1.ContainerResources
}

// row is an allocation, and the number of the last entry with it.
type row struct {
	Allocation
	last int
}

// parser gathers the allocations of one answer.
type parser struct {
	most     int // allocations and pods of each, together
	count    int // of these
	rows     map[rowKey]*row
	rejected driver.Rejections
	entries  int // of claims, and of resources of device plugins, in containers
}

func (p *parser) reject(reason driver.Reason) { p.rejected[reason]++ }

// containers appends the containers of a pod that have devices.
func (p *parser) containers(to []holding, pod *v1.PodResources) []holding {
	if pod == nil {
		p.reject(driver.ReasonMalformed)
		return to
	}
	if reason := cmp.Or(checkName(pod.Namespace, maxName, driver.ReasonMissingPod),
		checkName(pod.Name, maxName, driver.ReasonMissingPod)); reason != "" {
		p.reject(reason)
		return to
	}
	for _, c := range sorted(pod.Containers, compareContainers) {
		if len(c.GetDynamicResources()) == 0 && len(c.GetDevices()) == 0 {
			continue
		}
		if reason := checkName(c.Name, maxName, driver.ReasonMissingContainer); reason != "" {
			p.reject(reason)
			continue
		}
		to = append(to, holding{Holder{Pod: Pod{Namespace: pod.Namespace, Name: pod.Name}, Container: c.Name}, c})
	}
	return to
}

// plugins adds the devices that a device plugin gave to a container. The kubelet lists a device
// once for each part of its topology.
func (p *parser) plugins(holder Holder, d *v1.ContainerDevices) {
	p.entries++
	p.rejected.Add(driver.ReasonTooManyIDs, leftOut(d))
	for _, id := range sorted(d.GetDeviceIds(), strings.Compare) {
		if reason := cmp.Or(checkName(d.ResourceName, maxResource, driver.ReasonMissingResource),
			checkName(id, maxName, driver.ReasonMissingDevice)); reason != "" {
			p.reject(reason)
			continue
		}
		p.row(holder, rowKey{
			claim: Claim{Namespace: holder.Namespace}, device: driver.ID{Driver: d.ResourceName, Device: id}, pod: holder.Pod,
		}, nil)
	}
}

// claim adds the devices of one claim of one container.
func (p *parser) claim(holder Holder, entry *v1.DynamicResource) {
	claim := Claim{Namespace: entry.GetClaimNamespace(), Name: entry.GetClaimName()}
	if reason := cmp.Or(checkName(claim.Namespace, maxName, driver.ReasonMissingClaim),
		checkName(claim.Name, maxName, driver.ReasonMissingClaim)); reason != "" {
		p.reject(reason)
		return
	}
	p.entries++
	rows := sorted(entry.ClaimResources, compareRows)
	for i, row := range rows {
		if row.GetDriverName()+row.GetPoolName()+row.GetDeviceName() == "" && len(row.GetCdiDevices()) > 0 {
			p.classic(holder, claim, row)
			continue
		}
		if reason := cmp.Or(
			checkName(row.GetDriverName(), maxDriverName, driver.ReasonMissingDriver),
			checkName(row.GetPoolName(), maxName, driver.ReasonMissingPool),
			checkName(row.GetDeviceName(), maxName, driver.ReasonMissingDevice),
			checkName(row.GetShareId(), maxName, ""),
		); reason != "" {
			p.reject(reason)
			continue
		}
		cdi := row.CdiDevices
		if i > 0 && rows[i-1].GetDriverName() == row.DriverName {
			cdi = ownCDI(rows[i-1].GetCdiDevices(), cdi)
		}
		p.row(holder, rowKey{
			claim: claim, device: driver.ID{Driver: row.DriverName, Pool: row.PoolName, Device: row.DeviceName},
			shareID: row.GetShareId(),
		}, cdi)
	}
}

// row adds one device of one claim of one container. Pods and containers come in order.
func (p *parser) row(holder Holder, key rowKey, cdi []*v1.CDIDevice) {
	r := p.rows[key]
	if r == nil {
		r = &row{Allocation: Allocation{Claim: key.claim, Device: key.device, ShareID: key.shareID}}
	}
	var before Holder
	if n := len(r.Holders); n > 0 {
		before = r.Holders[n-1]
	}
	switch {
	case r.last == p.entries:
		p.reject(driver.ReasonDuplicate)
		return
	case before.Pod == holder.Pod:
	case p.count >= p.most:
		p.reject(driver.ReasonTooMany)
		return
	default:
		p.count++
	}
	if r.last == 0 {
		p.rows[key] = r
		p.count++
	}
	r.last = p.entries
	if before != holder {
		r.Holders = append(r.Holders, holder)
	}
	p.setCDI(&r.Allocation, cdi)
}

// setCDI sets the CDI names of an allocation. All containers that hold it should list the same; if
// they do not, the choice does not depend on their order.
func (p *parser) setCDI(a *Allocation, cdi []*v1.CDIDevice) {
	if slices.EqualFunc(a.CDI, cdi, func(name string, d *v1.CDIDevice) bool { return name == d.GetName() }) {
		return
	}
	var names []string
	for _, d := range cdi {
		if reason := checkName(d.GetName(), maxCDIName, driver.ReasonMissingCDI); reason != "" {
			p.reject(reason)
			continue
		}
		names = append(names, d.Name)
	}
	if a.CDI == nil || len(names) > 0 && slices.Compare(names, a.CDI) < 0 {
		a.CDI = names
	}
}

// ownCDI returns the CDI names of a device, given the list of the device before it: the names that
// follow that list. If the list does not begin with the earlier one, all of its names are the
// device's.
func ownCDI(before, shown []*v1.CDIDevice) []*v1.CDIDevice {
	if len(shown) < len(before) {
		return shown
	}
	for i, d := range before {
		if shown[i].GetName() != d.GetName() {
			return shown
		}
	}
	return shown[len(before):]
}

// classic adds the devices of a claim of classic DRA, of which kubelets 1.27 to 1.30 list CDI names
// alone: the driver is the vendor of the name, and the pool is empty.
func (p *parser) classic(holder Holder, claim Claim, row *v1.ClaimResource) {
	for _, cdi := range row.GetCdiDevices() {
		kind, name, _ := strings.Cut(cdi.GetName(), "=")
		vendor, _, _ := strings.Cut(strings.TrimPrefix(kind, "k8s."), "/")
		if reason := cmp.Or(
			checkName(cdi.GetName(), maxCDIName, driver.ReasonMissingCDI),
			checkName(vendor, maxDriverName, driver.ReasonMissingDriver),
			checkName(name, maxName, driver.ReasonMissingDevice),
		); reason != "" {
			p.reject(reason)
			continue
		}
		p.row(holder, rowKey{claim: claim, device: driver.ID{Driver: vendor, Device: name}}, []*v1.CDIDevice{cdi})
	}
}

// checkName returns the reason why a name is rejected, or "".
func checkName(name string, maxLen int, missing driver.Reason) driver.Reason {
	switch {
	case name == "":
		return missing
	case len(name) > maxLen:
		return driver.ReasonTooLong
	case !utf8.ValidString(name):
		return driver.ReasonInvalidUTF8
	}
	return ""
}

// SortHolders sorts the holders and removes duplicates. They are sorted already unless an answer
// names a pod or container twice.
func SortHolders(a *Allocation) {
	if !slices.IsSortedFunc(a.Holders, Holder.Compare) {
		slices.SortFunc(a.Holders, Holder.Compare)
	}
	a.Holders = slices.Compact(a.Holders)
}

// sorted returns the items in order, and does not change the input. The order of equal ones stays.
func sorted[T any](items []T, compare func(a, b T) int) []T {
	return slices.SortedStableFunc(slices.Values(items), compare)
}

func comparePods(a, b *v1.PodResources) int {
	return cmp.Or(strings.Compare(a.GetNamespace(), b.GetNamespace()), strings.Compare(a.GetName(), b.GetName()))
}

func compareContainers(a, b *v1.ContainerResources) int {
	return strings.Compare(a.GetName(), b.GetName())
}

// compareRows orders rows by driver and, within a driver, by the order in which their CDI names
// accumulate.
func compareRows(a, b *v1.ClaimResource) int {
	return cmp.Or(strings.Compare(a.GetDriverName(), b.GetDriverName()),
		cmp.Compare(len(a.GetCdiDevices()), len(b.GetCdiDevices())))
}
