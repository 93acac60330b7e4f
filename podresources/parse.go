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
	maxRows   = 4 << 10
	maxOwnCDI = 64 // CDI names of one device

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
func Parse(answer *v1.ListPodResourcesResponse) ([]Allocation, driver.Rejections) {
	return Bounds{}.Parse(answer)
}

// Parse is [Parse] with these bounds instead of [FullBounds].
func (b Bounds) Parse(answer *v1.ListPodResourcesResponse) ([]Allocation, driver.Rejections) {
	p := parser{most: b.orFull().Rows, rejected: driver.Rejections{}}
	n := min(dynamicDevices(answer), p.most)
	p.rows = make(map[rowKey]int, n)
	p.allocations = slices.Grow(p.allocations, n)
	// In order, so that holders are sorted, and the bounds always cut off the same ones.
	pods := sorted(answer.GetPodResources(), comparePods)
	for _, pod := range pods {
		p.pod(pod)
	}
	for _, pod := range pods {
		p.plugins(pod)
	}
	p.rejected.Add(driver.ReasonTooMany, leftOut(answer))
	for i := range p.allocations {
		SortHolders(&p.allocations[i])
	}
	slices.SortFunc(p.allocations, Allocation.Compare)
	if len(p.allocations) < n { // containers share claims: frees the unused capacity, since the result is kept for long
		p.allocations = slices.Clone(p.allocations)
	}
	return p.allocations, p.rejected
}

// ListedPods returns the pods of an answer, including those without devices.
func ListedPods(answer *v1.ListPodResourcesResponse) map[Pod]struct{} {
	pods := make(map[Pod]struct{}, min(len(answer.GetPodResources()), MaxPods))
	for _, pod := range answer.GetPodResources() {
		if pod != nil && len(pods) < MaxPods {
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

// parser gathers the allocations of one answer.
type parser struct {
	most        int // allocations and pods of each, together
	allocations []Allocation
	lastEntry   []int // for each allocation, the number of the last claim entry with it
	rows        map[rowKey]int
	rejected    driver.Rejections
	holders     int // pods of allocations
	entries     int
	scratch     []*v1.ClaimResource
}

func (p *parser) reject(reason driver.Reason) { p.rejected[reason]++ }

func (p *parser) pod(pod *v1.PodResources) {
	if pod == nil {
		p.reject(driver.ReasonMalformed)
		return
	}
	if reason := cmp.Or(checkName(pod.Namespace, maxName, driver.ReasonMissingPod),
		checkName(pod.Name, maxName, driver.ReasonMissingPod)); reason != "" {
		p.reject(reason)
		return
	}
	holder := Holder{Pod: Pod{Namespace: pod.Namespace, Name: pod.Name}}
	for _, container := range sorted(pod.Containers, compareContainers) {
		if len(container.GetDynamicResources()) == 0 && len(container.GetDevices()) == 0 {
			continue
		}
		if reason := checkName(container.Name, maxName, driver.ReasonMissingContainer); reason != "" {
			p.reject(reason)
			continue
		}
		holder.Container = container.Name
		for _, claim := range container.DynamicResources {
			p.claim(holder, claim)
		}
	}
}

// plugins adds the devices that device plugins gave to a pod. The kubelet lists a device once for
// each part of its topology.
func (p *parser) plugins(pod *v1.PodResources) {
	if checkName(pod.GetNamespace(), maxName, "missing") != "" || checkName(pod.GetName(), maxName, "missing") != "" {
		return
	}
	holder := Holder{Pod: Pod{Namespace: pod.Namespace, Name: pod.Name}}
	of := map[string]int{} // devices by resource
	for _, container := range sorted(pod.Containers, compareContainers) {
		if checkName(container.GetName(), maxName, "missing") != "" {
			continue
		}
		holder.Container = container.Name
		for _, d := range container.Devices {
			p.entries++
			p.rejected.Add(driver.ReasonTooManyIDs, leftOut(d))
			for _, id := range sorted(d.GetDeviceIds(), strings.Compare) {
				p.plugin(holder, d.GetResourceName(), id, of)
			}
		}
	}
}

// plugin adds a device of a device plugin; of are those of the pod so far, by resource.
func (p *parser) plugin(holder Holder, resource, id string, of map[string]int) {
	if reason := cmp.Or(checkName(resource, maxResource, driver.ReasonMissingResource),
		checkName(id, maxName, driver.ReasonMissingDevice)); reason != "" {
		p.reject(reason)
		return
	}
	key := rowKey{
		claim: Claim{Namespace: holder.Namespace}, device: driver.ID{Driver: resource, Device: id}, pod: holder.Pod,
	}
	if _, known := p.rows[key]; !known {
		if of[resource] == maxPluginIDs {
			p.reject(driver.ReasonTooManyIDs)
			return
		}
		of[resource]++
	}
	p.row(holder, key, nil)
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
	p.scratch = append(p.scratch[:0], entry.ClaimResources...)
	rows := sortInPlace(p.scratch, compareRows)
	for i, row := range rows {
		if row.GetDriverName()+row.GetPoolName()+row.GetDeviceName() == "" && len(row.GetCdiDevices()) > 0 {
			p.classic(holder, claim, row)
			continue
		}
		if reason := checkRow(row); reason != "" {
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

// dynamicDevices returns the number of devices of claims in an answer; a device counts once for
// each container that uses it.
func dynamicDevices(answer *v1.ListPodResourcesResponse) int {
	n := 0
	for _, pod := range answer.GetPodResources() {
		for _, container := range pod.GetContainers() {
			for _, claim := range container.GetDynamicResources() {
				n += len(claim.GetClaimResources())
			}
		}
	}
	return n
}

// row adds one device of one claim of one container.
func (p *parser) row(holder Holder, key rowKey, cdi []*v1.CDIDevice) {
	i, known := p.rows[key]
	switch {
	case known && p.lastEntry[i] == p.entries:
		p.reject(driver.ReasonDuplicate)
		return
	case len(p.allocations)+p.holders >= p.most && (!known || p.isNewPod(i, holder)):
		p.reject(driver.ReasonTooMany)
		return
	case !known:
		i = len(p.allocations)
		p.rows[key] = i
		p.allocations = append(p.allocations, Allocation{Claim: key.claim, Device: key.device, ShareID: key.shareID})
		p.lastEntry = append(p.lastEntry, 0)
	}
	p.lastEntry[i] = p.entries
	if p.isNewPod(i, holder) {
		p.holders++
	}
	a := &p.allocations[i]
	if n := len(a.Holders); n == 0 || a.Holders[n-1] != holder {
		a.Holders = append(a.Holders, holder)
	}
	p.setCDI(a, cdi)
}

// isNewPod reports whether an allocation does not have the holder's pod yet. Pods come in order.
func (p *parser) isNewPod(i int, holder Holder) bool {
	all := p.allocations[i].Holders
	return len(all) == 0 || all[len(all)-1].Pod != holder.Pod
}

// setCDI sets the CDI names of an allocation. All containers that hold it should list the same; if
// they do not, the choice does not depend on their order.
func (p *parser) setCDI(a *Allocation, cdi []*v1.CDIDevice) {
	if slices.EqualFunc(a.CDI, cdi, func(name string, d *v1.CDIDevice) bool { return name == d.GetName() }) {
		return
	}
	var names []string
	for _, d := range cdi {
		reason := checkName(d.GetName(), maxCDIName, driver.ReasonMissingCDI)
		if reason == "" && len(names) == maxOwnCDI {
			reason = driver.ReasonTooMany
		}
		if reason != "" {
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

// checkRow returns the reason why a device is rejected, or "".
func checkRow(row *v1.ClaimResource) driver.Reason {
	if reason := cmp.Or(
		checkName(row.GetDriverName(), maxDriverName, driver.ReasonMissingDriver),
		checkName(row.GetPoolName(), maxName, driver.ReasonMissingPool),
		checkName(row.GetDeviceName(), maxName, driver.ReasonMissingDevice),
	); reason != "" {
		return reason
	}
	if row.GetShareId() == "" {
		return ""
	}
	return checkName(row.GetShareId(), maxName, "")
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

// sorted returns the items in order, and does not change the input.
func sorted[T any](items []T, compare func(a, b T) int) []T {
	return sortInPlace(slices.Clone(items), compare)
}

// sortInPlace sorts stably, with little cost if the order is right already.
func sortInPlace[T any](items []T, compare func(a, b T) int) []T {
	if !slices.IsSortedFunc(items, compare) {
		slices.SortStableFunc(items, compare)
	}
	return items
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
