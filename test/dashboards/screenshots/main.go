// Command screenshots evaluates the queries of panels of the shipped dashboards, and writes the
// results as a script for the page that draws the panels with Grafana's components.
//
//	go run ./screenshots -prometheus=http://127.0.0.1:9090 -board=dra-fleet -panels='Claimed;Idle' -out=data.js
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/dashboards/grafana"
)

func main() {
	if err := run(); err != nil {
		_, _ = fmt.Fprintf(os.Stderr, "screenshots: %v\n", err)
		os.Exit(1)
	}
}

// drawing is the data of a panel for the page: the panel from the dashboard's JSON and the results
// of its queries.
type drawing struct {
	Panel   json.RawMessage   `json:"panel"`
	Answers []json.RawMessage `json:"answers"`
}

// panel is the part of a panel's JSON that is used.
type panel struct {
	Type, Title string
	Targets     []struct {
		Expr    string
		Instant bool
	}
}

func run() error {
	prometheus := flag.String("prometheus", "http://127.0.0.1:9090", "address of Prometheus")
	board := flag.String("board", "dra-fleet", "UID of the dashboard")
	panels := flag.String("panels", "", "titles of its panels, separated by semicolons")
	claim := flag.String("claim", ".*", "regular expression of the claims to show")
	span := flag.Duration("span", 4*time.Minute, "time to show")
	out := flag.String("out", "data.js", "file to write")
	flag.Parse()

	content, err := os.ReadFile("../../dashboards/out/grafana/" + *board + ".json")
	if err != nil {
		return fmt.Errorf("read dashboard: %w", err)
	}
	var dashboard struct {
		Title  string
		Panels []json.RawMessage
	}
	if err := json.Unmarshal(content, &dashboard); err != nil {
		return fmt.Errorf("decode dashboard: %w", err)
	}
	titles := strings.Split(*panels, ";")
	drawings := make([]*drawing, len(titles))
	for _, raw := range dashboard.Panels {
		var p panel
		if err := json.Unmarshal(raw, &p); err != nil {
			return fmt.Errorf("decode panel: %w", err)
		}
		i := slices.Index(titles, p.Title)
		if i < 0 || p.Type == "row" {
			continue
		}
		drawings[i] = &drawing{Panel: raw}
		for _, target := range p.Targets {
			expr := grafana.Fill(target.Expr, map[string]string{"claim": *claim}, strconv.Itoa(int(span.Seconds()))+"s", "30s",
				"5s")
			answer, err := ask(*prometheus, expr, *span, target.Instant)
			if err != nil {
				return fmt.Errorf("panel %s: %w", p.Title, err)
			}
			drawings[i].Answers = append(drawings[i].Answers, answer)
		}
	}
	if i := slices.Index(drawings, nil); i >= 0 {
		return fmt.Errorf("dashboard %s has no panel %q", *board, titles[i])
	}
	data, err := json.Marshal(map[string]any{"title": dashboard.Title, "drawings": drawings})
	if err != nil {
		return fmt.Errorf("write data: %w", err)
	}
	return os.WriteFile(*out, append([]byte("window.drawn = "), data...), 0o600)
}

var errAnswer = errors.New("prometheus did not answer")

// ask returns the data of Prometheus's response.
func ask(prometheus, expr string, span time.Duration, instant bool) (json.RawMessage, error) {
	path, parameters := "/api/v1/query", url.Values{"query": {expr}}
	if !instant {
		path = "/api/v1/query_range"
		parameters.Set("start", strconv.FormatInt(time.Now().Add(-span).Unix(), 10))
		parameters.Set("end", strconv.FormatInt(time.Now().Unix(), 10))
		parameters.Set("step", "5")
	}
	address := prometheus + path + "?" + parameters.Encode()
	response, err := http.Get(address) //nolint:noctx // interactive: users can interrupt it
	if err != nil {
		return nil, fmt.Errorf("query %s: %w", expr, err)
	}
	defer response.Body.Close()
	var body struct {
		Status, Error string
		Data          struct{ Result json.RawMessage }
	}
	if err := json.NewDecoder(response.Body).Decode(&body); err != nil {
		return nil, fmt.Errorf("query %s: %w", expr, err)
	}
	if body.Status != "success" {
		return nil, fmt.Errorf("query %s: %w: %s", expr, errAnswer, body.Error)
	}
	return body.Data.Result, nil
}
