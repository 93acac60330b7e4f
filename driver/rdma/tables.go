package rdma

import (
	"strings"

	"github.com/dra-exporter/dra-exporter/driver"
)

// meaning is the meaning of a file below a port's folder. Of several files with the same quantity
// and labels, the port's files of the lowest rank count; files of one rank are summed.
type meaning struct {
	quantity driver.Quantity
	labels   driver.Labels
	scale    float64
	rank     int
}

// The ranks: the specification's counters, else a driver's own, else a driver's by protocol.
const (
	rankSpecification = iota
	rankDriver
	rankProtocol
)

// reading identifies the meanings that belong to one reading.
type reading struct {
	quantity driver.Quantity
	labels   driver.Labels
}

func (m *meaning) reading() reading { return reading{m.quantity, m.labels} }

// isTraffic reports whether the file is read at every sample.
func (m *meaning) isTraffic() bool { return m.quantity == driver.IOBytes }

// newTables returns the meaning of each known counter, by folder and name. Names and meanings are
// the kernel's:
//
//   - counters/*: the InfiniBand specification's (Documentation/ABI/stable/sysfs-class-infiniband),
//     where data is octets divided by four;
//   - hw_counters/*: of mlx5 (drivers/infiniband/hw/mlx5/counters.c), bnxt_re (hw_counters.c), EFA
//     (efa_verbs.c), irdma and i40iw (verbs.c: irdma_hw_stat_names, i40iw_hw_stat_names), erdma
//     (erdma_verbs.c), mana (counters.c), cxgb4 (provider.c) and rxe (rxe_hw_counters.c). Octets of
//     IP packets are what irdma, i40iw and cards without the specification's counters have.
//
// hfi1 and mlx4 have only the specification's counters in the tables; other counters of hfi1 are
// not read.
func newTables() map[string]meaning {
	const receive, transmit = "receive", "transmit"
	t := map[string]meaning{}
	for _, table := range []struct {
		folder   string
		names    string
		quantity driver.Quantity
		labels   driver.Labels
		scale    float64
		rank     int
	}{
		{"counters", "port_rcv_data", driver.IOBytes, driver.Labels{"rdma", receive}, 4, rankSpecification},
		{"counters", "port_xmit_data", driver.IOBytes, driver.Labels{"rdma", transmit}, 4, rankSpecification},
		{"counters", "port_rcv_packets", driver.RDMAPackets, driver.Labels{receive}, 1, rankSpecification},
		{"counters", "port_xmit_packets", driver.RDMAPackets, driver.Labels{transmit}, 1, rankSpecification},
		{"counters", "link_downed", driver.Errors, driver.Labels{"link_down", ""}, 1, rankSpecification},

		{"hw_counters", "rx_bytes rx_bytes_cnt", driver.IOBytes, driver.Labels{"rdma", receive}, 1, rankDriver},
		{"hw_counters", "tx_bytes tx_bytes_cnt", driver.IOBytes, driver.Labels{"rdma", transmit}, 1, rankDriver},
		{
			"hw_counters", "rx_pkts rx_packets rx_packets_cnt rcvd_pkts", driver.RDMAPackets,
			driver.Labels{receive},
			1, rankDriver,
		},
		{
			"hw_counters", "tx_pkts tx_packets tx_packets_cnt sent_pkts", driver.RDMAPackets,
			driver.Labels{transmit},
			1, rankDriver,
		},
		{"hw_counters", "link_downed", driver.Errors, driver.Labels{"link_down", ""}, 1, rankDriver},

		{"hw_counters", "ip4InOctets ip6InOctets", driver.IOBytes, driver.Labels{"rdma", receive}, 1, rankProtocol},
		{"hw_counters", "ip4OutOctets ip6OutOctets", driver.IOBytes, driver.Labels{"rdma", transmit}, 1, rankProtocol},
		{"hw_counters", "ip4InPkts ip6InPkts", driver.RDMAPackets, driver.Labels{receive}, 1, rankProtocol},
		{"hw_counters", "ip4OutPkts ip6OutPkts", driver.RDMAPackets, driver.Labels{transmit}, 1, rankProtocol},
	} {
		for name := range strings.FieldsSeq(table.names) {
			t[table.folder+"/"+name] = meaning{table.quantity, table.labels, table.scale, table.rank}
		}
	}
	add := func(folder, names string, of func(name string) meaning) {
		for name := range strings.FieldsSeq(names) {
			t[folder+name] = of(name)
		}
	}
	event := func(name string) meaning {
		return meaning{driver.RDMAEvents, driver.Labels{name}, 1, rankSpecification}
	}
	operation := func(name string) meaning {
		return meaning{driver.RDMAOperations, driver.Labels{name}, 1, rankSpecification}
	}
	add("counters/", portErrors, func(name string) meaning {
		return meaning{driver.Errors, driver.Labels{"port", name}, 1, rankSpecification}
	})
	add("counters/", "port_xmit_discards port_rcv_discards port_xmit_wait VL15_dropped", event)
	add("counters/", "unicast_rcv_packets unicast_xmit_packets multicast_rcv_packets multicast_xmit_packets", operation)
	add("hw_counters/", hardwareEvents, event)
	add("hw_counters/", hardwareOperations, operation)
	return t
}

// portErrors are port errors of the InfiniBand specification.
const portErrors = `symbol_error link_error_recovery port_rcv_errors port_rcv_remote_physical_errors
	port_rcv_switch_relay_errors port_xmit_constraint_errors port_rcv_constraint_errors
	local_link_integrity_errors excessive_buffer_overrun_errors`

// hardwareEvents are counters of congestion, retransmissions and failures: of mlx5, rxe, bnxt_re,
// EFA, irdma and i40iw, mana, erdma, cxgb4.
const hardwareEvents = `
	out_of_buffer out_of_sequence duplicate_request rnr_nak_retry_err packet_seq_err implied_nak_seq_err
	local_ack_timeout_err np_cnp_sent np_ecn_marked_roce_packets rp_cnp_handled rp_cnp_ignored
	rx_icrc_encapsulated roce_adp_retrans roce_adp_retrans_to roce_slow_restart roce_slow_restart_cnps
	roce_slow_restart_trans cc_rx_ce_pkts cc_rx_cnp_pkts cc_tx_cnp_pkts
	resp_local_length_error resp_cqe_error req_cqe_error req_remote_invalid_request req_remote_access_errors
	resp_remote_access_errors resp_cqe_flush_error req_cqe_flush_error req_transport_retries_exceeded
	req_rnr_retries_exceeded

	out_of_seq_request rcvd_rnr_err send_rnr_err rcvd_seq_err retry_exceeded_err retry_rnr_exceeded_err
	completer_retry_err send_err

	recoverable_errors rx_roce_errors rx_roce_discards to_retransmits seq_err_naks_rcvd max_retry_exceeded
	rnr_naks_rcvd missing_resp unrecoverable_err bad_resp_err local_qp_op_err local_protection_err
	mem_mgmt_op_err remote_invalid_req_err remote_access_err remote_op_err dup_req res_exceed_max
	res_length_mismatch res_exceeds_wqe res_opcode_err res_rx_invalid_rkey res_rx_domain_err res_rx_no_perm
	res_rx_range_err res_tx_invalid_rkey res_tx_domain_err res_tx_no_perm res_tx_range_err res_irrq_oflow
	res_unsup_opcode res_unaligned_atomic res_rem_inv_err res_mem_err res_srq_err res_cmp_err
	res_invalid_dup_rkey res_wqe_format_err res_cq_load_err res_srq_load_err res_tx_pci_err res_rx_pci_err
	oos_drop_count rx_out_of_buffer

	rx_drops retrans_bytes retrans_pkts retrans_timeout_events impaired_remote_conn_events
	unresponsive_remote_events rdma_read_wr_err rdma_write_wr_err

	ip4InDiscards ip4InTruncatedPkts ip4OutNoRoutes ip6InDiscards ip6InTruncatedPkts ip6OutNoRoutes
	rxVlanErrors tcpRetransSegs tcpInOptErrors tcpInProtoErrors RetransSegs InOptErrors InProtoErrors
	cnpHandled cnpIgnored cnpSent RxECNMrkd

	requester_timeout requester_oos_nak requester_rnr_nak responder_rnr_nak responder_oos
	responder_dup_request requester_implicit_nak requester_readresp_psn_mismatch nak_inv_req
	nak_access_error nak_opp_error nak_inv_read responder_local_len_error requestor_local_prot_error
	responder_rem_access_error responder_local_qp_error responder_malformed_wqe general_hw_error
	requester_rnr_nak_retries_exceeded requester_retries_exceeded total_fatal_error received_cnps
	rate_inc_events num_qps_recovered dup_rx_requests

	tx_disable_drop_cnt tx_bps_limit_drop_cnt tx_pps_limit_drop_cnt rx_disable_drop_cnt
	rx_bps_limit_drop_cnt rx_pps_limit_drop_cnt

	ip4RetransSegs ip4OutRsts ip6RetransSegs ip6OutRsts`

// hardwareOperations are counters of work: of mlx5, rxe, bnxt_re, EFA, irdma and i40iw, mana,
// erdma, cxgb4.
const hardwareOperations = `
	rx_write_requests rx_read_requests rx_atomic_requests rx_dct_connect rdma_tx_packets rdma_tx_bytes
	rdma_rx_packets rdma_rx_bytes

	ack_deferred rdma_sends rdma_recvs

	tx_atomic_req tx_read_req tx_read_resp tx_write_req tx_send_req rx_atomic_req rx_read_req rx_read_resp
	rx_write_req rx_send_req rx_roce_good_pkts rx_roce_good_bytes

	send_bytes send_wrs recv_bytes recv_wrs rdma_read_wrs rdma_read_bytes rdma_read_resp_bytes
	rdma_write_wrs rdma_write_bytes rdma_write_recv_bytes

	ip4InReasmRqd ip4InMcastPkts ip4InMcastOctets ip4OutSegRqd ip4OutMcastPkts ip4OutMcastOctets
	ip6InReasmRqd ip6InMcastPkts ip6InMcastOctets ip6OutSegRqd ip6OutMcastPkts ip6OutMcastOctets
	iwInRdmaReads iwInRdmaSends iwInRdmaWrites iwOutRdmaReads iwOutRdmaSends iwOutRdmaWrites iwRdmaBnd
	iwRdmaInv InRdmaReads InRdmaSends InRdmaWrites OutRdmaReads OutRdmaSends OutRdmaWrites RdmaBnd RdmaInv
	tcpInSegs tcpOutSegs InSegs OutSegs RxUDP TxUDP

	rx_send_requests tx_reqs_cnt

	ip4InSegs ip4OutSegs ip6InSegs ip6OutSegs`
