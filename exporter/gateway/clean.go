package gateway

import (
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"

	"golang.org/x/net/html"
)

// elements are those of exporters' pages, with their attributes beside those that all may have.
func elements() map[string][]string {
	out := map[string][]string{
		"html": {"lang"}, "meta": {"charset", "name", "content"}, "link": {"rel", "href"}, "script": {"src", "defer"},
		"a": {"href"}, "form": {"method"}, "input": {"type", "autocomplete", "spellcheck", "placeholder"},
		"svg": {"viewbox", "preserveaspectratio"}, "line": {"x1", "x2", "y1", "y2"}, "polyline": {"points"},
		"td": {"colspan"},
	}
	for name := range strings.FieldsSeq("head title body header main section nav h1 h2 h3 p ul li b small span div " +
		"table thead tbody tr th details summary dialog button label kbd figure figcaption") {
		out[name] = nil
	}
	return out
}

// common are the attributes that all elements may have.
func common() []string {
	return []string{"class", "id", "title", "hidden", "role", "aria-label", "aria-hidden"}
}

// maxToken is the maximum size of a tag or text of a page, in bytes.
const maxToken = 64 << 10

// cleaner reads an exporter's page without what no exporter's page has. It writes all text and
// attributes itself, so that a browser cannot understand them as anything else. In particular, the
// page can neither lead elsewhere by itself nor send a form.
type cleaner struct {
	from     *html.Tokenizer
	elements map[string][]string
	common   []string
	pending  []byte
	inRaw    bool // the next text is that of an element whose text is not HTML
}

func newCleaner(r io.Reader) *cleaner {
	c := &cleaner{from: html.NewTokenizer(r), elements: elements(), common: common()}
	c.from.SetMaxBuf(maxToken)
	return c
}

// Read implements [io.Reader].
func (c *cleaner) Read(p []byte) (int, error) {
	for len(c.pending) == 0 {
		kind := c.from.Next()
		if kind == html.ErrorToken {
			if errors.Is(c.from.Err(), html.ErrBufferExceeded) {
				return 0, errTooLarge
			}
			return 0, c.from.Err() //nolint:wrapcheck // it is the reader's
		}
		c.pending = c.clean(kind, c.from.Token())
	}
	n := copy(p, c.pending)
	c.pending = c.pending[n:]
	return n, nil
}

// clean returns what stays of a token.
func (c *cleaner) clean(kind html.TokenType, token html.Token) []byte {
	_, known := c.elements[token.Data]
	switch {
	case kind == html.DoctypeToken:
		return []byte("<!doctype html>")
	case kind == html.TextToken && !c.inRaw:
		return []byte(html.EscapeString(token.Data))
	case kind == html.EndTagToken && known:
		c.inRaw = false
		return []byte("</" + token.Data + ">")
	case kind == html.StartTagToken || kind == html.SelfClosingTagToken:
		c.inRaw = slices.Contains(rawText(), token.Data)
		if known && allowed(&token) {
			return c.tag(kind, &token)
		}
	case kind == html.EndTagToken:
		c.inRaw = false
	}
	return nil
}

// rawText are the elements whose text a browser does not read as HTML, except for the title.
func rawText() []string {
	return []string{"script", "style", "noscript", "iframe", "noembed", "noframes", "xmp", "plaintext", "textarea"}
}

// tag returns a start tag with the attributes that are known.
func (c *cleaner) tag(kind html.TokenType, token *html.Token) []byte {
	out := []byte("<" + token.Data)
	for _, a := range token.Attr {
		known := slices.Contains(c.common, a.Key) || slices.Contains(c.elements[token.Data], a.Key)
		if known && (token.Data != "a" || a.Key != "href" || isWeb(a.Val)) {
			out = fmt.Appendf(out, ` %s="%s"`, a.Key, html.EscapeString(a.Val))
		}
	}
	if kind == html.SelfClosingTagToken {
		out = append(out, '/')
	}
	return append(out, '>')
}

// isWeb reports whether a link leads to a page, and not to a script.
func isWeb(link string) bool {
	u, err := url.Parse(strings.TrimSpace(link))
	return err == nil && slices.Contains([]string{"", "http", "https"}, u.Scheme)
}

// allowed reports whether an exporter's page has an element with such attributes.
func allowed(token *html.Token) bool {
	value := func(name string) string {
		i := slices.IndexFunc(token.Attr, func(a html.Attribute) bool { return a.Key == name })
		if i < 0 {
			return ""
		}
		return strings.ToLower(token.Attr[i].Val)
	}
	switch token.Data {
	case "meta":
		return value("http-equiv") == ""
	case "form": // closes a dialog
		return value("method") == "dialog"
	case "link":
		return value("rel") == "icon" || value("rel") == "stylesheet"
	case "script":
		return value("src") == "page/script.js"
	case "input":
		return value("type") == "search"
	}
	return true
}
