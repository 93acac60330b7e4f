package grafana

// network is the dashboard of network and RDMA devices, by claim.
func network() Board {
	return Board{
		UID: "dra-network", Title: "DRA / Network and RDMA", search: "node",
		uses: []string{"cluster", "node", "namespace", "claim", "driver"}, one: []string{"node"},
		Description: "Traffic of claims on network and RDMA devices, and drops and errors of the devices.",
		Rows:        []Row{{"Claims", networkClaims()}, {"Interfaces", networkDevices()}},
	}
}

func networkClaims() []Panel {
	rate := func(direction string) string {
		return `sum by (cluster, namespace, resourceclaim_name, link) (max by (<claim device>, link) ` +
			`(rate(dra_claim_io_bytes_total{<of claims>, link=~"network|rdma", direction="` + direction +
			`"}[$__rate_interval])))`
	}
	sum := func(direction string) string {
		return `sum by (<claim driver>) (max by (<claim device>, link) (increase(dra_claim_io_bytes_total{<of claims>, ` +
			`link=~"network|rdma", direction="` + direction + `"}[$__range])))`
	}
	const none = "no claim has a network device"
	return []Panel{
		line("Received by claim", "Bytes per second received for the claim by its network and RDMA devices.",
			"binBps", none, "{{namespace}}/{{resourceclaim_name}} {{link}}", rate("receive")).total(),
		line("Transmitted by claim", "Bytes per second transmitted for the claim by its network and RDMA devices.",
			"binBps", none, "{{namespace}}/{{resourceclaim_name}} {{link}}", rate("transmit")).total(),
		ranked("Received", 0, "Traffic in the time shown", "Bytes received and transmitted by each claim, and the "+
			"current rate of both directions together.", none, 24, 6, columnOf("Received", "bytes", sum("receive")),
			columnOf("Transmitted", "bytes", sum("transmit")),
			columnOf("Now", "binBps", `sum by (<claim driver>) (max by (<claim device>, link, direction) `+
				`(rate(dra_claim_io_bytes_total{<of claims>, link=~"network|rdma"}[$__rate_interval])))`)).total(),
		tableOf("Idle network claims", "Claims with network devices whose traffic was below the idle threshold during "+
			"the idle window.", "none is known to be idle", 24, 5,
			columnOf("Traffic", "binBps", `sum by (<claim device>) (max by (<claim device>, link, direction) `+
				`(rate(dra_claim_io_bytes_total{link=~"network|rdma", <of claims>}[$__rate_interval]))) `+
				`and on (<claim device>) (claim_device:dra_idle:bool == 1)`)),
	}
}

func networkDevices() []Panel {
	const none = "no device reports it"
	panels := []Panel{
		line("Packets", "Packets per second of each device.", "pps", none, "{{device}} {{node}} {{direction}}",
			`max by (<device>, direction) (rate(dra_device_network_packets_total{<of devices>}[$__rate_interval]))`),
		line("Drops", "Packets per second that each device dropped.", "pps", none, "{{device}} {{node}} {{direction}}",
			`max by (<device>, direction) (rate(dra_device_network_drops_total{<of devices>}[$__rate_interval]))`),
		line("Packet errors", "Packets per second that each device received or transmitted with errors.", "pps", none,
			"{{device}} {{node}} {{direction}}",
			`max by (<device>, direction) (rate(dra_device_network_errors_total{<of devices>}[$__rate_interval]))`),
		line("Links that went down", "Times per second that a link went down.", "cps", "no source reports it",
			"{{device}} {{node}}", `sum by (<device>) (max by (<device>, code) (rate(dra_device_errors_total{<of devices>, `+
				`kind="link_down"}[$__rate_interval])))`),
		line("Traffic of all interfaces", "Bytes per second of each network and RDMA device, whether claimed or not.",
			"binBps", none, "{{device}} {{node}} {{direction}}",
			`sum by (<device>, direction) (max by (<device>, link, direction) (
				rate(dra_device_io_bytes_total{<of devices>, link=~"network|rdma"}[$__rate_interval])))`),
		line("Unattributed traffic", "Bytes per second of network and RDMA devices while no claim holds them.", "binBps",
			none, "{{device}} {{node}}", unattributed(
				`sum by (<device>) (max by (<device>, link, direction) (
				rate(dra_device_io_bytes_total{<of devices>, link=~"network|rdma"}[$__rate_interval])))`,
				`max by (<claim device>, link, direction) (
				rate(dra_claim_io_bytes_total{<of devices>, link=~"network|rdma"}[$__rate_interval]))`,
				`max by (<pod device>, link, direction) (
				rate(dra_pod_unclaimed_io_bytes_total{<of devices>, link=~"network|rdma"}[$__rate_interval]))`)),
	}
	return append(panels, rdmaDevices()...)
}

// rdmaDevices are the panels of the links of RDMA devices.
func rdmaDevices() []Panel {
	const none = "no device has RDMA"
	return []Panel{
		line("Ports that are down", "Ports of RDMA devices whose link is not up.", "none", none, "{{device}} {{node}}",
			`sum by (<device>) (max by (<device>, link, port) (dra_device_link_up{<of devices>}) == bool 0)`).optional(),
		line("Port errors", "Errors per second of the ports of RDMA devices, by the names of the kernel's counters.",
			"cps", none, "{{device}} {{node}} {{code}}",
			`max by (<device>, code) (rate(dra_device_errors_total{<of devices>, kind="port"}[$__rate_interval]))`).optional(),
		line("RDMA congestion and retransmissions", "Events per second, by the names of the kernel's counters.", "cps",
			none, "{{device}} {{node}} {{event}}", `max by (<device>, event) `+
				`(rate(dra_device_rdma_events_total{<of devices>, event!~"port_xmit_wait|retrans_bytes"}[$__rate_interval]))`).
			optional(),
	}
}
