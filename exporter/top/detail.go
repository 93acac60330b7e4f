package top

import (
	"cmp"
	"context"
	"io"
	"net/url"

	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/exporter/web/decode"
)

// Subject is the subject of details.
type Subject struct {
	View View
	Name string // DRIVER/POOL/DEVICE or DEVICE, NAMESPACE/NAME, or the ID of an incident

	from string // the exporter; "": any
}

// detail gets the details of a subject as lines; none if the exporter does not have the subject.
func (n Node) detail(ctx context.Context, of Subject) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	kind := map[View]string{ViewClaims: "claim", ViewPods: "pod", ViewIncidents: "incident"}[of.View]
	query := url.Values{cmp.Or(kind, "device"): {of.Name}, "json": {""}}
	d, err := fetch(ctx, n, detailPath, query, func(r io.Reader) (present.Detail, error) {
		return decode.Detail(r, newMemory().Open(maxNode))
	})
	if err != nil || len(d.Sections) == 0 {
		return nil, err
	}
	return d.Lines(), nil
}
