package decode

import (
	"encoding/json"
	"errors"
	"io"
	"runtime"
	"strings"
	"testing"

	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// honest is a page with rows of each kind, and fields that this version does not know.
const honest = `{"node":"node1","time":"2026-11-22 12:00:00 UTC","new":[{"a":[1,{"b":"]"}]},"x"],"newer":{"a":{}},
	"devices":[{"driver":"gpu.example.com","pool":"node1","device":"gpu-0","id":"gpu.example.com/node1/gpu-0",
	"model":"A \"\\\u00e9","state":"active","utilization":["50.0 %",0.5],"newest":[[],{}],
	"holders":[{"pods":"n/p, q","claim":"n/c"},null]},{"device":"gpu-1","state":"free"}],
	"claims":[{"driver":"gpu.example.com","pool":"node1","device":"gpu-0","namespace":"n","name":"c","state":"active",
	"power":["7 W",7],"held":["1 h",3600],"trend":"-9"}],
	"pods":null,"incidents":[{"id":"1","state":"open","lines":["0,1"]}]}`

// hostile returns documents that are short for the memory that they would take.
func hostile() map[string]string {
	const size = 3 << 20
	many := func(s string, bytes int) string { return s + strings.Repeat(","+s, bytes/(len(s)+1)) }
	return map[string]string{
		"devices":            `{"devices":[` + many("{}", size) + `]}`,
		"claims":             `{"claims":[` + many("{}", size) + `]}`,
		"incidents":          `{"incidents":[` + many("{}", size) + `]}`,
		"nulls":              `{"incidents":[` + many("null", size) + `]}`,
		"holders":            `{"devices":[{"holders":[` + many("{}", size) + `]}]}`,
		"pods":               `{"claims":[{"pods":[` + many(`""`, size) + `]}]}`,
		"rows with holders":  `{"devices":[` + many(`{"holders":[`+many("{}", 3000)+`]}`, size) + `]}`,
		"a long name":        `{"node":"` + strings.Repeat("x", size) + `"}`,
		"a long field":       `{"` + strings.Repeat("x", size) + `":1}`,
		"a long number":      `{"series":` + strings.Repeat("1", size) + `}`,
		"blanks":             `{"devices":[` + strings.Repeat(" ", size) + `]}`,
		"lists in lists":     `{"devices":` + strings.Repeat("[", size),
		"lists of no field":  `{"x":` + strings.Repeat("[", size),
		"objects in objects": `{"x":` + strings.Repeat(`{"a":`, size),
		"only lists":         strings.Repeat("[", size),
	}
}

// readers are the documents, read with an account, and by encoding/json.
func readers() map[string]func(r io.Reader, a *Account) (got, plain any, err error) {
	return map[string]func(r io.Reader, a *Account) (got, plain any, err error){
		"page": func(r io.Reader, a *Account) (any, any, error) {
			out, err := Read[present.Page](r, a)
			return out, new(present.Page), err
		},
		"raw": func(r io.Reader, a *Account) (any, any, error) {
			out, err := Read[json.RawMessage](r, a)
			return out, new(json.RawMessage), err
		},
		"summary": func(r io.Reader, a *Account) (any, any, error) {
			out, err := Read[present.Summary](r, a)
			return out, new(present.Summary), err
		},
		"detail": func(r io.Reader, a *Account) (any, any, error) {
			out, err := Read[present.Detail](r, a)
			return out, new(present.Detail), err
		},
	}
}

// An honest document is read as encoding/json reads it.
func TestHonest(t *testing.T) {
	a := NewBudget(0, 1<<20).Open(1 << 20)
	page, err := Read[present.Page](strings.NewReader(honest), a)
	must.That(t, err == nil && len(page.Devices) == 2 && len(page.Claims) == 1 && len(page.Incidents) == 1,
		"%+v, %v", page, err)
	d, c := page.Devices[0], page.Claims[0]
	expect.That(t, d.Model == `A "\é` && d.Utilization == present.Figure{Text: "50.0 %", Number: 0.5} &&
		d.Holders[0].Pods == "n/p, q" && c.ID == d.ID && c.State == "active" && c.Power.Number == 7, "%+v, %+v", d, c)
	summary, err := Read[present.Summary](strings.NewReader(`{"node":"n","devices":{"active":8},"more":2,
		"down":{"nvml":"timeout"},"claims":[{"namespace":"n","name":"c","state":"active","devices":2,"pods":["p"]}],
		"incidents":[{"id":"1","kind":"xid","hit":["n/c"]}]}`), a)
	if err != nil || summary.Node != "n" || summary.Devices["active"] != 8 || summary.More != 2 ||
		summary.Down["nvml"] != "timeout" || summary.Claims[0].Pods[0] != "p" || summary.Incidents[0].Hit[0] != "n/c" {
		t.Errorf("%+v, %v", summary, err)
	}
}

// A document ends after its object.
func TestMore(t *testing.T) {
	for document, want := range map[string]bool{
		`{}`: true, "{} \n": true, `{}<`: false, `{}{}`: false, `{} null`: false, `{`: false, ``: false,
	} {
		_, err := Read[present.Summary](strings.NewReader(document), NewBudget(1<<10, 1<<20).Open(1<<20))
		expect.That(t, (err == nil) == want, "%q: %v", document, err)
	}
}

// What an exporter can't have is refused before it takes memory.
func TestHostile(t *testing.T) {
	const all = "lists in lists, lists of no field, objects in objects, only lists"
	fields := map[string]string{
		"page": all + "devices, claims, incidents, nulls, holders, rows with holders", "raw": all + "devices",
		"summary": all + "a long name, claims, incidents, pods", "detail": "only lists",
	}
	for document, read := range readers() {
		for name, body := range hostile() {
			has := strings.Contains(fields[document], name)
			if testing.Short() && !has {
				continue // it is skipped, as an unknown field
			}
			budget := NewBudget(1<<10, 16<<20)
			a := budget.Open(map[bool]int64{true: 2 << 20, false: 8 << 20}[document == "summary"])
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, _, err := read(strings.NewReader(body), a)
			runtime.ReadMemStats(&after)
			if has && err == nil {
				t.Errorf("%s: %s is read", document, name)
			}
			// A list of 8 MiB leaves about four times as much behind when it grows, as garbage.
			took := after.TotalAlloc - before.TotalAlloc
			expect.That(t, took <= 64<<20, "%s: %s took %d MiB, %v", document, name, took>>20, err)
			if a.Close(); budget.pool.Load() != 16<<20 {
				t.Errorf("%s: %s: %d of the pool are left", document, name, budget.pool.Load())
			}
		}
	}
}

// A document is not larger than its size.
func TestSize(t *testing.T) {
	for size, want := range map[int64]error{100: ErrTooLarge, 10000: nil} {
		body := `{"node":"` + strings.Repeat("x", 5000) + `"}`
		_, err := Read[present.Summary](strings.NewReader(body), NewBudget(0, 1<<20).Open(size))
		expect.That(t, errors.Is(err, want), "with %d bytes at most: %v, want %v", size, err, want)
	}
}

// A document has its share, whatever others take.
func TestBudget(t *testing.T) {
	b := NewBudget(10, 100)
	first, second := b.Open(1000), b.Open(1000)
	must.Do(t, first.take(110))
	if err := second.take(10); err != nil {
		t.Errorf("the share: %v", err)
	}
	if err := second.take(1); !errors.Is(err, ErrNoRoom) {
		t.Errorf("an empty pool: %v", err)
	}
	_ = first.take(-5)
	if err := second.take(5); err != nil {
		t.Errorf("what was given back: %v", err)
	}
	second.Close()
	if err := first.take(5); err != nil {
		t.Errorf("what was given back: %v", err)
	}
	if err := b.Open(5).take(6); !errors.Is(err, ErrTooLarge) {
		t.Errorf("beyond the limit of a document: %v", err)
	}
	if first.Close(); b.pool.Load() != 100 {
		t.Errorf("%d are left", b.pool.Load())
	}
}

// Whatever an exporter sends, what is read is what encoding/json reads, and the pool gets all back.
func FuzzDocuments(f *testing.F) {
	f.Add([]byte(honest))
	f.Add([]byte(`{"incidents":[{"id":"1","hit":["a"],"holders":[{}]},null],"claims":[],"times":[],
		"series":[{"values":[1,null]}]}`))
	f.Add([]byte(`{"a":[[{"b":"\""}],[]],"claims":null,"claims":[{},{}]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		for name, read := range readers() {
			budget := NewBudget(100, 1<<20)
			a := budget.Open(1 << 20)
			got, plain, err := read(strings.NewReader(string(body)), a)
			if err == nil && json.Valid(body) && json.Unmarshal(body, plain) != nil && name == "detail" {
				t.Errorf("%s: %q is read as %+v", name, body, got)
			}
			if a.Close(); budget.pool.Load() != 1<<20 {
				t.Errorf("%s of %q: %d of the pool are left", name, body, budget.pool.Load())
			}
		}
	})
}
