package scrape

// prometheus/node_exporter, which reads the kernel for each scrape. The label that identifies the
// hardware, by collector:
//   - netdev, and ethtool (off by default): the network interface.
//   - infiniband: the RDMA device. Only port 1 is used, because a sum over ports would fall when a
//     port disappears.
//   - hwmon: the chip, whose name ends with the PCI address of its device.
//   - drm (off by default; only AMD GPUs): the card.
const presetNode = `
match: {label: device, hardware: netdev}
refresh: 0s
metrics:
- {name: node_network_receive_bytes_total, quantity: io_bytes, labels: {link: network, direction: receive}}
- {name: node_network_transmit_bytes_total, quantity: io_bytes, labels: {link: network, direction: transmit}}
- {name: node_network_receive_packets_total, quantity: network_packets, labels: {direction: receive}}
- {name: node_network_transmit_packets_total, quantity: network_packets, labels: {direction: transmit}}
- {name: node_network_receive_errs_total, quantity: network_errors, labels: {direction: receive}}
- {name: node_network_transmit_errs_total, quantity: network_errors, labels: {direction: transmit}}
- {name: node_network_receive_drop_total, quantity: network_drops, labels: {direction: receive}}
- {name: node_network_transmit_drop_total, quantity: network_drops, labels: {direction: transmit}}
- {name: node_ethtool_link_down_events_phy, quantity: errors, labels: {kind: link_down, code: phy}}
- {name: node_infiniband_port_data_received_bytes_total, quantity: io_bytes,
   labels: {link: rdma, direction: receive}, where: {port: "1"}, match: &port {label: device, hardware: rdma}}
- {name: node_infiniband_port_data_transmitted_bytes_total, quantity: io_bytes,
   labels: {link: rdma, direction: transmit}, where: {port: "1"}, match: *port}
- {name: node_infiniband_link_downed_total, quantity: errors,
   labels: {kind: link_down}, where: {port: "1"}, match: *port}
- {name: node_infiniband_symbol_error_total, quantity: errors,
   labels: {kind: port, code: symbol_error}, where: {port: "1"}, match: *port}
- {name: node_infiniband_link_error_recovery_total, quantity: errors,
   labels: {kind: port, code: link_error_recovery}, where: {port: "1"}, match: *port}
- {name: node_infiniband_port_errors_received_total, quantity: errors,
   labels: {kind: port, code: port_rcv_errors}, where: {port: "1"}, match: *port}
- {name: node_infiniband_port_receive_remote_physical_errors_total, quantity: errors,
   labels: {kind: port, code: port_rcv_remote_physical_errors}, where: {port: "1"}, match: *port}
- {name: node_infiniband_port_receive_switch_relay_errors_total, quantity: errors,
   labels: {kind: port, code: port_rcv_switch_relay_errors}, where: {port: "1"}, match: *port}
- {name: node_infiniband_port_constraint_errors_transmitted_total, quantity: errors,
   labels: {kind: port, code: port_xmit_constraint_errors}, where: {port: "1"}, match: *port}
- {name: node_infiniband_port_constraint_errors_received_total, quantity: errors,
   labels: {kind: port, code: port_rcv_constraint_errors}, where: {port: "1"}, match: *port}
- {name: node_infiniband_local_link_integrity_errors_total, quantity: errors,
   labels: {kind: port, code: local_link_integrity_errors}, where: {port: "1"}, match: *port}
- {name: node_infiniband_excessive_buffer_overrun_errors_total, quantity: errors,
   labels: {kind: port, code: excessive_buffer_overrun_errors}, where: {port: "1"}, match: *port}
- {name: node_infiniband_port_discards_transmitted_total, quantity: rdma_events,
   labels: {event: port_xmit_discards}, where: {port: "1"}, match: *port}
- {name: node_infiniband_port_transmit_wait_total, quantity: rdma_events,
   labels: {event: port_xmit_wait}, where: {port: "1"}, match: *port}
- {name: node_infiniband_vl15_dropped_total, quantity: rdma_events,
   labels: {event: VL15_dropped}, where: {port: "1"}, match: *port}
- {name: node_infiniband_out_of_buffer_drops_total, quantity: rdma_events,
   labels: {event: out_of_buffer}, where: {port: "1"}, match: *port}
- {name: node_infiniband_out_of_sequence_packets_received_total, quantity: rdma_events,
   labels: {event: out_of_sequence}, where: {port: "1"}, match: *port}
- {name: node_infiniband_duplicate_requests_packets_total, quantity: rdma_events,
   labels: {event: duplicate_request}, where: {port: "1"}, match: *port}
- {name: node_infiniband_rnr_nak_retry_packets_received_total, quantity: rdma_events,
   labels: {event: rnr_nak_retry_err}, where: {port: "1"}, match: *port}
- {name: node_infiniband_packet_sequence_errors_total, quantity: rdma_events,
   labels: {event: packet_seq_err}, where: {port: "1"}, match: *port}
- {name: node_infiniband_implied_nak_seq_errors_total, quantity: rdma_events,
   labels: {event: implied_nak_seq_err}, where: {port: "1"}, match: *port}
- {name: node_infiniband_local_ack_timeout_errors_total, quantity: rdma_events,
   labels: {event: local_ack_timeout_err}, where: {port: "1"}, match: *port}
- {name: node_infiniband_np_cnp_packets_sent_total, quantity: rdma_events,
   labels: {event: np_cnp_sent}, where: {port: "1"}, match: *port}
- {name: node_infiniband_np_ecn_marked_roce_packets_received_total, quantity: rdma_events,
   labels: {event: np_ecn_marked_roce_packets}, where: {port: "1"}, match: *port}
- {name: node_infiniband_rp_cnp_packets_handled_total, quantity: rdma_events,
   labels: {event: rp_cnp_handled}, where: {port: "1"}, match: *port}
- {name: node_infiniband_rp_cnp_ignored_packets_received_total, quantity: rdma_events,
   labels: {event: rp_cnp_ignored}, where: {port: "1"}, match: *port}
- {name: node_infiniband_rx_icrc_encapsulated_errors_total, quantity: rdma_events,
   labels: {event: rx_icrc_encapsulated}, where: {port: "1"}, match: *port}
- {name: node_infiniband_roce_adp_retransmits_total, quantity: rdma_events,
   labels: {event: roce_adp_retrans}, where: {port: "1"}, match: *port}
- {name: node_infiniband_roce_adp_retransmits_timeout_total, quantity: rdma_events,
   labels: {event: roce_adp_retrans_to}, where: {port: "1"}, match: *port}
- {name: node_infiniband_roce_slow_restart_used_total, quantity: rdma_events,
   labels: {event: roce_slow_restart}, where: {port: "1"}, match: *port}
- {name: node_infiniband_roce_slow_restart_cnps_total, quantity: rdma_events,
   labels: {event: roce_slow_restart_cnps}, where: {port: "1"}, match: *port}
- {name: node_infiniband_roce_slow_restart_total, quantity: rdma_events,
   labels: {event: roce_slow_restart_trans}, where: {port: "1"}, match: *port}
- {name: node_hwmon_temp_celsius, quantity: temperature, labels_from: {sensor: sensor}, match: &chip
   {label: chip, hardware: pci, pattern: "(?:.*_)?([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}_[0-7])"}}
- {name: node_hwmon_power_average_watt, quantity: power, where: {sensor: power1}, match: *chip}
- {name: node_hwmon_power_watt, quantity: power, where: {sensor: power1}, match: *chip}
- {name: node_hwmon_energy_joule_total, quantity: energy, where: {sensor: energy1}, match: *chip}
- {name: node_hwmon_freq_freq_mhz, quantity: clock, scale: 1e6, labels_from: {domain: sensor}, match: *chip}
- {name: node_hwmon_in_volts, quantity: voltage, labels_from: {domain: sensor}, match: *chip}
- {name: node_hwmon_pwm, quantity: fan_speed, scale: 0.00392156862745098, where: {sensor: pwm1}, match: *chip}
- {name: node_drm_gpu_busy_percent, quantity: utilization, scale: 0.01,
   match: &card {label: card, hardware: node, prefix: /dev/dri/}}
- {name: node_drm_memory_vram_used_bytes, quantity: memory_used, match: *card}
- {name: node_drm_memory_vram_size_bytes, quantity: memory_capacity, match: *card}
`
