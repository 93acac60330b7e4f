package rules

// networkLinkAlerts are about the links of network and RDMA devices.
func networkLinkAlerts(o *Options) []alert {
	return []alert{
		{
			name: "DRADeviceLinkDown", severity: critical, hold: o.For, keep: o.KeepFiring,
			expr:        "max by (<device>) (" + linkDown + ") == 1",
			summary:     aDevice + " is claimed, and its link is down.",
			description: "No port of it has been up for <for> while a claim holds it." + heldBy(),
			meaning: "The device works but its link does not: the cause is the cable, the module, the switch port or, with " +
				"InfiniBand, a missing subnet manager (the port's state is INIT then). If one of several ports is up, the alert " +
				"does not fire.",
			diagnosis: "On the node, `ip link`, `rdma link` and `ibstat` show the state of each port, `ethtool -m` the " +
				"module. `dra_device_errors_total{kind=\"port\"}` shows whether the link degraded before. If several nodes have " +
				"it, look at the switch.",
			mitigation: "Taint the device, so that no new claim gets it; move the job. Reseat or replace cable and module; " +
				"check the switch's port.",
		},
		{
			name: "DRADeviceLinkFlapping", severity: warning, keep: o.KeepFiring,
			expr: `
			max by (<device>) (changes(dra_device_link_up[<error window>])) >= 4
			or
			sum by (<device>) (
			  max by (<device>, code) (increase(dra_device_errors_total{kind="link_down"}[<error window>]))
			) >= 3`,
			summary: aDevice + " has a link that goes down repeatedly.",
			description: "Within <error window> its link changed between up and down " +
				"{{ $value | printf \"%.0f\" }} times." + heldBy(),
			meaning: "Each time, every collective operation that uses the link stops for seconds. The device's own " +
				"counter of link failures counts those between two readings.",
			diagnosis: "The Network dashboard, and `dra_device_errors_total{kind=\"port\"}`: if `symbol_error` and " +
				"`link_error_recovery` rise, the cause is a bad cable, a dirty connector or a hot module.",
			mitigation: "Clean or replace cable and module. Until then taint the device: a job is as slow as its slowest link.",
		},
	}
}
