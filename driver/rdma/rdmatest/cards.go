// Package rdmatest writes the sysfs of machines with RDMA devices.
package rdmatest

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dra-exporter/dra-exporter/driver/drivertest"
)

// WriteCards writes the sysfs of InfiniBand cards mlx5_0, mlx5_1 and so on, each with one port and
// all counters of mlx5.
func WriteCards(tb testing.TB, root string, cards int) {
	var tree strings.Builder
	for i := range cards {
		function := fmt.Sprintf("devices/pci0000:80/0000:80:%02x.%d", i/8, i%8)
		folder := fmt.Sprintf("%s/infiniband/mlx5_%d", function, i)
		fmt.Fprintf(&tree, "class/infiniband/mlx5_%d -> ../../%s\n%s/device -> ../../../%s\n", i, folder, folder,
			filepath.Base(function))
		fmt.Fprintf(&tree, "%s/subsystem -> ../../../bus/pci\n", function)
		fmt.Fprintf(&tree, "%s/ports/1/state: 4: ACTIVE\n%s/ports/1/rate: 400 Gb/sec (4X NDR)\n", folder, folder)
		for n, counter := range counters() {
			fmt.Fprintf(&tree, "%s/ports/1/%s: %d\n", folder, counter, n)
		}
	}
	drivertest.WriteTree(tb, root, tree.String())
}

// counters are the files of a port of mlx5, by drivers/infiniband/core/sysfs.c and
// drivers/infiniband/hw/mlx5/counters.c.
func counters() []string {
	var files []string
	for folder, names := range map[string]string{
		"counters/": `port_rcv_data port_xmit_data link_downed symbol_error link_error_recovery port_rcv_errors
			port_rcv_remote_physical_errors port_rcv_switch_relay_errors port_xmit_constraint_errors
			port_rcv_constraint_errors local_link_integrity_errors excessive_buffer_overrun_errors port_xmit_discards
			port_xmit_wait VL15_dropped`,
		"hw_counters/": `out_of_buffer out_of_sequence duplicate_request rnr_nak_retry_err packet_seq_err
			implied_nak_seq_err local_ack_timeout_err np_cnp_sent np_ecn_marked_roce_packets rp_cnp_handled rp_cnp_ignored
			rx_icrc_encapsulated roce_adp_retrans roce_adp_retrans_to roce_slow_restart roce_slow_restart_cnps
			roce_slow_restart_trans`,
	} {
		for name := range strings.FieldsSeq(names) {
			files = append(files, folder+name)
		}
	}
	return files
}
