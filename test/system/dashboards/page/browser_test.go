package page

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/dra-exporter/dra-exporter/test/must"
)

var pictures = flag.String("pictures", "", "the folder of pictures of what the tests see")

// limit is the longest time for a test on a machine that stands still at times.
const limit = 2 * time.Minute

// browser is a running Chromium.
type browser struct {
	ctx context.Context //nolint:containedctx // chromedp's handle
}

// startBrowser starts Chromium. It is stopped when the test ends.
func startBrowser(t *testing.T) browser {
	t.Helper()
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.NoSandbox, chromedp.ExecPath("chromium"))
	ctx, cancel := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	if err := chromedp.Do(ctx); err != nil {
		t.Fatalf("start chromium: %v", err)
	}
	return browser{ctx}
}

// tab is a tab of the browser.
type tab struct {
	t   *testing.T
	ctx context.Context //nolint:containedctx // chromedp's handle

	expectErrors bool // of the console

	mu     sync.Mutex
	errors []string
	bytes  map[string][]int64 // that the network carried, by the end of the address
	paths  map[network.RequestID]string
}

// view is how a tab shows pages.
type view struct {
	width, height int64
	dark          bool
	noScript      bool
	user          string // whom an authenticating proxy names
}

// open opens an address in a new tab. An error in the browser's console fails the test.
func (of browser) open(t *testing.T, address string, v view) *tab {
	t.Helper()
	ctx, cancel := chromedp.NewContext(of.ctx)
	t.Cleanup(cancel)
	b := &tab{t: t, ctx: ctx, bytes: map[string][]int64{}, paths: map[network.RequestID]string{}}
	must.Do(t, chromedp.Listen(ctx, b.listen))
	t.Cleanup(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if len(b.errors) > 0 && !b.expectErrors {
			t.Errorf("the browser's console has errors:\n%s", strings.Join(b.errors, "\n"))
		}
	})
	scheme := "light"
	if v.dark {
		scheme = "dark"
	}
	command(b, network.Enable, network.EnableParams{})
	if v.user != "" {
		headers := network.Headers{"X-Forwarded-User": v.user}
		command(b, network.SetExtraHTTPHeaders, network.SetExtraHTTPHeadersParams{Headers: headers})
	}
	command(b, log.Enable, cdp.Empty{})
	command(b, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: v.noScript})
	command(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
	})
	b.do(chromedp.EmulateViewport(v.width, v.height), chromedp.Navigate(address))
	return b
}

// command sends a command of the DevTools protocol.
func command[P any](b *tab, c cdp.Command[P, cdp.Empty], params P) {
	b.do(func(ctx context.Context, t *chromedp.Target) (chromedp.Void, error) {
		_, err := cdp.Call(ctx, t, c, params)
		return chromedp.Void{}, err
	})
}

func (b *tab) listen(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *log.EventEntryAdded:
		if e.Entry.Level == log.EntryLevelError || e.Entry.Level == log.EntryLevelWarning {
			b.errors = append(b.errors, e.Entry.Text+" "+e.Entry.URL)
		}
	case *runtime.EventExceptionThrown:
		b.errors = append(b.errors, fmt.Sprint(e.ExceptionDetails.Text, " ", e.ExceptionDetails.Exception))
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.ConsoleAPICalledTypeError || e.Type == runtime.ConsoleAPICalledTypeWarning {
			b.errors = append(b.errors, fmt.Sprint("console.", e.Type))
		}
	case *network.EventRequestWillBeSent:
		_, path, _ := strings.Cut(strings.TrimPrefix(e.Request.URL, "http://"), "/")
		b.paths[e.RequestID] = "/" + path
	case *network.EventLoadingFinished:
		b.bytes[b.paths[e.RequestID]] = append(b.bytes[b.paths[e.RequestID]], int64(e.EncodedDataLength))
	}
}

func (b *tab) do(actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, limit)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		b.t.Fatal(err)
	}
}

// value returns the value of a JavaScript expression.
func value[T any](b *tab, expression string) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, limit)
	defer cancel()
	out, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression))
	if err != nil {
		b.t.Fatalf("%s: %v", expression, err)
	}
	return out
}

// await waits until an expression is true.
func (b *tab) await(what, expression string) {
	b.t.Helper()
	for end := time.Now().Add(limit); !value[bool](b, expression); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			b.picture("failed")
			b.t.Fatalf("not %s: %s", what, expression)
		}
	}
}

// press presses a key where the focus is.
func (b *tab) press(key string) {
	down := input.DispatchKeyEventParams{Type: input.DispatchKeyEventTypeKeyDown, Key: key}
	if key == "Escape" {
		down.WindowsVirtualKeyCode = 27 // by which the browser closes dialogs
	} else {
		down.Text = key
	}
	command(b, input.DispatchKeyEvent, down)
	command(b, input.DispatchKeyEvent, input.DispatchKeyEventParams{Type: input.DispatchKeyEventTypeKeyUp, Key: key})
}

// write types a text where the focus is.
func (b *tab) write(text string) {
	command(b, input.InsertText, input.InsertTextParams{Text: text})
}

// checkWidth checks that the page is not wider than the screen.
func (b *tab) checkWidth() {
	b.t.Helper()
	wide := value[[]int](b, `[document.documentElement.scrollWidth, innerWidth]`)
	if wide[0] > wide[1] {
		b.t.Errorf("the page is %d pixels wide, and the screen %d", wide[0], wide[1])
	}
}

// received returns the size of each answer of a path on the network, in bytes.
func (b *tab) received(path string) []int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.bytes[path])
}

// picture writes a picture of the tab to -pictures.
func (b *tab) picture(name string) {
	b.t.Helper()
	if *pictures == "" {
		return
	}
	png, err := chromedp.Run(b.ctx, chromedp.CaptureScreenshot())
	if err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(*pictures, name+".png"), png, 0o600); err != nil {
		b.t.Fatal(err)
	}
}
