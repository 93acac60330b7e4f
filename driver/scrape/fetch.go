package scrape

import (
	"compress/flate"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"

	"github.com/prometheus/common/config"

	"github.com/dra-exporter/dra-exporter/driver"
)

// maxBody is the maximum size of a response, both compressed and uncompressed, in bytes. 64 GPUs
// with 40 metrics take about 1 MB.
const maxBody = 16 << 20

// protobufType is the media type of Prometheus's protobuf format.
const protobufType = "application/vnd.google.protobuf"

// accept prefers the text format, because OpenMetrics requires the suffix _total for counters:
// exporters rename counters in it, and the configured names would not match.
const accept = "text/plain;version=0.0.4;q=1,application/openmetrics-text;version=1.0.0;q=0.5," +
	protobufType + ";proto=io.prometheus.client.MetricFamily;encoding=delimited;q=0.2,*/*;q=0.1"

// errTooLarge is the error for a response of more than maxBody bytes.
var errTooLarge = driver.WithReason(driver.ReasonTooLarge, fmt.Errorf("response is larger than %d bytes", maxBody))

// statusReason returns the reason for an HTTP status that is an error.
func statusReason(status int) driver.Reason {
	switch status {
	case http.StatusUnauthorized:
		return driver.ReasonUnauthorized
	case http.StatusForbidden:
		return driver.ReasonForbidden
	case http.StatusNotFound:
		return driver.ReasonAbsent
	case http.StatusTooManyRequests:
		return driver.ReasonRateLimited
	default:
		return driver.ReasonServerError
	}
}

// newClient returns a client that keeps no connection, and so no goroutine, between requests.
func newClient(e Endpoint) (*http.Client, error) {
	return config.NewClientFromConfig(e.Client, "scrape/"+e.Name,
		config.WithKeepAlivesDisabled(), config.WithHTTP2Disabled(), config.WithUserAgent("dra-exporter"))
}

// fetch requests the exposition and passes it to the visitor. After an error, what the visitor has
// received must not be used. fetch drops the connection if the response is too large.
func fetch(ctx context.Context, client *http.Client, url string, v visitor) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	request.Header.Set("Accept", accept)
	request.Header.Set("Accept-Encoding", "gzip")
	response, err := client.Do(request)
	if err != nil {
		return withoutURL(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return driver.WithReason(statusReason(response.StatusCode), fmt.Errorf("server returned %s", response.Status))
	}
	return read(response, v)
}

// withoutURL returns an error of net/http without its method and URL, which the caller adds.
func withoutURL(err error) error {
	type wrapper interface{ Unwrap() error }
	if w, ok := err.(wrapper); ok {
		return w.Unwrap()
	}
	return err
}

// read parses the body of a response.
func read(response *http.Response, v visitor) error {
	media, err := mediaType(response.Header.Get("Content-Type"))
	if err != nil {
		return malformed(err)
	}
	if response.ContentLength > maxBody {
		return errTooLarge
	}
	body := io.Reader(&bounded{response.Body, maxBody})
	switch encoding := response.Header.Get("Content-Encoding"); encoding {
	case "", "identity":
	case "gzip":
		unpacked, err := gzip.NewReader(body)
		if err != nil {
			return unpacking(err)
		}
		body = &bounded{unpacked, maxBody}
	default:
		return malformed(fmt.Errorf("content encoding %.64q was not requested", encoding))
	}
	found, err := parse(body, media, v)
	switch {
	case err != nil:
		return unpacking(err)
	case !found:
		return driver.WithReason(driver.ReasonNoData, errors.New("response has none of the configured metrics"))
	}
	return nil
}

func malformed(err error) error { return driver.WithReason(driver.ReasonMalformed, err) }

// unpacking adds the reason to an error of reading a body, which is the connection's or gzip's.
func unpacking(err error) error {
	if _, corrupt := errors.AsType[flate.CorruptInputError](err); corrupt ||
		errors.Is(err, gzip.ErrHeader) || errors.Is(err, gzip.ErrChecksum) {
		return malformed(err)
	}
	return err
}

const openMetricsType = "application/openmetrics-text"

// mediaType returns the media type of an exposition; without a content type it is the text format.
// Other types, such as HTML, are an error.
func mediaType(contentType string) (string, error) {
	media, _, err := mime.ParseMediaType(contentType)
	switch {
	case contentType == "" || err != nil && strings.HasPrefix(contentType, "text/plain"):
		return "text/plain", nil
	case media == "text/plain", media == openMetricsType, media == protobufType:
		return media, nil
	default:
		return "", fmt.Errorf("content type %.64q is not an exposition", contentType)
	}
}

// bounded reads at most left bytes, and returns errTooLarge if there are more.
type bounded struct {
	r    io.Reader
	left int
}

func (b *bounded) Read(p []byte) (int, error) {
	if len(p) > b.left+1 {
		p = p[:b.left+1]
	}
	n, err := b.r.Read(p)
	if n > b.left {
		return b.left, errTooLarge
	}
	b.left -= n
	return n, err
}
