package grafana

// nodeCondition is about the condition of the hardware, whoever uses it.
func nodeCondition() []Panel {
	const unreported = "where no source reports conditions of the hardware"
	return []Panel{
		orEmpty("while no device needs attention", Panel{
			Title: "Needs attention",
			Description: "Conditions that a device or its driver reports, and what ends them. See DRADeviceNeedsAttention in " +
				"the runbook.",
			Kind: Table, NoData: "no device needs attention", Width: 12, Height: 8,
			Targets: []Target{{
				Expr: `max by (<device>, action, reason) (dra_device_needs_attention{<one>, action!="none"}) == 1`,
			}},
		}),
		orEmpty(unreported, Panel{
			Title: "Errors over the lifetime",
			Description: "Errors that the device itself has recorded, those from before the exporter's start included. " +
				"Devices without such errors are left out.",
			Kind: Table, NoData: "no device has recorded errors", Width: 12, Height: 8, sort: "Errors",
			Targets: []Target{{
				Expr:   `max by (<device>, kind, code) (dra_device_lifetime_errors{<one>}) > 0`,
				Column: "Errors", Unit: "none",
			}},
		}),
	}
}
