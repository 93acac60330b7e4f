// Package client identifies the clients of an HTTP server, so that each of them can be limited.
package client

import "net/netip"

// ID identifies a client: an IPv4 address, or the /64 of an IPv6 address, because one host can have
// all addresses of a /64. All peers without an IP address are one client, the zero value.
type ID struct{ network netip.Prefix }

// Of returns the client of a remote address of the form ADDRESS:PORT.
func Of(remote string) ID {
	peer, err := netip.ParseAddrPort(remote)
	if err != nil {
		return ID{}
	}
	address, bits := peer.Addr().Unmap().WithZone(""), 32
	if address.Is6() {
		bits = 64
	}
	return ID{netip.PrefixFrom(address, bits).Masked()}
}
