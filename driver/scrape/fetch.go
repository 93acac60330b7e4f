package scrape

import (
	"bufio"
	"bytes"
	"compress/flate"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/common/config"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"

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
	body := http.MaxBytesReader(nil, response.Body, maxBody)
	switch encoding := response.Header.Get("Content-Encoding"); encoding {
	case "", "identity":
	case "gzip":
		unpacked, err := gzip.NewReader(body)
		if err != nil {
			return unpacking(err)
		}
		body = http.MaxBytesReader(nil, unpacked, maxBody)
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

// unpacking adds the reason to an error of reading a body: that it is too large, the connection's
// or gzip's.
func unpacking(err error) error {
	if _, tooLarge := errors.AsType[*http.MaxBytesError](err); tooLarge {
		return errTooLarge
	}
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

// maxLine is the maximum length of a line, in bytes.
const maxLine = 64 << 10

// sample is one parsed sample.
type sample struct {
	name   string
	labels labels.Labels
	value  float64
	at     time.Time // zero: it has no timestamp
}

// visitor receives the samples of the metrics that it wants.
type visitor interface {
	wants(name []byte) bool
	add(*sample)
	reject(reason driver.Reason)
}

// parse passes the wanted samples of an exposition, in one of the formats of Prometheus, to the
// visitor. A line of text that is malformed is rejected alone; a malformed message of protobuf is
// the error, as is that of the reader. found: the exposition has a wanted metric, even without a
// sample.
func parse(r io.Reader, media string, v visitor) (found bool, err error) {
	symbols := labels.NewSymbolTable()
	if media == protobufType {
		body, err := io.ReadAll(r)
		if err != nil {
			return false, err
		}
		found, err = visit(textparse.NewProtobufParser(body, true, true, false, false, symbols), v)
		return found, malformed(err)
	}
	var text []byte
	lines := bufio.NewScanner(r)
	for lines.Buffer(nil, maxLine); lines.Scan(); {
		line := bytes.TrimSpace(lines.Bytes())
		if !v.wants(leadingName(bytes.TrimPrefix(line, []byte("# TYPE ")))) {
			continue
		}
		found = true
		text = append(append(text[:0], line...), '\n')
		p := textparse.NewPromParser(text, symbols, false)
		if media == openMetricsType {
			text = append(text, "# EOF\n"...)
			p = textparse.NewOpenMetricsParser(text, symbols)
		}
		if _, err := visit(p, v); err != nil {
			v.reject(driver.ReasonMalformed)
		}
	}
	if err = lines.Err(); errors.Is(err, bufio.ErrTooLong) {
		err = malformed(err)
	}
	return found, err
}

// visit passes what the parser finds to the visitor.
func visit(p textparse.Parser, v visitor) (found bool, err error) {
	for {
		entry, err := p.Next()
		switch {
		case errors.Is(err, io.EOF):
			return found, nil
		case err != nil:
			return found, err
		case entry == textparse.EntryType:
			name, _ := p.Type()
			found = found || v.wants(name)
		case entry == textparse.EntrySeries:
			var s sample
			_, at, value := p.Series()
			if s.value = value; at != nil {
				s.at = time.UnixMilli(*at)
			}
			p.Labels(&s.labels)
			if s.name = s.labels.Get(model.MetricNameLabel); !v.wants([]byte(s.name)) {
				continue
			}
			found = true
			if _, twice := s.labels.HasDuplicateLabelNames(); twice {
				v.reject(driver.ReasonMalformed)
			} else {
				v.add(&s)
			}
		}
	}
}

// leadingName returns the metric name at the start of the line.
func leadingName(line []byte) []byte {
	for i, c := range line {
		letter := c == '_' || c == ':' || 'a' <= c|0x20 && c|0x20 <= 'z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return line[:i]
		}
	}
	return line
}
