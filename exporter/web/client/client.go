// Package client tells the senders of requests apart, so that what one of them does can be bounded.
package client

import "net/netip"

// ID is who sends requests, as far as the network shows it: an IPv4 address, or the /64 of an IPv6
// address, since one host can have all of its addresses. Peers without an IP address are one
// client, the zero value.
type ID struct{ network netip.Prefix }

// Of returns the client of a remote address, which is ADDRESS:PORT.
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
