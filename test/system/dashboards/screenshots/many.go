package main

import (
	"fmt"
	"net/http"
	"strings"
	"time"
)

// devicesOfNode is how many devices each of many nodes has.
const devicesOfNode = 8

// serveMany serves what the map of the cluster reads of many nodes: the states, models and holders
// of their devices.
func serveMany(listen string, nodes int) error {
	var out strings.Builder
	for n := range nodes {
		for d := range devicesOfNode {
			id := fmt.Sprintf(`driver="gpu.example.com",pool="node-%[1]d",device="gpu-%[2]d",node="node-%04[1]d"`, n, d)
			state := "active"
			switch {
			case n%97 == 5:
				state = "unhealthy"
			case (n*devicesOfNode+d)%11 == 0:
				state = "idle"
			case (n+d)%13 == 0:
				state = "free"
			}
			_, _ = fmt.Fprintf(&out, "device:dra_state:info{%s,state=%q} 1\n", id, state)
			_, _ = fmt.Fprintf(&out, "device:dra_model:info{%s,model=%q} 1\n", id, "LATEST-GPU-MODEL")
			if state != "free" {
				const held = `dra_claim_device_info{%s,namespace="team-%d",resourceclaim_name="job-%d",admin_access="false"} 1`
				_, _ = fmt.Fprintf(&out, held+"\n", id, n%7, n)
			}
		}
	}
	body := []byte(out.String())
	server := http.Server{Addr: listen, ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(
		func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/plain; version=0.0.4")
			_, _ = w.Write(body)
		},
	)}
	return server.ListenAndServe()
}
