package rdma

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/dra-exporter/dra-exporter/driver/drivertest"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

// portTree returns the tree of a device with one port and these counters.
func portTree(name, counters string) string {
	var tree strings.Builder
	folder := "devices/virtual/infiniband/" + name
	fmt.Fprintf(&tree, "class/infiniband/%s -> ../../%s\n", name, folder)
	port := folder + "/ports/1/"
	for counter := range strings.FieldsSeq(counters) {
		file, value, _ := strings.Cut(counter, "=")
		fmt.Fprintf(&tree, "%s%s: %s\n", port, file, value)
	}
	return tree.String()
}

// Drivers without the specification's counters have traffic in counters of their own. The trees are
// written from the kernel's sources, on no hardware.
func TestDrivers(t *testing.T) {
	traffic := func(receive, transmit, packetsIn, packetsOut float64) map[string]float64 {
		return map[string]float64{
			"io_bytes rdma receive": receive, "io_bytes rdma transmit": transmit,
			"rdma_packets receive": packetsIn, "rdma_packets transmit": packetsOut,
		}
	}
	with := func(m map[string]float64, more map[string]float64) map[string]float64 {
		maps.Copy(m, more)
		return m
	}
	for name, tc := range map[string]struct {
		counters string
		want     map[string]float64
	}{
		"irdma": {
			`hw_counters/ip4InOctets=1000 hw_counters/ip6InOctets=200 hw_counters/ip4OutOctets=3000
				hw_counters/ip6OutOctets=400 hw_counters/ip4InPkts=10 hw_counters/ip6InPkts=2 hw_counters/ip4OutPkts=30
				hw_counters/ip6OutPkts=4 hw_counters/cnpSent=7 hw_counters/RetransSegs=8 hw_counters/InRdmaWrites=9`,
			with(traffic(1200, 3400, 12, 34), map[string]float64{
				"rdma_events cnpSent": 7, "rdma_events RetransSegs": 8, "rdma_operations InRdmaWrites": 9,
			}),
		},
		"i40iw": {
			`hw_counters/ip4InOctets=1000 hw_counters/ip4OutOctets=3000 hw_counters/ip4InPkts=10
				hw_counters/ip4OutPkts=30 hw_counters/tcpRetransSegs=5 hw_counters/iwInRdmaReads=6`,
			with(traffic(1000, 3000, 10, 30), map[string]float64{
				"rdma_events tcpRetransSegs": 5, "rdma_operations iwInRdmaReads": 6,
			}),
		},
		"bnxt_re": {
			`hw_counters/rx_bytes=1 hw_counters/tx_bytes=2 hw_counters/rx_pkts=3 hw_counters/tx_pkts=4
				hw_counters/active_qps=9 hw_counters/oos_drop_count=5 hw_counters/rx_read_req=6`,
			with(traffic(1, 2, 3, 4), map[string]float64{"rdma_events oos_drop_count": 5, "rdma_operations rx_read_req": 6}),
		},
		"mana": {
			`hw_counters/rx_bytes=1 hw_counters/tx_bytes=2 hw_counters/rx_packets=3 hw_counters/tx_packets=4
				hw_counters/requester_timeout=5 hw_counters/current_rate=100`,
			with(traffic(1, 2, 3, 4), map[string]float64{"rdma_events requester_timeout": 5}),
		},
		"erdma": {
			`hw_counters/rx_bytes_cnt=1 hw_counters/tx_bytes_cnt=2 hw_counters/rx_packets_cnt=3
				hw_counters/tx_packets_cnt=4 hw_counters/rx_bps_limit_drop_cnt=5 hw_counters/tx_reqs_cnt=6`,
			with(traffic(1, 2, 3, 4), map[string]float64{
				"rdma_events rx_bps_limit_drop_cnt": 5, "rdma_operations tx_reqs_cnt": 6,
			}),
		},
		"hfi1": {
			`counters/port_rcv_data=25 counters/port_xmit_data=50 counters/port_rcv_packets=3
				counters/port_xmit_packets=4 counters/port_xmit_wait=5`,
			with(traffic(100, 200, 3, 4), map[string]float64{"rdma_events port_xmit_wait": 5}),
		},
		"mlx5 with both": {
			`counters/port_rcv_data=25 counters/port_xmit_data=50 counters/port_rcv_packets=3
				counters/port_xmit_packets=4 counters/unicast_rcv_packets=3 hw_counters/rx_bytes=9 hw_counters/ip4InOctets=9
				hw_counters/req_cqe_error=3481 hw_counters/resp_cqe_error=8109`,
			with(traffic(100, 200, 3, 4), map[string]float64{
				"rdma_events req_cqe_error": 3481, "rdma_events resp_cqe_error": 8109,
				"rdma_operations unicast_rcv_packets": 3,
			}),
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t, portTree("dev_0", tc.counters))
			m.sample()
			m.Later(slowEvery)
			expect.Equal(t, "", tc.want, drivertest.Values(m.sample()["dev_0"]))
		})
	}
}

// No name is in two tables.
func TestTables(t *testing.T) {
	seen := map[string]bool{}
	for name := range strings.FieldsSeq(hardwareEvents + " " + hardwareOperations) {
		expect.That(t, !seen[name], "%s is there twice", name)
		seen[name] = true
	}
	for path, m := range newTables() {
		name := path[strings.Index(path, "/")+1:]
		if m.rank > rankSpecification && seen[name] {
			t.Errorf("%s is traffic, and an event", name)
		}
	}
}
