package client

import "testing"

// Ports, forms of an address and the rest of an IPv6 /64 make no other client.
func TestOf(t *testing.T) {
	groups := [][]string{
		{"192.0.2.1:1", "192.0.2.1:65535", "[::ffff:192.0.2.1]:1"},
		{"192.0.2.2:1"},
		{"[2001:db8::1]:1", "[2001:db8::ffff:0:0:1]:2"},
		{"[2001:db8:0:1::1]:1"},
		{"[fe80::1%eth0]:1", "[fe80::2%eth1]:1"},
		{"", "@", "host(2):1"},
	}
	for i, group := range groups {
		for _, remote := range group {
			for j, other := range groups {
				if got := Of(remote) == Of(other[0]); got != (i == j) {
					t.Errorf("%q and %q are the same client: %v", remote, other[0], got)
				}
			}
		}
	}
}
