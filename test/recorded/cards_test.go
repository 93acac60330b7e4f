package recorded

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/amdgpu"
	"github.com/dra-exporter/dra-exporter/driver/drivertest"
	"github.com/dra-exporter/dra-exporter/driver/intelgpu"
	"github.com/dra-exporter/dra-exporter/driver/sysfs/drmcard/drmcardtest"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// TestCards compares each recorded graphics card with what LACT shows of it.
func TestCards(t *testing.T) {
	root := folder(t, "drm")
	cards, err := filepath.Glob(filepath.Join(root, "*", "*", "card*"))
	must.That(t, err == nil && len(cards) != 0, "no cards: %v", err)
	for _, path := range cards {
		path = filepath.Dir(path)
		vendor, card := filepath.Base(filepath.Dir(path)), filepath.Base(path)
		name := vendor + "/" + card
		t.Run(name, func(t *testing.T) {
			content := must.Get(os.ReadFile(filepath.Join(root, "lact", vendor+"-"+card+".json")))(t)
			sysfs := drmcardtest.Recorded(t, name)
			var source driver.Source = amdgpu.New(sysfs)
			if vendor == "intel" {
				source = intelgpu.New(sysfs)
			}
			samples, err := source.Sample(t.Context())
			must.That(t, err == nil && len(samples) == 1, "%d samples, error %v", len(samples), err)
			expect.OK(t, drivertest.Validate(samples, time.Now()))
			ours := drivertest.Values(samples[0])
			for what, value := range ours {
				if strings.HasPrefix(what, "throttle_active") {
					ours["throttled"] += value
				}
			}
			if watts, ok := ours["power"]; ok {
				ours[powerOfGPU] = watts
			}
			theirs := opinionOfLACT(t, content)
			check(t, name, theirs, ours, cardReasons(theirs))
		})
	}
}

// powerOfGPU is the power that LACT shows of an APU's GPU, beside that of the whole package.
const powerOfGPU = "power of the GPU alone"

// opinionOfLACT returns LACT's values by our names: the stats, and the link. An unknown number
// keeps LACT's name, so that it is missing.
func opinionOfLACT(t *testing.T, content []byte) map[string]float64 {
	var file struct {
		Stats map[string]any
		Info  struct {
			Driver string
			Link   struct {
				Speed    string `json:"current_speed"`
				Width    string `json:"current_width"`
				MaxSpeed string `json:"max_speed"`
				MaxWidth string `json:"max_width"`
			} `json:"link_info"`
		}
	}
	must.Do(t, json.Unmarshal(content, &file))
	leaves := map[string]float64{}
	flatten(leaves, "", file.Stats)
	out := map[string]float64{}
	for path, value := range leaves {
		name, unit := nameOfLACT(file.Info.Driver, path)
		if name == "fan_speed" {
			unit = 1 / leaves["fan pwm_max"]
		}
		if name != "" {
			out[name] = value * unit
		}
	}
	if info, ok := file.Stats["throttle_info"].(map[string]any); ok {
		out["throttled"] = float64(len(info))
	}
	for what, text := range map[string]string{
		"link_width pcie": file.Info.Link.Width, "link_width_max pcie": file.Info.Link.MaxWidth,
		"link_generation pcie":     generation(file.Info.Link.Speed),
		"link_generation_max pcie": generation(file.Info.Link.MaxSpeed),
	} {
		if n, err := strconv.ParseFloat(text, 64); err == nil {
			out[what] = n
		}
	}
	return out
}

// flatten adds the numbers of a JSON object by their paths.
func flatten(out map[string]float64, path string, value any) {
	switch v := value.(type) {
	case map[string]any:
		for name, below := range v {
			flatten(out, strings.TrimSpace(path+" "+name), below)
		}
	case float64:
		out[path] = v
	}
}

func generation(speed string) string {
	for i, known := range []string{"2.5", "5.0", "8.0", "16.0", "32.0", "64.0"} {
		if strings.HasPrefix(speed, known+" GT/s") {
			return strconv.Itoa(i + 1)
		}
	}
	return ""
}

// nameOfLACT returns our name of a number in LACT's stats, and its unit in ours; "" for settings of
// LACT and limits of sensors, which are not telemetry.
func nameOfLACT(kernelDriver, path string) (name string, unit float64) {
	const milli, mega, percent = 1e-3, 1e6, 0.01
	switch last := path[strings.LastIndex(path, " ")+1:]; last {
	case "crit", "crit_hyst", "Index", "pwm_max", "pwm_min", "speed_min", "speed_max", "static_speed":
		return "", 0
	}
	intel := kernelDriver != "amdgpu"
	parts := strings.Fields(path)
	switch {
	case parts[0] == "temps":
		return "temperature " + sensorOfLACT(intel, parts[1]), 1
	case path == "voltage gpu" && intel:
		return "voltage gpu", milli
	case parts[0] == "voltage" && parts[1] == "sensors":
		return "voltage " + sensorOfLACT(intel, parts[2]), milli
	case strings.HasPrefix(path, "clockspeed sensors"):
		return "clock " + clockOfLACT(parts[2]), mega
	case strings.HasPrefix(path, "fan curve"), parts[0] == "fan" && parts[1] == "pmfw_info":
		return "", 0
	}
	switch path {
	case "busy_percent":
		return "utilization", percent
	case "clockspeed gpu_clockspeed":
		return "clock graphics", mega
	case "clockspeed vram_clockspeed":
		return "clock memory", mega
	case "voltage gpu":
		return "voltage graphics", milli
	case "power average":
		return "power", 1
	case "power sensors gfx":
		return powerOfGPU, 1
	case "power cap_current":
		return "power_limit enforced", 1
	case "power cap_default":
		return "power_limit default", 1
	case "power cap_min":
		return "power_limit min", 1
	case "power cap_max":
		if intel {
			return "power_limit critical", 1
		}
		return "power_limit max", 1
	case "fan speed_current":
		return "fan_rotation fan1", 1
	case "fan pwm_current":
		return "fan_speed", 1
	case "vram total":
		return "memory_capacity", 1
	case "vram used":
		return "memory_used", 1
	default:
		return path, 1
	}
}

func sensorOfLACT(intel bool, name string) string {
	switch {
	case name == "mem", intel && name == "vram":
		return "memory"
	case intel && name == "pkg":
		return "gpu"
	}
	return name
}

func clockOfLACT(name string) string {
	switch name {
	case "SOCCLK":
		return "soc"
	case "UCLK":
		return "memory"
	case "FCLK":
		return "fabric"
	case "VCLK", "VCLK1":
		return strings.ToLower(strings.Replace(name, "VCLK", "video", 1))
	case "DCLK", "DCLK1":
		return strings.ToLower(strings.Replace(name, "DCLK", "decoder", 1))
	}
	return name
}

// cardReasons explain differences from LACT and missing values. A card for which LACT knows the
// power of the GPU alone is an APU.
func cardReasons(theirs map[string]float64) []reason {
	_, isAPU := theirs[powerOfGPU]
	apu := func(line) bool { return isAPU }
	zero := func(l line) bool { return l.theirs == 0 }
	return []reason{
		{"amd/.*: power( current| sensors (apu|core|soc))?", "the whole package; ours is what the GPU draws", apu},
		{"amd/.*: memory_(used|capacity)", "what was set aside at boot; ours is all that it can use", apu},
		{"amd/.*: temperature (soc|skin)", "LACT cuts off what is below a degree", func(l line) bool {
			return math.Floor(l.ours) == l.theirs
		}},
		{"amd/.*: throttled", "this card's table has no field of throttling", func(l line) bool {
			return l.outcome == missing
		}},
		{"amd/.*: fan_speed", "the setting contradicts the rotation, which counts", func(l line) bool {
			return (l.theirs > 0) != (theirs["fan_rotation fan1"] > 0)
		}},
		{"amd/rx7800xt: fan_speed", "LACT takes 254 for the maximum, the kernel 255", nil},
		{"amd/rx7600s: clock video1", "0 in gpu_metrics", nil},
		{".*: clockspeed target_gpu_clockspeed", "what the driver asks for, not a measurement", nil},
		{"intel/.*: clock graphics", "0 in the idle state, where LACT shows what is asked for", func(l line) bool {
			return l.ours == 0 && l.outcome == differs
		}},
		{"intel/.*: power_limit min", "in no file", zero},
		{"intel/.*: power_limit default", "in no file; LACT repeats the present limit", func(l line) bool {
			return l.outcome == missing && l.theirs == theirs["power_limit enforced"]
		}},
		{"intel/a380.*: power_limit critical", "LACT's 400 W are in no file", nil},
		{"amd/.*: temperature memory", "0 °C: the card has no such sensor", zero},
		{".*: voltage .*", "0 V: switched off, or not measured", zero},
	}
}
