package gateway

import (
	"errors"
	"io"
	"strings"
	"testing"

	"golang.org/x/net/html"
)

// An exporter's page keeps its text and elements, and nothing that leads elsewhere by itself, sends
// a form or runs.
func TestClean(t *testing.T) {
	for _, test := range [][2]string{
		{
			`<!DOCTYPE html><html lang="en"><p class="dim">a &lt;b&gt; &amp; c`,
			`<!doctype html><html lang="en"><p class="dim">a &lt;b&gt; &amp; c`,
		},
		{
			`<meta charset="utf-8"><meta name="viewport" content="width=device-width">`,
			`<meta charset="utf-8"><meta name="viewport" content="width=device-width">`,
		},
		{
			`<meta http-equiv="refresh" content="0;url=https://evil">x`,
			`x`,
		},
		{
			`<META HTTP-EQUIV=refresh CONTENT=0;url=evil>x`,
			`x`,
		},
		{
			`<noscript><meta http-equiv="refresh" content="5"></noscript>x`,
			`x`,
		},
		{
			`<svg><style><meta http-equiv=refresh content=0></style></svg>`,
			`<svg></svg>`,
		},
		{
			`<svg viewBox="0 0 1 1"><title><meta http-equiv=refresh></title></svg>`,
			`<svg viewbox="0 0 1 1"><title>&lt;meta http-equiv=refresh&gt;</title></svg>`,
		},
		{
			`<form action="https://evil"><input type="password"></form>`,
			`</form>`,
		},
		{
			`<form method="dialog" action="https://evil"><button formaction="/">x`,
			`<form method="dialog"><button>x`,
		},
		{
			`<script src="page/script.js" defer></script>`,
			`<script src="page/script.js" defer=""></script>`,
		},
		{
			`<script>alert(1)</script><script src="//evil/x"></script>`,
			`</script></script>`,
		},
		{
			`<base href="//evil"><iframe src="//evil"><p></iframe><object data=x>y`,
			`y`,
		},
		{
			`<a href="page/detail?claim=a/b" onclick="x" target="_top">b</a>`,
			`<a href="page/detail?claim=a/b">b</a>`,
		},
		{
			`<a href="javascript:x()">b</a><a href=" JAVASCRIPT:x()"><a href="java&#9;script:x()"><a href="data:text/html,x">`,
			`<a>b</a><a><a><a>`,
		},
		{
			`<a href="https://grafana.example.com/d/a?x=b&amp;y=%2F">b</a><a href="#claim=a/b">`,
			`<a href="https://grafana.example.com/d/a?x=b&amp;y=%2F">b</a><a href="#claim=a/b">`,
		},
		{
			`<!--[if x]><meta http-equiv=refresh><![endif]-->x`,
			`x`,
		},
		{
			`<p title="&quot;><meta http-equiv=refresh>">`,
			`<p title="&#34;&gt;&lt;meta http-equiv=refresh&gt;">`,
		},
	} {
		page, want := test[0], test[1]
		got, err := io.ReadAll(newCleaner(strings.NewReader(page)))
		if err != nil || string(got) != want {
			t.Errorf("%s\nbecomes %s, %v\nwant    %s", page, got, err, want)
		}
	}
	long := newCleaner(strings.NewReader(`<p title="` + strings.Repeat("x", 2*maxToken)))
	if _, err := io.ReadAll(long); err == nil {
		t.Error("an endless tag is read")
	}
}

// Whatever an exporter sends, a parser that reads HTML as browsers do finds only known elements and
// attributes.
func FuzzClean(f *testing.F) {
	for _, page := range []string{
		`<svg><style><meta http-equiv=refresh content=0></style>`,
		`<math><mtext><table><mglyph><style><meta http-equiv=refresh>`,
		`<form method=dialog action=x><input type=search formaction=x>`,
		`<table><title><a href="x">`, `<p/><script src=page/script.js>x`,
		`<p title="` + strings.Repeat("x", 2*maxToken),
	} {
		f.Add(page)
	}
	known, all := elements(), common()
	f.Fuzz(func(t *testing.T, page string) {
		cleaned, err := io.ReadAll(newCleaner(strings.NewReader(page)))
		if err != nil && !errors.Is(err, errTooLarge) { // then the beginning is sent
			t.Fatal(err)
		}
		scripting := html.ParseOptionEnableScripting(len(page)%2 == 0)
		tree, err := html.ParseWithOptions(strings.NewReader(string(cleaned)), scripting)
		if err != nil {
			t.Fatal(err)
		}
		for n := range tree.Descendants() {
			if n.Type != html.ElementNode {
				continue
			}
			if _, ok := known[n.Data]; !ok && n.Data != "colgroup" {
				t.Errorf("%q becomes %q with an element %q", page, cleaned, n.Data)
			}
			for _, a := range n.Attr {
				if key := strings.ToLower(a.Key); !contains(known[n.Data], key) && !contains(all, key) {
					t.Errorf("%q becomes %q with %s=%q of %s", page, cleaned, a.Key, a.Val, n.Data)
				}
			}
		}
	})
}

func contains(list []string, what string) bool {
	return strings.Contains(" "+strings.Join(list, " ")+" ", " "+what+" ")
}
