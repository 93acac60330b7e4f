// Command screenshots draws pictures of the shipped dashboards and of the exporter's page: it
// evaluates the queries of all panels, and opens in one headless Chromium the site that draws them
// with Grafana's components. Those of the page include the way from an alert to the pod that was
// hit.
//
//	go run ./screenshots -prometheus=http://127.0.0.1:9090 -exporter=http://127.0.0.1:10985 -site=DIR -out=DIR
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"time"

	"github.com/dra-exporter/dra-exporter/dashboards/grafana"
	"github.com/dra-exporter/dra-exporter/test/live"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		_, _ = fmt.Fprintf(os.Stderr, "screenshots: %v\n", err)
		os.Exit(1) //nolint:gocritic // nothing is left to clean up
	}
}

// screen is the width of a screen in pixels, and its theme.
type screen struct {
	width int64
	mode  string
}

// screens are those on which a dashboard is drawn, by the end of the pictures' names.
func screens() map[string]screen {
	return map[string]screen{"": {1600, "dark"}, "-narrow": {500, "dark"}, "-light": {1600, "light"}}
}

func run(ctx context.Context) error {
	prometheus := flag.String("prometheus", "http://127.0.0.1:9090", "address of Prometheus")
	exporter := flag.String("exporter", "http://127.0.0.1:10985", "address of the exporter")
	span := flag.Duration("span", 45*time.Second, "time that the dashboards show; it is waited for")
	rate := flag.Duration("rate", 16*time.Second, "window of rates")
	step := flag.Duration("step", 2*time.Second, "time between two points of a graph")
	site := flag.String("site", "", "folder of the site that draws a dashboard")
	out := flag.String("out", ".", "folder of the pictures")
	only := flag.String("only", "", "draw this dashboard alone")
	world := flag.String("world", "",
		"what Prometheus scrapes: the demo; its devices of one driver; nothing (empty); many nodes (their number)")
	answers := flag.String("answers", "", "draw the answers that are in this file, which command fleet wrote")
	flag.Parse()

	browser, closeBrowser, err := startBrowser(ctx)
	if err != nil {
		return err
	}
	defer closeBrowser()
	a := asker{
		prometheus: live.At(*prometheus), span: *span, rate: *rate, step: *step, waits: "sum(cluster:dra_devices:count)",
	}
	if *only == "" && *world == "" {
		if err := a.drawPages(ctx, browser, *exporter, *out); err != nil {
			return err
		}
	}
	boards, err := a.find(ctx, *answers, *only, *world)
	if err != nil {
		return err
	}
	address, err := serve(*site, boards)
	if err != nil {
		return err
	}
	tab, err := open(browser, address, 1600, 1000)
	if err != nil {
		return err
	}
	return drawBoards(tab, *only, *out)
}

// find returns the dashboards with the answers of a file, or of Prometheus.
func (a *asker) find(ctx context.Context, file, only, world string) (map[string]board, error) {
	if file != "" {
		boards := map[string]board{}
		content, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("read answers: %w", err)
		}
		if err := json.Unmarshal(content, &boards); err != nil {
			return nil, fmt.Errorf("decode answers: %w", err)
		}
		return boards, nil
	}
	if world != "empty" {
		if err := a.wait(ctx); err != nil {
			return nil, err
		}
	}
	a.now = time.Now()
	return a.boards(ctx, only, chosen(world))
}

// drawBoards draws all dashboards, or only one, on all screens.
func drawBoards(tab context.Context, only, out string) error {
	for _, board := range grafana.Boards() {
		if only != "" && board.UID != only {
			continue
		}
		for end, on := range screens() {
			if err := drawBoard(tab, board.UID, on, filepath.Join(out, board.UID+end+".png")); err != nil {
				return err
			}
		}
	}
	return nil
}

// drawPages draws the exporter's page, and the way from an alert to the pod that was hit.
func (a *asker) drawPages(ctx, browser context.Context, exporter, out string) error {
	page, err := open(browser, exporter, 1300, 1490) // its rates need an earlier response
	if err != nil {
		return err
	}
	link, err := a.alerted(ctx)
	if err != nil {
		return err
	}
	if err := a.wait(ctx); err != nil {
		return err
	}
	if err := await(page, `document.querySelector('td .bad[title^="busy, and does nothing"]')`); err != nil {
		return err
	}
	if err := picture(page, filepath.Join(out, "page.png")); err != nil {
		return err
	}
	return story(browser, link, out)
}

// serve serves the site, and each dashboard with its answers as /boards/UID, until the program
// ends.
func serve(site string, boards map[string]board) (address string, err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it listens at once
	if err != nil {
		return "", fmt.Errorf("serve the site: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /", http.FileServer(http.Dir(site)))
	mux.HandleFunc("GET /boards/{uid}", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(boards[r.PathValue("uid")])
	})
	go func() { _ = http.Serve(listener, mux) }()
	return "http://" + listener.Addr().String(), nil
}

// seconds writes a duration as PromQL does.
func seconds(d time.Duration) string { return strconv.Itoa(int(d.Seconds())) + "s" }
