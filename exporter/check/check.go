package check

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"net"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/node"
	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/podresources/kube"
)

// Config configures a [Checker].
type Config struct {
	Name    string // of the node
	Version string
	Node    *node.Node
	Inputs  *Inputs // the Metrics of Node
	Sources []driver.Source

	PodResourcesSocket, PodsSocket string
	HasInventoryFile               bool
	StateDir                       string        // "": none
	CheckState                     func() error  // reports whether it can be written
	ReadState                      func() error  // reports whether what is there can be used
	Deadline                       time.Duration // of each request, and of each source
	IdleThreshold                  float64       // the utilization up to which a device is idle
}

// Checker reads each input of a node once. Run may be called once.
type Checker struct {
	config Config
	report Report
	input  join.Input

	sameWarning map[warning]*group // of devices
}

// New returns a checker.
func New(c Config) *Checker { return &Checker{config: c} }

// Run reads the kubelet, the API server and each source, and joins the answers.
func (c *Checker) Run(ctx context.Context) *Report {
	c.report = Report{Time: time.Now().UTC(), Node: c.config.Name, Version: c.config.Version}
	c.kubelet(ctx)
	c.podsAPI(ctx)
	c.kube(ctx)
	view, inventory := c.config.Node.Describe() //nolint:contextcheck // it waits a bounded time for files
	c.pods(view.Allocations)
	c.works(view.Allocations)
	c.state()
	c.inventory(len(inventory))
	c.unresolved()
	c.rejected()
	c.input = join.Input{View: view, Inventory: inventory}
	for _, s := range c.config.Sources {
		c.input.Sources = append(c.input.Sources, join.SourceSamples{Name: s.Name(), Samples: c.source(ctx, s)})
	}
	c.devices(join.Join(c.input))
	return &c.report
}

// kubelet reads the kubelet's PodResources.
func (c *Checker) kubelet(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, c.config.Deadline)
	defer cancel()
	socket := c.config.PodResourcesSocket
	answer, err := c.config.Node.Observe(ctx)
	if err != nil {
		f := socketTrouble(ctx, socket, err)
		if f.Do == "" {
			f.Do = "set --kubelet.root or --kubelet.podresources-socket; in a pod, mount the socket's folder"
		}
		f.Status, f.What, f.Detail = Fail, "podresources", err.Error()
		c.report.add(f)
		return
	}
	claims := map[podresources.Claim]bool{}
	for i := range answer.Listed {
		if a := &answer.Listed[i]; !a.ByPlugin() {
			claims[a.Claim] = true
		}
	}
	c.report.say(OK, "podresources", "%s: %d allocations of %s, answered in %v",
		socket, len(answer.Listed), present.Count(len(claims), "claim"), answer.Took.Round(time.Microsecond))
	c.reject("podresources", answer.Rejected)
}

// reject reports what was rejected of an input.
func (c *Checker) reject(input string, rejections driver.Rejections) {
	for _, r := range rejections.Of(input) {
		c.report.say(Warn, r.Input, "%d rejected: %s", r.Count, r.Reason)
	}
}

// podsAPI lists the pods of the kubelet's Pods API. It is not a failure if the kubelet has no such
// API.
func (c *Checker) podsAPI(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, c.config.Deadline)
	defer cancel()
	socket := c.config.PodsSocket
	pods, err := c.config.Node.CheckPods(ctx)
	if err == nil {
		c.report.say(OK, "Pods API", "%s: %s", socket, present.Count(pods, "pod"))
		return
	}
	f := socketTrouble(ctx, socket, err)
	f.What, f.Detail, f.Status = "Pods API", err.Error(), Warn
	if strings.HasSuffix(f.Text, noSocket) || driver.ReasonOf(err) == driver.ReasonUnimplemented {
		f.Status = OK
		f.Text += "; that is normal before Kubernetes 1.37, and without its folder in the pod"
	}
	c.report.add(f)
}

// state checks whether the state folder can be written.
func (c *Checker) state() {
	if c.config.StateDir == "" {
		c.report.say(OK, "state.dir", "not set: counters, incidents and receipts are lost when the process ends")
		return
	}
	f := Finding{What: "state.dir", Text: c.config.StateDir + ": counters, incidents and receipts outlive a restart"}
	if err := c.config.ReadState(); err != nil {
		f.Status, f.Detail = Warn, err.Error()
		f.Text = fmt.Sprintf("%s: what is there can't be used (%s): the next start sets it aside, and counters begin again",
			c.config.StateDir, driver.ReasonOf(err))
	}
	if err := c.config.CheckState(); err != nil {
		reason := driver.ReasonOf(err)
		f = Finding{
			Status: Warn, What: "state.dir", Text: c.config.StateDir + " can't be written: " + string(reason),
			Do: present.Remedy(reason), Detail: err.Error(),
		}
	}
	c.report.add(f)
}

// kube makes each kind of request that the exporter sends to the API server.
func (c *Checker) kube(ctx context.Context) {
	if !c.config.Node.UsesAPI() {
		c.report.say(OK, "API server", "not used: --kube=off, or neither in a cluster nor given a --kubeconfig")
		return
	}
	ctx, cancel := context.WithTimeout(ctx, c.config.Deadline)
	defer cancel()
	for _, finding := range c.config.Node.CheckAPI(ctx) {
		f := Finding{Text: finding.Text}
		if finding.Err != nil {
			f = apiTrouble(finding.Source, finding.Err)
			f.Status, f.Detail = Fail, finding.Err.Error()
		}
		f.What = "API: " + finding.Source
		c.report.add(f)
	}
}

// works reports whether the cgroups of the pods that hold devices can be read. Without them, it is
// unknown whether a claim is stalled.
func (c *Checker) works(allocations []podresources.Allocation) {
	uids := map[string]bool{}
	for i := range allocations {
		for _, h := range allocations[i].Holders {
			uid := cmp.Or(h.UID, c.config.Node.PodUID(h.Pod))
			if uid != "" && !allocations[i].Admin {
				uids[uid] = true
			}
		}
	}
	if len(uids) == 0 {
		return
	}
	read, err := c.config.Node.CheckWorks(slices.Sorted(maps.Keys(uids)))
	storage, network := 0, 0
	for _, w := range read {
		if !math.IsNaN(w.Storage) {
			storage++
		}
		if !math.IsNaN(w.Network) {
			network++
		}
	}
	f := Finding{What: "pods' cgroups", Text: fmt.Sprintf("CPU and memory of %d of %s that hold devices are readable, "+
		"storage of %d, network of %d", len(read), present.Count(len(uids), "pod"), storage, network)}
	if len(read) < len(uids) || err != nil {
		f.Status = Warn
		f.Text += "; for the others it is unknown whether a claim is stalled (no_host)"
		f.Do = "mount the host's /sys read-only, and set --path.sysfs"
	}
	if err != nil {
		f.Detail = err.Error()
	}
	c.report.add(f)
}

// pods reports how many pods hold devices, and how many of them have no known UID.
func (c *Checker) pods(allocations []podresources.Allocation) {
	known := map[podresources.Pod]bool{}
	for i := range allocations {
		for _, h := range allocations[i].Holders {
			known[h.Pod] = known[h.Pod] || h.UID != "" || c.config.Node.PodUID(h.Pod) != ""
		}
	}
	unknown := 0
	for _, k := range known {
		if !k {
			unknown++
		}
	}
	f := Finding{What: "pods", Text: fmt.Sprintf("%d hold devices", len(known))}
	if unknown > 0 {
		f.Status = Warn
		f.Text += fmt.Sprintf("; the UIDs of %d are not in the Pods API, the API server or the log folders", unknown)
		f.Do = "mount /var/log/pods or the Pods API's folder: without UIDs, processes and interfaces of pods are unknown"
	}
	c.report.add(f)
}

func (c *Checker) inventory(devices int) {
	f := Finding{What: "inventory", Text: present.Count(devices, "device")}
	if err := c.config.Inputs.copy().errs[kube.SourceSlices]; err != nil && c.config.HasInventoryFile {
		f = Finding{Status: Fail, What: "inventory", Text: err.Error(), Do: "correct --inventory.file", Detail: err.Error()}
	} else if !c.config.HasInventoryFile && !c.config.Node.UsesAPI() {
		f.Status = Warn
		f.Text += "; neither API server nor --inventory.file: devices that are not held are unknown"
		f.Do = "allow access to the API server, or set --inventory.file"
	}
	c.report.add(f)
}

// unresolved reports the number of pods whose devices are unknown, and the conflicts.
func (c *Checker) unresolved() {
	held := c.config.Inputs.copy().held
	for _, reason := range slices.Sorted(maps.Keys(held.Unresolved)) {
		if n := held.Unresolved[reason]; n > 0 {
			c.report.say(Warn, "pods", "%s with unknown devices: %s", present.Count(n, "pod"), reason)
		}
	}
	kinds := map[string]int{}
	for _, conflict := range held.Conflicts {
		kinds[conflict.Kind]++
	}
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		devices := present.Count(kinds[kind], "device")
		c.report.say(Warn, "conflicts", "kubelet and API server disagree on %s: %s", devices, kind)
	}
	for _, conflict := range held.Conflicts {
		text := fmt.Sprintf("pod %s/%s has %v", conflict.Pod.Namespace, conflict.Pod.Name, conflict.Device)
		if conflict.Allocated != (driver.ID{}) {
			text += fmt.Sprintf(", and its claim %s is allocated %v", conflict.Claim.Name, conflict.Allocated)
		}
		c.report.say(Warn, "conflicts", "%s", text)
	}
}

func (c *Checker) rejected() {
	inputs := c.config.Inputs.copy()
	for _, reader := range slices.Sorted(maps.Keys(inputs.failed)) {
		err := inputs.failed[reader].Error()
		c.report.add(Finding{Status: Fail, What: reader, Text: err, Detail: err})
	}
	for _, input := range slices.Sorted(maps.Keys(inputs.rejections)) {
		c.reject(input, inputs.rejections[input])
	}
}

// betweenReadings is the time between two readings of a source. It is longer than the time that any
// source needs for a rate (200 ms for NVIDIA's GPM).
const betweenReadings = 300 * time.Millisecond

// sampleTwice samples twice, because rates need two readings. It does not wait for a source that
// hangs.
func (c *Checker) sampleTwice(ctx context.Context, s driver.Source) ([]driver.Sample, error) {
	call := driver.Worker[[]driver.Sample]{Operation: "sample", Deadline: c.config.Deadline}
	most := c.config.Deadline + driver.HangAfter
	return call.Do(ctx, most, func(ctx context.Context) ([]driver.Sample, error) {
		_, _ = s.Sample(ctx) // an error would occur again
		pause := time.NewTimer(betweenReadings)
		defer pause.Stop()
		select {
		case <-pause.C:
		case <-ctx.Done():
		}
		return s.Sample(ctx)
	})
}

// source reports what a source reads. If a source has no samples and describes its inputs, the
// findings are the lines of its description, in place of "no hardware here".
func (c *Checker) source(ctx context.Context, s driver.Source) []driver.Sample {
	watching, cancel := context.WithCancel(ctx)
	defer cancel()
	if w, ok := s.(driver.Watcher); ok {
		go w.Watch(watching)
	}
	samples, err := c.sampleTwice(ctx, s)
	var lines []string
	if d, ok := s.(driver.Describer); ok {
		lines = d.Describe()
	}
	if len(samples) > 0 || err != nil || len(lines) == 0 {
		c.report.add(sampled(s.Name(), samples, err))
	}
	for _, line := range lines {
		c.report.say(OK, s.Name(), "%s", line)
	}
	c.leftOut(s, samples)
	if scraped, ok := s.(unmatcher); ok && err == nil { // it is not still sampling
		if names := scraped.Unmatched(); len(names) > 0 {
			c.report.say(OK, s.Name(), "metrics without a usable series: %s", strings.Join(names, ", "))
		}
	}
	return samples
}

// sampled returns a finding with the hardware and the quantities that a source has read, or its
// error.
func sampled(source string, samples []driver.Sample, err error) Finding {
	f := Finding{What: source, Text: "no hardware here"}
	pieces := present.Count(len(samples), "piece")
	switch {
	case err != nil:
		f.Status, f.Detail, f.Do = Fail, err.Error(), present.Remedy(driver.ReasonOf(err))
		f.Text = oneLine(err)
		if len(samples) > 0 {
			f.Text = fmt.Sprintf("%s of hardware, but: %s", pieces, f.Text)
		}
	case len(samples) > 0:
		quantities := map[string]bool{}
		for i := range samples {
			for _, r := range samples[i].Readings {
				quantities[r.Quantity.String()] = true
			}
		}
		f.Text = fmt.Sprintf("%s of hardware: %s", pieces, strings.Join(slices.Sorted(maps.Keys(quantities)), ", "))
	}
	return f
}

// leftOut reports the readings of a source that were rejected, and what of its input the source
// itself rejected.
func (c *Checker) leftOut(s driver.Source, samples []driver.Sample) {
	catalogue := driver.Standard()
	examples := map[string]string{} // by quantity and reason
	for i := range samples {
		for _, r := range samples[i].Readings {
			value := r
			reason := join.RejectReading(catalogue, &r, samples[i].Hardware.Kind)
			if reason != "" && reason != driver.ReasonZero && catalogue.Has(r.Quantity) {
				examples[catalogue.Spec(r.Quantity).Name+" "+string(reason)] = string(reason) + ": " + value.Example(catalogue)
			}
		}
	}
	for _, of := range slices.Sorted(maps.Keys(examples)) {
		c.report.say(Warn, s.Name(), "rejected as %s", examples[of])
	}
	if counter, ok := s.(driver.RejectionCounter); ok {
		c.reject(s.Name(), counter.Rejected())
	}
}

// unmatcher is a source with a configured list of metrics. Unmatched returns those that it has not
// found.
type unmatcher interface{ Unmatched() []string }

// scraped returns the name of the source that is configured for the devices of a driver, or "".
func (c *Checker) scraped(driverName string) string {
	for _, s := range c.config.Sources {
		if of, ok := s.(interface{ Driver() string }); ok && of.Driver() == driverName {
			return s.Name()
		}
	}
	return ""
}

// devices reports for each device whether it has telemetry. Equal warnings for devices of a pool
// are one finding. It is a failure if no device has telemetry.
func (c *Checker) devices(r join.Result) {
	telemetry := 0
	for i := range r.Devices {
		d := &r.Devices[i]
		if d.Missing == join.MissingNone {
			telemetry++
		}
		c.addDevice(c.device(d), d.ID)
	}
	if len(r.Devices) > 0 && telemetry == 0 {
		c.report.add(Finding{
			Status: Fail, What: "telemetry", Text: "none of " + present.Count(len(r.Devices), "device") + " has telemetry",
			Do: "see the reasons above; only the holders of the devices can be exported",
		})
	}
}

// addDevice adds the finding for a device. Equal warnings for several devices of a pool become one
// finding, which lists the devices.
func (c *Checker) addDevice(f Finding, id driver.ID) {
	text := f.Text
	f.What, f.Text = "device", id.String()+": "+text
	if f.Status != Warn {
		c.report.add(f)
		return
	}
	if c.sameWarning == nil {
		c.sameWarning = map[warning]*group{}
	}
	key := warning{id.Driver, id.Pool, text, f.Do}
	same := c.sameWarning[key]
	if same == nil {
		c.report.add(f)
		c.sameWarning[key] = &group{at: len(c.report.Findings) - 1, devices: []string{id.Device}}
		return
	}
	same.devices = append(same.devices, id.Device)
	c.report.Findings[same.at].Text = fmt.Sprintf("%s/%s: %s (%s): %s", id.Driver, id.Pool,
		strings.Join(same.devices, ", "), present.Count(len(same.devices), "device"), text)
}

// warning identifies equal warnings for devices of a pool.
type warning struct{ driver, pool, text, do string }

// group is the finding that combines equal warnings, and their devices.
type group struct {
	at      int // index into the report's findings
	devices []string
}

// device returns a finding that reports whether a device has telemetry and is held. Its text does
// not name the device.
func (c *Checker) device(d *join.Device) Finding {
	var f Finding
	if d.Missing == join.MissingNone {
		f.Text += fmt.Sprintf("%d readings", len(d.Readings))
		if found := d.Contradiction(c.config.IdleThreshold); found != join.NoContradiction {
			f.Status = Warn
			f.Text += "; contradictory: " + present.Contradiction(found)
			f.Do = "the device does not count as idle; restart the source of the utilization (DCGM's profiling reads 0 " +
				"after some errors)"
		}
	} else {
		var why string
		why, f.Do = present.Missing(d.ID.Driver, d.Missing)
		if name := c.scraped(d.ID.Driver); d.Missing == join.MissingNoSource && name != "" {
			f.Do = "see what " + name + " reports about series that match no hardware"
		}
		f.Text += "no telemetry (" + string(d.Missing) + "): " + why
		if d.Missing != join.MissingNotInstantiated {
			f.Status = Warn
		}
	}
	if d.Attribution != join.AttributionNone {
		f.Text += ", held (" + string(d.Attribution) + ")"
	}
	return f
}

// oneLine returns an error's text, with joined errors on one line.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// noSocket is the trouble of a socket that does not exist.
const noSocket = "there is no such socket"

// socketTrouble returns the reason why a call on a unix socket failed: that no connection can be
// opened, which gRPC's own error has only as a text, or what the error says.
func socketTrouble(ctx context.Context, socket string, failed error) Finding {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", socket)
	var text, do string
	switch {
	case err == nil:
		_ = conn.Close()
		text, do = callTrouble(failed)
	case errors.Is(err, fs.ErrNotExist):
		text = noSocket
	case errors.Is(err, fs.ErrPermission):
		text, do = "permission denied on the socket", "run as root, which owns the socket"
	case errors.Is(err, syscall.ECONNREFUSED):
		text, do = "nothing listens on the socket", "check whether the kubelet runs"
	default:
		text = err.Error()
	}
	return Finding{Text: socket + ": " + text, Do: do}
}

// callTrouble returns the reason why a call failed on a socket that accepts connections.
func callTrouble(err error) (text, do string) {
	switch driver.ReasonOf(err) {
	case driver.ReasonTimeout:
		return "no answer in time", "see the kubelet's log: it accepts connections only"
	case driver.ReasonUnimplemented:
		return "this kubelet does not serve it", ""
	case driver.ReasonRateLimited:
		return "the kubelet's rate limit", "try again later: another client on the node sends too many requests"
	case driver.ReasonTooLarge:
		return "the answer has more than " + present.Bytes(podresources.MaxAnswer), ""
	case driver.ReasonMalformed:
		return "the answer can't be decoded", "check whether this is the kubelet's socket"
	default:
		return err.Error(), ""
	}
}

// apiTrouble returns the reason why a request to the API server failed.
func apiTrouble(source string, err error) Finding {
	switch driver.ReasonOf(err) {
	case driver.ReasonForbidden:
		return Finding{
			Text: "forbidden by the API server",
			Do:   fmt.Sprintf("give the service account the right for %s: see the ClusterRole of the chart", source),
		}
	case driver.ReasonUnauthorized:
		return Finding{Text: "the API server does not know the token", Do: "check the service account, or --kubeconfig"}
	case driver.ReasonUnavailable:
		return Finding{
			Text: "the API server can't be reached",
			Do:   "check network policies and --kubeconfig; with --kube=off the API server is not needed",
		}
	case driver.ReasonTimeout:
		return Finding{Text: "no answer from the API server in time"}
	default:
		return Finding{Text: err.Error()}
	}
}
