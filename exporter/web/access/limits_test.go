package access

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dra-exporter/dra-exporter/test/expect"
)

// flood sends bad tokens for some seconds, at a rate per second, from a number of clients in turn.
func flood(g *gated, clients, seconds, each int, token func(i int) string) map[int]int {
	counts := map[int]int{}
	for i := range seconds * each {
		remote := fmt.Sprintf("198.51.%d.%d:1234", i%clients/256, i%clients%256)
		counts[g.statusFrom(remote, "/metrics", "Bearer "+token(i))]++
		if (i+1)%each == 0 {
			time.Sleep(time.Second)
		}
	}
	return counts
}

func stranger(i int) string { return fmt.Sprint("stranger-", i) }

// Unknown tokens are limited per client and in total. A limited request is not reported as an
// outcome of the API server.
func TestFlood(t *testing.T) {
	for _, test := range []struct{ clients, want int }{
		{1, strangerBurst + 50/5},
		{1000, strangersBurst + 50*strangersRate},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &server{}
			g := newGated(s)
			counts := flood(g, test.clients, 51, 100, stranger)
			expect.That(t, counts[401] == test.want && counts[503] == 51*100-test.want && s.asked() == test.want,
				"%d clients got %v, want %d times 401 and else 503", test.clients, counts, test.want)
			expect.That(t, len(g.outcomes) == test.want && g.limited == counts[503],
				"%d outcomes, %d limited", len(g.outcomes), g.limited)
		})
	}
}

// A token that was allowed before, and the token that replaces it, are not delayed by others: many
// clients, clients with the same address, or clients elsewhere that claim the same subject.
func TestRenewalInAFlood(t *testing.T) {
	for name, flooding := range map[string]func(g *gated){
		"many clients": func(g *gated) { flood(g, 500, 1, 500, stranger) },
		"same address": func(g *gated) {
			for i := range 500 {
				g.status("/metrics", "Bearer "+stranger(i))
			}
		},
		"forged subject": func(g *gated) {
			flood(g, 500, 1, 500, func(i int) string { return jwt("alice", fmt.Sprint("bad", i)) })
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			g := newGated(&server{})
			first := "Bearer " + jwt("alice", "good")
			if status := g.status("/metrics", first); status != 200 {
				t.Fatalf("%s: status %d before", name, status)
			}
			for renewal := range 10 {
				time.Sleep(allowedFor)
				flooding(g)
				for _, token := range []string{first, fmt.Sprint("Bearer ", jwt("alice", "good"), renewal)} {
					expect.Is(t, g.status("/metrics", token), 200, "%s: renewal %d: status", name, renewal)
				}
			}
		})
	}
}

// A good token of a new client is allowed while few other clients send bad ones. A sender that was
// allowed has a limit, too.
func TestNewClientInAFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGated(&server{})
		flood(g, 20, 60, 90, stranger)
		expect.Is(t, g.status("/metrics", "Bearer "+jwt("alice", "good")), 200, "status")
		counts := map[int]int{}
		for i := range 100 {
			counts[g.status("/metrics", "Bearer "+jwt("alice", fmt.Sprint("bad", i)))]++
		}
		expect.That(t, counts[401] == knownBurst, "the sender got %v, want %d times 401", counts, knownBurst)
	})
}

// Senders are distinguished by the subject that their tokens claim. Other tokens have no subject.
func TestSenderOf(t *testing.T) {
	alice := senderOf(gateClient, jwt("alice", "a"))
	if alice != senderOf("192.0.2.1:9", jwt("alice", "b")) || alice == senderOf(gateClient, jwt("bob", "a")) ||
		alice == senderOf("192.0.2.2:1234", jwt("alice", "a")) {
		t.Error("senders are not told apart by client and subject")
	}
	for _, token := range []string{"opaque", "a.b", "a.!.c", "a.bm90IGpzb24.c", "a.b.c.d", ".."} {
		expect.That(t, senderOf(gateClient, token) == senderOf(gateClient, "other"), "%q has a subject", token)
	}
}
