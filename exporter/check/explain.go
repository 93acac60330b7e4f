package check

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"syscall"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// socketTrouble opens a connection to a unix socket and returns a finding with the reason if that
// fails, and an empty finding otherwise. gRPC's own error contains only a text.
func socketTrouble(ctx context.Context, socket string) Finding {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", socket)
	switch {
	case err == nil:
		_ = conn.Close()
		return Finding{}
	case errors.Is(err, fs.ErrNotExist):
		return Finding{Text: socket + ": there is no such socket"}
	case errors.Is(err, fs.ErrPermission):
		return Finding{Text: socket + ": permission denied on the socket", Do: "run as root, which owns the socket"}
	case errors.Is(err, syscall.ECONNREFUSED):
		return Finding{Text: socket + ": nothing listens on the socket", Do: "check whether the kubelet runs"}
	default:
		return Finding{Text: fmt.Sprintf("%s: %v", socket, err)}
	}
}

// callTrouble returns the reason why a call failed on a socket that accepts connections.
func callTrouble(socket string, err error) Finding {
	switch driver.ReasonOf(err) {
	case driver.ReasonTimeout:
		return Finding{Text: socket + ": no answer in time", Do: "see the kubelet's log: it accepts connections only"}
	case driver.ReasonUnimplemented:
		return Finding{Text: socket + ": this kubelet does not serve it"}
	case driver.ReasonRateLimited:
		return Finding{
			Text: socket + ": the kubelet's rate limit",
			Do:   "try again later: another client on the node sends too many requests",
		}
	case driver.ReasonTooLarge:
		return Finding{Text: socket + ": the answer has more than " + present.Bytes(podresources.MaxAnswer)}
	case driver.ReasonMalformed:
		return Finding{Text: socket + ": the answer can't be decoded", Do: "check whether this is the kubelet's socket"}
	default:
		return Finding{Text: fmt.Sprintf("%s: %v", socket, err)}
	}
}

// apiTrouble returns the reason why a request to the API server failed.
func apiTrouble(source string, err error) Finding {
	switch driver.ReasonOf(err) {
	case driver.ReasonForbidden:
		return Finding{
			Text: "forbidden by the API server",
			Do:   fmt.Sprintf("give the service account the right for %s: see the ClusterRole of the chart", source),
		}
	case driver.ReasonUnauthorized:
		return Finding{Text: "the API server does not know the token", Do: "check the service account, or --kubeconfig"}
	case driver.ReasonUnavailable:
		return Finding{
			Text: "the API server can't be reached",
			Do:   "check network policies and --kubeconfig; with --kube=off the API server is not needed",
		}
	case driver.ReasonTimeout:
		return Finding{Text: "no answer from the API server in time"}
	default:
		return Finding{Text: err.Error()}
	}
}
