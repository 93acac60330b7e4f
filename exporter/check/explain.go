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

// noSocket is the trouble of a socket that does not exist.
const noSocket = "there is no such socket"

// socketTrouble returns the reason why a call on a unix socket failed: that no connection can be
// opened, which gRPC's own error has only as a text, or what the error says.
func socketTrouble(ctx context.Context, socket string, failed error) Finding {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", socket)
	text, do := "", ""
	switch {
	case err == nil:
		_ = conn.Close()
		text, do = callTrouble(failed)
	case errors.Is(err, fs.ErrNotExist):
		text = noSocket
	case errors.Is(err, fs.ErrPermission):
		text, do = "permission denied on the socket", "run as root, which owns the socket"
	case errors.Is(err, syscall.ECONNREFUSED):
		text, do = "nothing listens on the socket", "check whether the kubelet runs"
	default:
		text = err.Error()
	}
	return Finding{Text: socket + ": " + text, Do: do}
}

// callTrouble returns the reason why a call failed on a socket that accepts connections.
func callTrouble(err error) (text, do string) {
	switch driver.ReasonOf(err) {
	case driver.ReasonTimeout:
		return "no answer in time", "see the kubelet's log: it accepts connections only"
	case driver.ReasonUnimplemented:
		return "this kubelet does not serve it", ""
	case driver.ReasonRateLimited:
		return "the kubelet's rate limit", "try again later: another client on the node sends too many requests"
	case driver.ReasonTooLarge:
		return "the answer has more than " + present.Bytes(podresources.MaxAnswer), ""
	case driver.ReasonMalformed:
		return "the answer can't be decoded", "check whether this is the kubelet's socket"
	default:
		return err.Error(), ""
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
