package driver

// conditionSpec is the part of the standard catalogue that describes in which condition the
// hardware is, and how it is set up, whoever uses it.
func conditionSpec(q Quantity) Spec {
	switch q {
	case NeedsAttention:
		return Spec{
			Name:   "needs_attention",
			Metric: "needs_attention", NonNegative: true, Max: 1, Fact: true,
			Help: "1 for each condition of the device for which somebody must act, and for action none while it reports " +
				"no such condition.",
			Labels: []Label{
				{Name: "action", Values: []string{
					"none", "reset", "reboot", "drain", "rma", "recover_fabric", "investigate",
				}},
				{Name: "reason", Values: []string{
					"none", "row_remap_pending", "row_remap_failed", "page_retirement_pending", "channel_repair_pending",
					"tpc_repair_pending", "sram_ecc_threshold", "unrepairable_memory", "recovery_action",
				}},
			},
		}
	case LifetimeErrors:
		return Spec{
			Name:   "lifetime_errors",
			Metric: "lifetime_errors", NonNegative: true, Fact: true,
			Help: "Errors that the device itself has recorded over its lifetime, those from before the exporter's start " +
				"included.",
			Labels: []Label{
				{Name: "kind", Values: []string{"ecc_corrected", "ecc_uncorrected", "row_remap", "page_retirement"}},
				{Name: "code"},
			},
		}
	default:
		return Spec{}
	}
}
