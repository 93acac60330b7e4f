package web

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/dra-exporter/dra-exporter/driver"
)

// forBrowsers refuses requests that a page of another site makes a browser send: requests to a name
// that another site may own and resolve to this server (DNS rebinding), and requests with another
// origin. Links from other sites work.
func (c Config) forBrowsers(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case !c.knows(r.Host):
			c.refuseBrowser(w, http.StatusMisdirectedRequest,
				"not a name of this server: add it to --web.host, or use its address\n")
		case !c.isOwnOrigin(r):
			c.refuseBrowser(w, http.StatusForbidden, "requests of other sites are refused\n")
		default:
			next.ServeHTTP(w, r)
		}
	})
}

func (c Config) refuseBrowser(w http.ResponseWriter, status int, why string) {
	c.Rejected(driver.Rejection{Input: "requests", Reason: driver.ReasonForbidden, Count: 1})
	respond(w, status, why)
}

// knows reports whether the host of a request certainly means this server: an address, a name
// without a dot, a name below a domain that public DNS does not have, the node's name, or one of
// Hosts.
func (c Config) knows(host string) bool {
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	name = strings.ToLower(strings.TrimSuffix(strings.Trim(name, "[]"), "."))
	if address, _, _ := strings.Cut(name, "%"); address != "" {
		if _, err := netip.ParseAddr(address); err == nil {
			return true
		}
	}
	private := func(domain string) bool { return strings.HasSuffix(name, domain) }
	return !strings.Contains(name, ".") || name == strings.ToLower(c.Node) || slices.Contains(c.Hosts, name) ||
		slices.ContainsFunc([]string{".localhost", ".svc", ".cluster.local", ".internal"}, private)
}

// isOwnOrigin reports whether a request comes from a page of this server, or from no page.
func (c Config) isOwnOrigin(r *http.Request) bool {
	if r.Header.Get("Sec-Fetch-Site") == "cross-site" && r.Header.Get("Sec-Fetch-Mode") != "navigate" {
		return false
	}
	origin := r.Header.Get("Origin")
	if origin == "" {
		return true
	}
	u, err := url.Parse(origin)
	return err == nil && strings.EqualFold(u.Host, r.Host)
}
