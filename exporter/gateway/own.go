package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/exporter/web/decode"
)

// holder is a claim or a pod.
type holder struct{ Kind, Namespace, Name string }

func (h holder) String() string { return h.Namespace + "/" + h.Name }

// ownPage is the page of a claim or pod for users who may not see everything of its node.
type ownPage struct {
	present.Detail
	Grafana string
}

// serveOwn serves a claim or pod to users who may see it, but not everything of its node: the
// exporter leaves out what belongs to others.
func (g *gateway) serveOwn(w http.ResponseWriter, r *http.Request, node string, of holder) {
	address, _, err := g.exporters.address(r.Context(), node)
	if err == nil {
		query := url.Values{of.Kind: {of.String()}, "own": {""}}
		err = g.withDetail(r.Context(), address, query, func(d present.Detail) error {
			if !d.Own {
				return fmt.Errorf("%w: details of more than the user may see", errUnexpected)
			}
			d.Node = node
			if strings.Contains(r.Header.Get("Accept"), "application/json") {
				w.Header().Set("Content-Type", "application/json")
				_ = json.NewEncoder(w).Encode(d) // fails if the client is gone
				return nil
			}
			page := ownPage{Detail: d}
			if g.Grafana != "" {
				page.Grafana = g.Grafana + "/d/dra-claim?" + url.Values{
					"var-node": {node}, "var-namespace": {of.Namespace}, "var-" + of.Kind: {of.Name},
				}.Encode()
			}
			g.pages.serve(w, r, "own.html", "", func() any { return page })
			return nil
		})
	}
	if err != nil {
		g.respondFailure(w, node, err)
	}
}

// withDetail asks an exporter for details, which use returns before they are forgotten.
func (g *gateway) withDetail(
	ctx context.Context, address string, query url.Values, use func(present.Detail) error,
) error {
	memory := g.memory.Open(maxPage)
	defer memory.Close()
	query.Set("json", "")
	var d present.Detail
	_, err := g.ask(ctx, address, "/page/detail?"+query.Encode(), "", func(body io.Reader) (err error) {
		d, err = decode.Detail(body, memory)
		return err
	})
	if err != nil {
		return err
	}
	return use(d)
}
