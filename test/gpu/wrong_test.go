package gpu

import (
	"encoding/xml"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/nvidia"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// The errors that the checks must detect: each is made in the recording of an H100.
func TestWrong(t *testing.T) {
	result := must.Get(replay(filepath.Join("testdata", "h100-580.159.04")))(t)
	t.Run("values", func(t *testing.T) { findsWrongValues(t, withParts(result.Busy)) })
	t.Run("loads", func(t *testing.T) { findsWrongLoads(t, result) })
}

// withParts adds a MIG device, NVLinks and a fabric, which the recorded GPU does not have.
func withParts(l look) look {
	const uuid = "MIG-00000000-0000-4000-8000-000000000002"
	gpu := l.After[0].Hardware.UUID
	part := driver.Sample{
		Hardware: driver.Hardware{UUID: uuid, Parent: gpu, Instance: nvidia.Instance(7, 0), Kind: driver.KindPartition},
		Readings: []driver.Reading{
			{Quantity: driver.MemoryCapacity, Value: 10 << 30}, {Quantity: driver.MemoryUsed, Value: 1 << 30},
		},
	}
	grown := func(samples []driver.Sample) []driver.Sample {
		s := samples[0]
		s.Readings = slices.Clone(s.Readings)
		for i, r := range s.Readings {
			if r.Labels[0] == "nvlink" {
				s.Readings[i].Value = 5 << 20
			}
		}
		s.Readings = append(s.Readings,
			driver.Reading{Quantity: driver.FabricState, Labels: driver.Labels{"healthy"}, Value: 1})
		return append([]driver.Sample{s, part}, samples[1:]...)
	}
	l.Before, l.After = grown(l.Before), grown(l.After)
	l.query = regexp.MustCompile(`(?s)<mig_devices>.*?</mig_devices>`).ReplaceAllString(l.query,
		"<mig_devices><mig_device><gpu_instance_id>7</gpu_instance_id><compute_instance_id>0</compute_instance_id>"+
			"<fb_memory_usage><total>10240 MiB</total><used>1024 MiB</used></fb_memory_usage></mig_device></mig_devices>")
	l.query = strings.Replace(l.query, "<state>N/A</state>\n\t\t\t<status>N/A<",
		"<state>Completed</state><status>Success<", 1)
	l.list += fmt.Sprintf("  MIG 1g.10gb     Device  0: (UUID: %s)\n", uuid)
	l.links = fmt.Sprintf("GPU 0: NVIDIA H100 (UUID: %s)\n\t Link 0: Data Tx: 5120 KiB\n\t Link 0: Data Rx: 5120 KiB\n",
		gpu)
	return l
}

// findsWrongValues changes the output of nvidia-smi in one place after the other.
func findsWrongValues(t *testing.T, l look) {
	t.Helper()
	wrong := func(l look) (out []finding) {
		findings := must.Get(compare(l))(t)
		return slices.DeleteFunc(findings, func(f finding) bool { return f.verdict == agrees || f.verdict == notCompared })
	}
	log := must.Get(parseQuery(l.query))(t)
	paths, changes := []string{
		"driver_version", "cuda_version", "gpu/product_name", "gpu/vbios_version", "gpu/pci/pci_bus_id", "gpu/uuid",
		"gpu/processes/process_info/used_memory", "gpu/gpu_recovery_action", "gpu/fabric/status",
	}, 0
	for path := range attention() {
		paths = append(paths, "gpu/"+path)
	}
	for _, c := range gpuColumns() {
		used := slices.IndexFunc(c.paths, func(paths []string) bool { _, ok := log.all("gpu")[0].sum(paths); return ok })
		for _, path := range c.paths[max(0, used)] {
			if !c.rated {
				paths = append(paths, "gpu/"+path)
			}
		}
	}
	for _, c := range instanceColumns() {
		paths = append(paths, "gpu/mig_devices/mig_device/"+c.paths[0][0])
	}
	for _, path := range paths {
		found := log.all(path)
		if len(found) == 0 || strings.HasSuffix(found[0].Text, "N/A") {
			continue // this GPU does not have it
		}
		e := found[0]
		was := e.Text
		changes++
		opposite := map[string]string{
			"Yes": "No", "No": "Yes", "Active": "Not Active", "Not Active": "Active", "None": "GPU Reset", "Success": "Failure",
		}[was]
		digits, unit, _ := strings.Cut(was, " ")
		state, isState := strings.CutPrefix(was, "P")
		switch {
		case opposite != "":
			e.Text = opposite
		case isState:
			e.Text = "P9" + state
		case !strings.Contains(path, "pci_bus_id") && len(digits) < 20:
			e.Text = "9999999" + digits + " " + unit
		default:
			e.Text = "1" + was[1:]
		}
		text := must.Get(xml.Marshal(log))(t)
		changed := l
		if changed.query = string(text); len(wrong(changed)) == 0 {
			t.Errorf("%s is %s instead of %s, which is not detected", path, e.Text, was)
		}
		e.Text = was
	}
	expect.That(t, changes >= 45, "only %d values were changed", changes)
	for name, changed := range map[string]look{
		"a device is not listed":  {l.Before, l.After, l.query, strings.Replace(l.list, "MIG-", "MIG-1", 1), l.links},
		"a device is not read":    {l.Before, l.After[1:], l.query, l.list, l.links},
		"other bytes over NVLink": {l.Before, l.After, l.query, l.list, strings.Replace(l.links, "Rx: ", "Rx: 1", 1)},
		"a process that was not read": {
			l.Before, l.After, strings.Replace(l.query, "<pid>641<", "<pid>78<", 1), l.list,
			l.links,
		},
	} {
		expect.That(t, len(wrong(changed)) != 0, "%s, which is not detected", name)
	}
}

// findsWrongLoads changes the effects of the load and the results of the exporter.
func findsWrongLoads(t *testing.T, result trial) {
	t.Helper()
	scaled := func(q driver.Quantity, by float64) trial {
		changed := result
		changed.BusySeries = nil
		for _, samples := range result.BusySeries {
			changed.BusySeries = append(changed.BusySeries, scale(samples, q, by))
		}
		return changed
	}
	swapped := result
	swapped.Loads = []loaded{result.Loads[0], result.Loads[1]}
	swapped.Loads[0].PID, swapped.Loads[1].PID = result.Loads[1].PID, result.Loads[0].PID
	idle := result
	idle.BusySeries = result.IdleSeries
	for name, tc := range map[string]struct {
		trial trial
		want  string
	}{
		"nothing moved":        {idle, "the increase of utilization"},
		"no power":             {scaled(driver.Power, 0.2), "the increase of power"},
		"energy in kilojoules": {scaled(driver.Energy, 1e-3), "energy per second"},
		"memory in kB":         {scaled(driver.MemoryUsed, 1./1024), "the increase of memory"},
		"traffic in kB":        {scaled(driver.IOBytes, 1./1024), "the traffic over PCIe"},
		"processes mixed up":   {swapped, "the heavy claim's"},
		"percentages":          {scaled(driver.Utilization, 100), "the increase of utilization"},
	} {
		wrong, _ := tc.trial.checkMoved()
		more, _ := tc.trial.checkAttribution()
		if all := strings.Join(append(wrong, more...), "\n"); !strings.Contains(all, tc.want) {
			t.Errorf("%s: %q does not contain %s", name, all, tc.want)
		}
	}
}

// scale returns samples with other values of a quantity.
func scale(samples []driver.Sample, q driver.Quantity, by float64) []driver.Sample {
	out := slices.Clone(samples)
	for i := range out {
		out[i].Readings = slices.Clone(out[i].Readings)
		for j := range out[i].Readings {
			if out[i].Readings[j].Quantity == q {
				out[i].Readings[j].Value *= by
			}
		}
	}
	return out
}
