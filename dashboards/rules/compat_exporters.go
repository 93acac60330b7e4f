package rules

import "slices"

// dcgmExporter is NVIDIA/dcgm-exporter: labels by internal/pkg/rendermetrics/render_metrics.go, its
// README (DRA) and its release notes (4.8.3: hostname, 4.9: the driver's version). gpu is the
// number in the device's name, which is its minor number; a device without one in its name, such as
// a UUID, has its name. GPU_I_ID is the end of a MIG device's name: no metric has the number of the
// GPU instance.
func dcgmExporter() *otherExporter {
	return &otherExporter{
		name: "dcgm-exporter", value: "dcgmExporter", preset: "dcgm-exporter", vendor: "nvidia",
		labels: slices.Concat(holderLabels(), []otherLabel{
			same("gpu", "device"),
			{"gpu", "$1", "device", `gpu-(\d+)(-.*)?`},
			{"GPU_I_ID", "$1", "device", `gpu-\d+-.*?(\d+(?:-\d+)?)`},
			{"GPU_I_ID", "$1", "device", `(MIG-.+)`},
			same("GPU_I_PROFILE", "profile"),
			{"device", "nvidia$1", "device", `gpu-(\d+)(-.*)?`},
			same("UUID", "uuid"),
			{"pci_bus_id", "0000$1", "pci_bus_id", "(.+)"},
			same("modelName", "model"), same("DCGM_FI_DRIVER_VERSION", "driver_version"),
			same("DCGM_FI_SYSTEM_DRIVER_VERSION", "driver_version"),
			same("Hostname", "node"), same("hostname", "node"), constant("job", "<dcgm job>"),
		}),
		more: dcgmMore,
	}
}

// dcgmMore are the fields that are no quantity of ours. Fields of rates are in bytes per second.
func dcgmMore(e *otherExporter) []recording {
	const capacity = "max by (<device>) (dra_device_memory_capacity_bytes)"
	// The pods of a claim have equal parts of its traffic.
	const pods = "group by (<claim device>, pod) (dra_pod_claim_info)"
	rate := func(link, direction string) measure {
		of := func(by, kind string) string {
			return "max by (" + by + ") (rate(dra_" + kind + `_io_bytes_total{link="` + link + `", direction="` + direction +
				`"}[<rate>]))`
		}
		return measure{device: of("<device>", "device"), scale: 1, pod: `
			sum by (<pod device>) (
			  ` + pods + ` * on (<claim device>) group_left () (
			    ` + of("<claim device>", "claim") + ` / on (<claim device>) count by (<claim device>) (` + pods + `)
			  )
			  or
			  ` + of("<pod device>", "pod_unclaimed") + `
			)`}
	}
	return []recording{
		e.recording("DCGM_FI_DEV_FB_FREE", measure{scale: 1 << 20, device: `
			` + capacity + `
			  - on (<device>) max by (<device>) (dra_device_memory_used_bytes)
			  - on (<device>) (
			    max by (<device>) (dra_device_memory_reserved_bytes) or on (<device>) 0 * ` + capacity + `
			  )`}),
		e.recording("DCGM_FI_PROF_PCIE_TX_BYTES", rate("pcie", "transmit")),
		e.recording("DCGM_FI_PROF_PCIE_RX_BYTES", rate("pcie", "receive")),
		e.recording("DCGM_FI_PROF_NVLINK_TX_BYTES", rate("nvlink", "transmit")),
		e.recording("DCGM_FI_PROF_NVLINK_RX_BYTES", rate("nvlink", "receive")),
		// The XIDs of the window, else those before the first record: one of each device.
		{name: "device:dra_xid:new", expr: `
			topk by (<device>) (
			  1, max by (<device>, code) (increase(dra_device_errors_total{kind="xid", code!=""}[<rate>])) > 0
			)
			or on (<device>)
			topk by (<device>) (1, max by (<device>, code) (dra_device_errors_total{kind="xid", code!=""}) > 0)
			  unless on (<device>) last_over_time(` + lastXID + `[1h]) > 0`},
		// The code of the last XID, which stays; 0 before the first one, where XIDs are read. The
		// quantile makes a number of a label.
		{name: lastXID, expr: `
			max by (<device>) (
			  histogram_quantile(
			    1,
			    label_replace(device:dra_xid:new, "le", "$1", "code", "(.+)")
			      or label_replace(device:dra_xid:new, "le", "+Inf", "", "")
			  )
			)
			or on (<device>)
			max by (<device>) (last_over_time(` + lastXID + `[1h]) > 0)
			or on (<device>)
			0 * group by (<device>) (dra_device_memory_used_bytes)
			  and on (<device>) ` + e.devices() + `
			  and on (<node>) dra_exporter_source_up{source=~"nvml|dcgm|kmsg"} == 1`},
		e.recording("DCGM_FI_DEV_XID_ERRORS", measure{device: "max by (<device>) (" + lastXID + ")", parent: true, scale: 1}),
	}
}

// lastXID is the record of the code of a device's last XID.
const lastXID = "device:dra_xid:last"

// amdExporter is ROCm/device-metrics-exporter: labels by docs/configuration/metricslist.md and
// recorded expositions. gpu_id is the number in the device's name, which is that of its DRM card.
func amdExporter() *otherExporter {
	return &otherExporter{
		name: "amd-device-metrics-exporter", value: "amdDeviceMetricsExporter", preset: "amd-device-metrics-exporter",
		vendor: "amd", prefix: "<amd prefix>",
		labels: slices.Concat(holderLabels(), []otherLabel{
			same("gpu_id", "device"),
			{"gpu_id", "$1", "device", `gpu-(\d+)(-.*)?`},
			same("gpu_uuid", "uuid"), same("serial_number", "serial"), same("card_series", "model"),
			same("vbios_version", "firmware_version"), same("driver_version", "driver_version"),
			same("gpu_compute_partition_type", "profile"), same("hostname", "node"), same("cluster_name", "cluster"),
			constant("card_vendor", "AMD"), constant("job", "<amd job>"),
		}),
		more: func(e *otherExporter) []recording {
			return []recording{
				e.recording("gpu_free_vram", measure{scale: 1 << 20, device: `
					max by (<device>) (dra_device_memory_capacity_bytes)
					  - on (<device>) max by (<device>) (dra_device_memory_used_bytes)`}),
				e.recording("gpu_health", measure{scale: 1, device: `max by (<device>) (dra_device_health{status="healthy"})` +
					` or on (<device>) 0 * max by (<device>) (dra_device_health)`}),
				{name: e.prefix + "gpu_nodes_total", expr: `
					count by (cluster, node, instance, job, hostname, cluster_name) (
					  group by (<node>, driver, pool, dra_device_name, instance, job, hostname, cluster_name) (` + e.compat() + `)
					)`},
			}
		},
	}
}
