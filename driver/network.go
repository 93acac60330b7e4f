package driver

// networkSpec is the part of the standard catalogue that only network and RDMA devices have.
func networkSpec(q Quantity) Spec {
	switch q {
	case LinkUp:
		return Spec{
			Name: "link_up", NonNegative: true, Max: 1, Fact: true,
			Help:   "1 if the link of a port of the device is up (RDMA: its state is ACTIVE), 0 if it is not.",
			Labels: []Label{{Name: "link", Values: []string{"network", "rdma"}}, {Name: "port"}},
		}
	case RDMAPackets:
		return Spec{
			Name: "rdma_packets", Type: Counter, NonNegative: true, MaxRate: maxPackets,
			Help: "Packets that the RDMA device received or transmitted.", Labels: []Label{directions()},
		}
	case RDMAOperations:
		return Spec{
			Name: "rdma_operations", Type: Counter, NonNegative: true, MaxRate: maxBytesRate,
			Help: "Operations that the RDMA device counts, by the name of the kernel's file: requests, work requests, packets " +
				"of a kind. Files whose names end in bytes or Octets count bytes.",
			Labels: []Label{{Name: "operation"}},
		}
	default:
		return Spec{
			Name: "rdma_events", Type: Counter, NonNegative: true, MaxRate: maxBytesRate,
			Help: "Congestion, retransmissions and failures that the RDMA device counts, by the name of the kernel's file. " +
				"port_xmit_wait counts ticks of the hardware, retrans_bytes counts bytes.",
			Labels: []Label{{Name: "event"}},
		}
	}
}
