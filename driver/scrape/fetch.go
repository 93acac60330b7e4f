package scrape

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"strings"
	"syscall"

	"github.com/prometheus/common/config"

	"github.com/dra-exporter/dra-exporter/driver"
)

// maxBody is how many bytes of an answer are read, compressed and uncompressed. 64 GPUs of 40
// metrics are about 1 MB.
const maxBody = 16 << 20

// accept prefers the text format: in OpenMetrics a counter's name must end in _total, and the
// exporters' libraries rename those that do not, so that the configured names would not be found.
const accept = "text/plain;version=0.0.4;q=1,application/openmetrics-text;version=1.0.0;q=0.5,*/*;q=0.1"

// errTooLarge is an answer of more than maxBody bytes.
var errTooLarge = driver.WithReason(driver.ReasonTooLarge, fmt.Errorf("answer is larger than %d bytes", maxBody))

// classify finds the reason of an error of the network.
func classify(err error) error {
	var known *driver.ReasonError
	var network net.Error
	switch {
	case err == nil || errors.As(err, &known):
		return err
	case errors.Is(err, syscall.ECONNREFUSED):
		return driver.WithReason(driver.ReasonUnavailable, err)
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &network) && network.Timeout():
		return driver.WithReason(driver.ReasonTimeout, err)
	default:
		return driver.WithReason(driver.ReasonOther, err)
	}
}

// statusReason returns the reason of an HTTP status that is an error.
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

// newClient returns a client that keeps no connection, and so no goroutine, between two requests.
func newClient(e Endpoint) (*http.Client, error) {
	return config.NewClientFromConfig(e.Client, "scrape/"+e.Name,
		config.WithKeepAlivesDisabled(), config.WithHTTP2Disabled(), config.WithUserAgent("dra-exporter"))
}

// fetch asks the endpoint and passes its answer to the visitor. What the visitor was given before
// an error must not be used. An answer that is too large is not read to its end: the connection is
// dropped.
func fetch(ctx context.Context, client *http.Client, url string, v visitor) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return classify(err)
	}
	request.Header.Set("Accept", accept)
	request.Header.Set("Accept-Encoding", "gzip")
	response, err := client.Do(request)
	if err != nil {
		return classify(bare(err))
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return driver.WithReason(statusReason(response.StatusCode), fmt.Errorf("server answered %s", response.Status))
	}
	return read(response, v)
}

// bare takes away the method and URL that net/http puts before an error: the caller names the
// endpoint.
func bare(err error) error {
	type wrapper interface{ Unwrap() error }
	if w, ok := err.(wrapper); ok {
		return w.Unwrap()
	}
	return err
}

// read parses the body of an answer.
func read(response *http.Response, v visitor) error {
	openMetrics, err := isOpenMetrics(response.Header.Get("Content-Type"))
	if err != nil {
		return parseError(err)
	}
	if response.ContentLength > maxBody {
		return errTooLarge
	}
	body := io.Reader(&bounded{network{response.Body}, maxBody})
	switch encoding := response.Header.Get("Content-Encoding"); encoding {
	case "", "identity":
	case "gzip":
		unpacked, err := gzip.NewReader(body)
		if err != nil {
			return parseError(err)
		}
		body = &bounded{unpacked, maxBody}
	default:
		return parseError(fmt.Errorf("content encoding %.64q was not asked for", encoding))
	}
	content, err := parseExposition(body, openMetrics, v)
	if err != nil {
		return parseError(err)
	}
	return content.check()
}

// parseError is an error of the content where it is none of the network, which [network] has
// marked.
func parseError(err error) error {
	var known *driver.ReasonError
	if err == nil || errors.As(err, &known) {
		return err
	}
	return driver.WithReason(driver.ReasonMalformed, err)
}

// network marks the errors of a connection, so that they differ from those of what came over it.
type network struct{ r io.Reader }

func (n network) Read(p []byte) (int, error) {
	count, err := n.r.Read(p)
	if errors.Is(err, io.EOF) {
		return count, io.EOF
	}
	return count, classify(err)
}

// isOpenMetrics tells the formats apart. What is neither declared nor known is taken for text; a
// page for people, or protobuf, is an error.
func isOpenMetrics(contentType string) (bool, error) {
	media, _, err := mime.ParseMediaType(contentType)
	switch {
	case contentType == "" || media == "text/plain":
		return false, nil
	case media == "application/openmetrics-text":
		return true, nil
	case err != nil && strings.HasPrefix(contentType, "text/plain"):
		return false, nil
	default:
		return false, fmt.Errorf("content type %.64q is no text exposition", contentType)
	}
}

// bounded reads up to left bytes and fails with errTooLarge where there is one more.
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
