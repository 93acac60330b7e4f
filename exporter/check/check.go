package check

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/explain"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/node"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/podresources/kube"
)

// Config is what a [Checker] looks at.
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
	Deadline                       time.Duration // of each request, and of each source
	IdleThreshold                  float64       // the utilization up to which a device is idle

	// Device is the one that is looked at, with who holds it and why, as DEVICE or
	// DRIVER/POOL/DEVICE; empty: all.
	Device string
}

// Checker asks each input of a node once. It is used once.
type Checker struct {
	config Config
	report Report
	input  join.Input

	sameWarning map[warning]*group // of devices
}

// New returns a checker.
func New(c Config) *Checker { return &Checker{config: c} }

// Run asks the kubelet, the API server and each source, and joins the answers.
func (c *Checker) Run(ctx context.Context) *Report {
	c.report = Report{Time: time.Now().UTC(), Node: c.config.Name, Version: c.config.Version}
	c.kubelet(ctx)
	c.podsAPI(ctx)
	c.kube(ctx)
	view, inventory := c.config.Node.Describe() //nolint:contextcheck // it waits a bounded time for files
	c.pods(view.Allocations)
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

// Input returns what Run has read, for [join.Join].
func (c *Checker) Input() join.Input { return c.input }

// kubelet asks the kubelet who holds what.
func (c *Checker) kubelet(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, c.config.Deadline)
	defer cancel()
	socket := c.config.PodResourcesSocket
	answer, err := c.config.Node.Observe(ctx)
	if err != nil {
		f := socketTrouble(ctx, socket)
		if f.Text == "" {
			f = callTrouble(socket, err)
		}
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
	c.report.add(Finding{What: "podresources", Text: fmt.Sprintf("%s: %d allocations of %s, answered in %v",
		socket, len(answer.Listed), count(len(claims), "claim"), answer.Took.Round(time.Microsecond))})
	for _, r := range answer.Rejected.Of("podresources") {
		c.report.add(Finding{Status: Warn, What: r.Input, Text: fmt.Sprintf("%d rejected: %s", r.Count, r.Reason)})
	}
}

// podsAPI lists the pods of the kubelet's Pods API. That a kubelet does not serve it is normal.
func (c *Checker) podsAPI(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, c.config.Deadline)
	defer cancel()
	socket := c.config.PodsSocket
	pods, err := c.config.Node.CheckPods(ctx)
	if err == nil {
		c.report.add(Finding{What: "Pods API", Text: fmt.Sprintf("%s: %s", socket, count(pods, "pod"))})
		return
	}
	f := socketTrouble(ctx, socket)
	absent := strings.HasSuffix(f.Text, "no such socket")
	if f.Text == "" {
		f = callTrouble(socket, err)
		absent = driver.ReasonOf(err) == driver.ReasonUnimplemented
	}
	f.What, f.Detail, f.Status = "Pods API", err.Error(), Warn
	if absent {
		f.Status = OK
		f.Text += "; that is normal before Kubernetes 1.37, and without its folder in the pod"
	}
	c.report.add(f)
}

// state looks at the state folder.
func (c *Checker) state() {
	if c.config.StateDir == "" {
		c.report.add(Finding{
			What: "state.dir", Text: "none is set: counters, incidents and receipts end with the process",
		})
		return
	}
	f := Finding{What: "state.dir", Text: c.config.StateDir + ": counters, incidents and receipts outlive a restart"}
	if err := c.config.CheckState(); err != nil {
		reason := driver.ReasonOf(err)
		f = Finding{
			Status: Warn, What: "state.dir", Text: c.config.StateDir + " can't be written: " + string(reason),
			Do: explain.Source(reason), Detail: err.Error(),
		}
	}
	c.report.add(f)
}

// kube asks the API server for everything that it is used for.
func (c *Checker) kube(ctx context.Context) {
	if !c.config.Node.UsesAPI() {
		c.report.add(Finding{
			What: "API server", Text: "not used: --kube=off, or neither in a cluster nor given a --kubeconfig",
		})
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

// pods says how many pods hold devices, and of how many the UID is unknown.
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
		f.Text += fmt.Sprintf("; Pods API, API server and log folders do not have the UIDs of %d", unknown)
		f.Do = "mount /var/log/pods or the Pods API's folder: their processes and interfaces are not found without UIDs"
	}
	c.report.add(f)
}

func (c *Checker) inventory(devices int) {
	f := Finding{What: "inventory", Text: count(devices, "device")}
	if err := c.config.Inputs.copy().errs[kube.SourceSlices]; err != nil && c.config.HasInventoryFile {
		f = Finding{Status: Fail, What: "inventory", Text: err.Error(), Do: "mend --inventory.file", Detail: err.Error()}
	} else if !c.config.HasInventoryFile && !c.config.Node.UsesAPI() {
		f.Status = Warn
		f.Text += "; neither API server nor --inventory.file: devices that are not held are unknown"
		f.Do = "give one of them"
	}
	c.report.add(f)
}

// unresolved says of how many pods it is unknown what they hold, and the conflicts.
func (c *Checker) unresolved() {
	inputs := c.config.Inputs.copy()
	for _, reason := range slices.Sorted(maps.Keys(inputs.unresolved)) {
		if n := inputs.unresolved[reason]; n > 0 {
			c.report.add(Finding{
				Status: Warn, What: "pods", Text: fmt.Sprintf("of %s it is not known what they hold: %s", count(n, "pod"), reason),
			})
		}
	}
	for _, kind := range slices.Sorted(maps.Keys(inputs.conflicts)) {
		if n := inputs.conflicts[kind]; n > 0 {
			c.report.add(Finding{
				Status: Warn, What: "conflicts",
				Text: fmt.Sprintf("kubelet and API server disagree on %s: %s", count(n, "device"), kind),
			})
		}
	}
}

func (c *Checker) rejected() {
	failed := c.config.Inputs.copy().failed
	for _, reader := range slices.Sorted(maps.Keys(failed)) {
		err := failed[reader].Error()
		c.report.add(Finding{Status: Fail, What: reader, Text: err, Detail: err})
	}
	inputs := c.config.Inputs.copy()
	for _, input := range slices.Sorted(maps.Keys(inputs.rejections)) {
		for _, r := range inputs.rejections[input].Of(input) {
			c.report.add(Finding{Status: Warn, What: r.Input, Text: fmt.Sprintf("%d rejected: %s", r.Count, r.Reason)})
		}
	}
}

// betweenReadings is the time between two readings of a source. It is longer than any source needs
// for a rate (200 ms for NVIDIA's GPM).
const betweenReadings = 300 * time.Millisecond

// timeToReturn is how long a source may take from the beginning, if it is more than its deadline,
// to return.
const timeToReturn = 10 * time.Second

// sampleTwice samples twice, since rates need two readings. A source that does not return is left.
func sampleTwice(ctx context.Context, s driver.Source) ([]driver.Sample, error) {
	type result struct {
		samples []driver.Sample
		err     error
	}
	done := make(chan result, 1)
	go func() {
		_, _ = s.Sample(ctx) // an error would occur again
		pause := time.NewTimer(betweenReadings)
		defer pause.Stop()
		select {
		case <-pause.C:
		case <-ctx.Done():
		}
		samples, err := s.Sample(ctx)
		done <- result{samples, err}
	}()
	hung := time.NewTimer(timeToReturn)
	defer hung.Stop()
	select {
	case r := <-done:
		return r.samples, r.err
	case <-ctx.Done():
	}
	select {
	case r := <-done:
		return r.samples, r.err
	case <-hung.C:
		return nil, driver.WithReason(driver.ReasonHung, errors.New("it does not return after its deadline"))
	}
}

// source says what a source reads. A source without samples that describes its inputs has a finding
// for each of its lines, and none that says that there is no hardware.
func (c *Checker) source(ctx context.Context, s driver.Source) []driver.Sample {
	ctx, cancel := context.WithTimeout(ctx, c.config.Deadline)
	defer cancel()
	if w, ok := s.(driver.Watcher); ok {
		go w.Watch(ctx)
	}
	samples, err := sampleTwice(ctx, s)
	var lines []string
	if d, ok := s.(driver.Describer); ok {
		lines = d.Describe()
	}
	if len(samples) > 0 || err != nil || len(lines) == 0 {
		c.report.add(sampled(s.Name(), samples, err))
	}
	for _, line := range lines {
		c.report.add(Finding{What: s.Name(), Text: line})
	}
	c.leftOut(s)
	if scraped, ok := s.(unmatcher); ok && err == nil { // it is not still sampling
		if names := scraped.Unmatched(); len(names) > 0 {
			text := "metrics without a series that could be used: " + strings.Join(names, ", ")
			c.report.add(Finding{What: s.Name(), Text: text})
		}
	}
	return samples
}

// sampled says what hardware and quantities a source has read, and why it has not read all.
func sampled(source string, samples []driver.Sample, err error) Finding {
	f := Finding{What: source, Text: "no hardware here"}
	pieces := count(len(samples), "piece")
	switch {
	case err != nil:
		f.Status, f.Detail, f.Do = Fail, err.Error(), explain.Source(driver.ReasonOf(err))
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

// leftOut says what a source has read and can't be used.
func (c *Checker) leftOut(s driver.Source) {
	if e, ok := s.(driver.Exampler); ok {
		for _, example := range e.Examples() {
			c.report.add(Finding{Status: Warn, What: s.Name(), Text: "out of range: " + example})
		}
	}
	if counter, ok := s.(driver.RejectionCounter); ok {
		for _, r := range counter.Rejected().Of(s.Name()) {
			c.report.add(Finding{Status: Warn, What: r.Input, Text: fmt.Sprintf("%d rejected: %s", r.Count, r.Reason)})
		}
	}
}

// unmatcher is a source that is told which metrics it reads, and knows those that it never met.
type unmatcher interface{ Unmatched() []string }

// scraped returns the name of a source that a configuration has for the devices of a driver, "" for
// none.
func (c *Checker) scraped(driverName string) string {
	for _, s := range c.config.Sources {
		if of, ok := s.(interface{ Driver() string }); ok && of.Driver() == driverName {
			return s.Name()
		}
	}
	return ""
}

// devices says for each device whether it has telemetry; warnings that are the same for devices of
// a pool are one. If no device has telemetry, nothing can be exported, and that is a failure.
func (c *Checker) devices(r join.Result) {
	telemetry := 0
	named := 0
	for i := range r.Devices {
		d := &r.Devices[i]
		if d.Missing == join.MissingNone {
			telemetry++
		}
		if c.config.Device != "" && d.ID.Device != c.config.Device && d.ID.String() != c.config.Device {
			continue
		}
		named++
		c.mention(c.device(d), d.ID)
		if c.config.Device != "" {
			c.holds(d)
		}
	}
	if c.config.Device != "" && named == 0 {
		c.report.add(Finding{
			Status: Fail, What: "device", Text: fmt.Sprintf("%s: the node has no such device", c.config.Device),
			Do: "name one of those that check lists without --device, as DEVICE or DRIVER/POOL/DEVICE",
		})
	}
	if len(r.Devices) > 0 && telemetry == 0 {
		c.report.add(Finding{
			Status: Fail, What: "telemetry", Text: fmt.Sprintf("none of %s has telemetry", count(len(r.Devices), "device")),
			Do: "see the reasons above; dra-exporter exports who holds the devices, and not what they do",
		})
	}
}

// mention adds what was found about a device. The same warning about several devices of a pool is
// one finding that lists them.
func (c *Checker) mention(f Finding, id driver.ID) {
	said := f.Text
	f.What, f.Text = "device", id.String()+": "+said
	if f.Status != Warn {
		c.report.add(f)
		return
	}
	if c.sameWarning == nil {
		c.sameWarning = map[warning]*group{}
	}
	key := warning{id.Driver, id.Pool, said, f.Do}
	same := c.sameWarning[key]
	if same == nil {
		c.report.add(f)
		c.sameWarning[key] = &group{at: len(c.report.Findings) - 1, devices: []string{id.Device}}
		return
	}
	same.devices = append(same.devices, id.Device)
	c.report.Findings[same.at].Text = fmt.Sprintf("%s/%s: %s (%s): %s", id.Driver, id.Pool,
		strings.Join(same.devices, ", "), count(len(same.devices), "device"), said)
}

// warning is what warnings about devices of a pool have in common.
type warning struct{ driver, pool, text, do string }

// group is the finding that stands for the same warnings, and their devices.
type group struct {
	at      int // in the report's findings
	devices []string
}

// device says whether a device has telemetry, and whether it is held. The text does not name the
// device.
func (c *Checker) device(d *join.Device) Finding {
	var f Finding
	if d.Missing == join.MissingNone {
		f.Text += fmt.Sprintf("%d readings", len(d.Readings))
		if found := d.Contradiction(c.config.IdleThreshold); found != join.NoContradiction {
			f.Status = Warn
			f.Text += "; contradictory: the utilization is 0, and " + found.Meaning()
			f.Do = "it is not taken to be idle; restart the source that reads the utilization (DCGM's profiling reads 0 " +
				"after some errors)"
		}
	} else {
		var why string
		why, f.Do = explain.Missing(d.ID.Driver, d.Missing)
		if name := c.scraped(d.ID.Driver); d.Missing == join.MissingNoSource && name != "" {
			f.Do = "see what " + name + " says of series that name no hardware"
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

// oneLine returns an error's text, of joined errors as one line.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }
