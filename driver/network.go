package driver

// networkSpec describes what is particular to network and RDMA devices.
func networkSpec(q Quantity) Spec {
	if q == LinkUp {
		return Spec{
			Name:   "link_up",
			Metric: "link_up", NonNegative: true, Max: 1, Fact: true,
			Help:   "1 if the link of a port of the device is up (RDMA: its state is ACTIVE), 0 if it is not.",
			Labels: []Label{{Name: "link", Values: []string{"network", "rdma"}}, {Name: "port"}},
		}
	}
	return Spec{
		Name:   "rdma_events",
		Metric: "rdma_events_total", Type: Counter, NonNegative: true,
		Help: "Congestion and retransmissions that the RDMA device counted, by the names of the kernel's files; " +
			"port_xmit_wait counts ticks of the hardware.",
		Labels: []Label{{Name: "event", Values: RDMAEventNames()}},
	}
}

// RDMAEventNames returns the values of the label event of [RDMAEvents]: of the InfiniBand
// specification's port counters those of congestion
// (Documentation/ABI/stable/sysfs-class-infiniband of Linux), and of the hw_counters of mlx5, rxe,
// bnxt_re and EFA (drivers/infiniband of Linux) those of congestion and retransmission.
func RDMAEventNames() []string {
	return []string{
		"port_xmit_discards", "port_xmit_wait", "VL15_dropped",

		"out_of_buffer", "out_of_sequence", "duplicate_request", "rnr_nak_retry_err", "packet_seq_err",
		"implied_nak_seq_err", "local_ack_timeout_err", "np_cnp_sent", "np_ecn_marked_roce_packets", "rp_cnp_handled",
		"rp_cnp_ignored", "rx_icrc_encapsulated", "roce_adp_retrans", "roce_adp_retrans_to", "roce_slow_restart",
		"roce_slow_restart_cnps", "roce_slow_restart_trans",

		"out_of_seq_request", "rcvd_rnr_err", "send_rnr_err", "rcvd_seq_err", "retry_exceeded_err",
		"retry_rnr_exceeded_err", "completer_retry_err",

		"to_retransmits", "seq_err_naks_rcvd", "max_retry_exceeded", "rnr_naks_rcvd",

		"rx_drops",
	}
}
