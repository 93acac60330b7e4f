package check

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"syscall"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// socketTrouble says why nothing answers on a unix socket, from the kernel's answer to a connection
// of its own: gRPC has its text alone. It returns an empty finding if the socket accepts.
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
		return Finding{Text: socket + ": permission denied on the socket", Do: "run as root: the socket belongs to it"}
	case errors.Is(err, syscall.ECONNREFUSED):
		return Finding{Text: socket + ": nothing listens on the socket", Do: "see whether the kubelet runs"}
	default:
		return Finding{Text: fmt.Sprintf("%s: %v", socket, err)}
	}
}

// callTrouble says why a call of a socket that accepts connections failed.
func callTrouble(socket string, err error) Finding {
	switch driver.ReasonOf(err) {
	case driver.ReasonTimeout:
		return Finding{Text: socket + ": no answer in time", Do: "see the kubelet's log: it accepts connections, and hangs"}
	case driver.ReasonUnimplemented:
		return Finding{Text: socket + ": this kubelet does not serve it"}
	case driver.ReasonRateLimited:
		return Finding{
			Text: socket + ": the kubelet's rate limit",
			Do:   "ask again later: something else on the node asks too often",
		}
	case driver.ReasonTooLarge:
		return Finding{Text: fmt.Sprintf("%s: the answer has more than %d MiB", socket, podresources.MaxAnswer>>20)}
	case driver.ReasonMalformed:
		return Finding{Text: socket + ": the answer can't be decoded", Do: "see whether it is the kubelet's socket"}
	default:
		return Finding{Text: fmt.Sprintf("%s: %v", socket, err)}
	}
}

// apiTrouble says why a request to the API server failed.
func apiTrouble(source string, err error) Finding {
	switch driver.ReasonOf(err) {
	case driver.ReasonForbidden:
		return Finding{
			Text: "forbidden by the API server",
			Do:   fmt.Sprintf("give the service account the right for %s: see the ClusterRole of the chart", source),
		}
	case driver.ReasonUnauthorized:
		return Finding{Text: "the API server does not know the token", Do: "see the service account, or --kubeconfig"}
	case driver.ReasonUnavailable:
		return Finding{
			Text: "the API server can't be reached",
			Do:   "see network policies and --kubeconfig; --kube=off does without it",
		}
	case driver.ReasonTimeout:
		return Finding{Text: "no answer of the API server in time"}
	default:
		return Finding{Text: err.Error()}
	}
}
