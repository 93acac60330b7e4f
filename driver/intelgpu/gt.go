package intelgpu

import (
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/sysfs"
)

// gt is one of a GPU's GTs: the engines for rendering and computing, or those for media, with their
// own clock and idle state.
type gt struct {
	folder string // of the GT
	tile   string // folder of its tile; "": the driver shows none
	engine string // purpose of its engines: render or video; "": unknown

	idle      string // file of the time in its idle state, in milliseconds
	status    string // file of its present state; for i915: file that says whether it may become idle
	clock     string // file of its frequency, in MHz
	maxClock  string // file of the highest frequency of the hardware (RP0), in MHz
	throttled string // file that says whether it is throttled
	reasons   []throttleReason

	idling sysfs.Meter // of the idle time
}

// throttleReason is a file that says whether a GT is throttled for a reason.
type throttleReason struct{ path, name string }

// discoverGTs lists the GTs. Known ones keep their meters. Files of xe: xe_gt_idle.c, xe_gt_freq.c
// and xe_gt_throttle.c in drivers/gpu/drm/xe of Linux; files of i915: gt/intel_gt_sysfs_pm.c in
// drivers/gpu/drm/i915.
func (p *pass) discoverGTs(tiles []string) {
	d := p.device
	known := map[string]*gt{}
	for _, gt := range d.gts {
		known[gt.folder] = gt
	}
	d.gts = nil
	add := func(tile, folder, name string) {
		if _, ok := number(name, "gt"); !ok {
			return
		}
		found := p.newGT(tile, folder+"/"+name)
		if before := known[found.folder]; before != nil {
			found.idling = before.idling
		}
		d.gts = append(d.gts, found)
	}
	if d.driver == i915 {
		for _, name := range p.names(d.node + "/gt") {
			add("", d.node+"/gt", name)
		}
		if len(d.gts) == 0 {
			d.gts = []*gt{p.onlyGT(known[d.node])}
		}
		return
	}
	for _, tile := range tiles {
		for _, name := range p.names(tile) {
			add(tile, tile, name)
		}
	}
}

func (p *pass) newGT(tile, folder string) *gt {
	if p.device.driver == i915 {
		g := &gt{
			folder: folder, idle: folder + "/rc6_residency_ms", clock: folder + "/rps_act_freq_mhz",
			maxClock: folder + "/rps_RP0_freq_mhz", status: folder + "/rc6_enable",
			throttled: folder + "/throttle_reason_status",
		}
		if strings.HasSuffix(folder, "/gt0") {
			g.engine = "render"
			p.completeGT(g)
		}
		g.reasons = p.throttleReasons(folder, "throttle_reason_")
		return g
	}
	g := &gt{
		folder: folder, tile: tile, idle: folder + "/gtidle/idle_residency_ms", status: folder + "/gtidle/idle_status",
		clock: folder + "/freq0/act_freq", maxClock: folder + "/freq0/rp0_freq",
		throttled: folder + "/freq0/throttle/status",
	}
	switch name := p.Text(folder + "/gtidle/name"); {
	case strings.HasSuffix(name, "-rc"):
		g.engine = "render"
	case strings.HasSuffix(name, "-mc"):
		g.engine = "video"
	}
	g.reasons = p.throttleReasons(folder+"/freq0/throttle", "reason_")
	return g
}

// completeGT uses files of the card if the folder of the first GT lacks them.
func (p *pass) completeGT(g *gt) {
	if _, ok := p.Number(g.clock); !ok {
		g.clock = p.device.node + "/gt_act_freq_mhz"
	}
	if _, ok := p.Number(g.maxClock); !ok {
		g.maxClock = p.device.node + "/gt_RP0_freq_mhz"
	}
	if _, ok := p.Number(g.idle); !ok {
		g.idle, g.status = p.device.node+rc6Folder+"rc6_residency_ms", p.device.node+rc6Folder+"rc6_enable"
	}
}

// onlyGT returns the GT of a GPU without a folder gt, which i915 has since Linux 5.18. Its files
// are those of the card (i915_sysfs.c). before is its earlier state, or nil.
func (p *pass) onlyGT(before *gt) *gt {
	node := p.device.node
	g := &gt{folder: node, engine: "render", idle: node + rc6Folder + "rc6_residency_ms"}
	g.status, g.clock = node+rc6Folder+"rc6_enable", node+"/gt_act_freq_mhz"
	g.maxClock = node + "/gt_RP0_freq_mhz"
	if before != nil {
		g.idling = before.idling
	}
	return g
}

// rc6Folder is the folder of the card's own files about its idle state.
const rc6Folder = "/power/"

func (p *pass) throttleReasons(folder, prefix string) []throttleReason {
	var reasons []throttleReason
	for _, file := range p.names(folder) {
		if reason, ok := strings.CutPrefix(file, prefix); ok && reason != "status" {
			reasons = append(reasons, throttleReason{folder + "/" + file, reasonName(reason)})
		}
	}
	return reasons
}

// reasonName returns the common name of a reason: power, thermal, hw_thermal (from outside of the
// GPU) or other.
func reasonName(reason string) string {
	switch reason {
	case "pl1", "pl2", "pl4", "psys_pl1", "psys_pl2", "psys_crit":
		return "power"
	case "thermal", "ratl", "soc_thermal", "soc_avg_thermal", "mem_thermal":
		return "thermal"
	case "prochot", "vr_thermalert", "vr_thermal":
		return "hw_thermal"
	default: // vr_tdc, iccmax, fastvmode, p0_freq
		return "other"
	}
}

// measureGTs reads the utilization of each GT. GTs of several tiles with the same purpose count as
// one, with the utilization of the busiest.
func (p *pass) measureGTs() {
	busy, partial, at := map[string]float64{}, map[string]bool{}, time.Time{}
	all, isKnown := 0.0, len(p.device.gts) > 0
	for _, gt := range p.device.gts {
		share, when, ok := p.busyShare(gt)
		if !ok {
			partial[gt.engine], isKnown = true, false
			continue
		}
		at, all = when, max(all, share)
		busy[gt.engine] = max(busy[gt.engine], share)
	}
	if isKnown {
		p.AddAt(at, driver.Utilization, all)
	}
	for _, engine := range []string{"render", "video"} {
		if share, ok := busy[engine]; ok && !partial[engine] {
			p.AddAt(at, driver.EngineUtilization, share, engine)
		}
	}
}

// measureClocks reads the present and highest clocks of the GTs, the fastest of several with the
// same purpose, and the reasons for throttling.
func (p *pass) measureClocks() {
	clocks, highest, throttles := map[string]float64{}, map[string]float64{}, map[string]bool{}
	for _, gt := range p.device.gts {
		if n, ok := p.Value(gt.clock); ok {
			clocks[gt.engine] = max(clocks[gt.engine], n*megahertz)
		}
		if n, ok := p.Value(gt.maxClock); ok {
			highest[gt.engine] = max(highest[gt.engine], n*megahertz)
		}
		p.throttling(gt, throttles)
	}
	for _, domain := range []struct{ engine, clock string }{{"render", "graphics"}, {"video", "video"}} {
		if hertz, ok := clocks[domain.engine]; ok {
			p.Add(driver.Clock, hertz, domain.clock)
		}
		if hertz, ok := highest[domain.engine]; ok {
			p.Add(driver.ClockMax, hertz, domain.clock)
		}
	}
	for _, reason := range []string{"power", "thermal", "hw_thermal", "other"} {
		if active, ok := throttles[reason]; ok {
			p.Add(driver.ThrottleActive, driver.Flag(active), reason)
		}
	}
}

// maxIdle is the highest accepted share of idle time. It is above 1 because two files are read at
// slightly different times.
const maxIdle = 1.5

// busyShare returns the share of time in which a GT was not idle, [driver.Malformed] if its file
// has no number, false if unknown. A counter that stays 0 has never counted.
func (p *pass) busyShare(g *gt) (share float64, at time.Time, ok bool) {
	raw, ok := p.Value(g.idle)
	if !ok || raw == 0 || driver.IsMalformed(raw) {
		g.idling.Stop()
		return raw, p.at, ok && raw != 0
	}
	g.idling.Advance(uint64(raw), p.at)
	perSecond, at, ok := g.idling.Rate()
	idle := perSecond * milli
	if !ok || idle > maxIdle || idle == 0 && p.isStuck(g) {
		return 0, at, false
	}
	return max(0, 1-idle), at, true
}

// isStuck reports whether a counter that does not rise says nothing about work: the GT is idle
// (xe), or never enters its idle state (i915, whose file has a bit for each such state).
func (p *pass) isStuck(g *gt) bool {
	switch p.Text(g.status) {
	case "gt-c6", "0":
		return true
	}
	return false
}

// throttling adds the reasons for which a GT is throttled. The kernel reads a register for each
// file: the reasons are read only if there is one.
func (p *pass) throttling(g *gt, active map[string]bool) {
	if g.throttled == "" {
		return
	}
	status, ok := p.Value(g.throttled)
	if driver.IsMalformed(status) {
		p.Add(driver.ThrottleActive, status, "other")
	}
	if !ok || driver.IsMalformed(status) {
		return
	}
	for _, name := range []string{"power", "thermal", "hw_thermal", "other"} {
		active[name] = active[name] || false
	}
	if status == 0 {
		return
	}
	explained := false
	for _, reason := range g.reasons {
		if set, ok := p.Number(reason.path); ok && set != 0 {
			active[reason.name], explained = true, true
		}
	}
	if !explained {
		active["other"] = true
	}
}
