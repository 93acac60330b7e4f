package page

import (
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exposition"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/exporter/web"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// testHostile shows names that would run scripts if they became markup.
func testHostile(t *testing.T, browser browser) {
	const hostile = `"'><img src=x onerror=document.title='run'><script>document.title='run'</script>&amp;%2F#`
	start := time.Unix(1_800_000_000, 0)
	id := driver.ID{Driver: "gpu.example.com", Pool: "node1", Device: hostile}
	in := join.Input{
		Inventory: driver.Inventory{id: {
			Hardware: driver.Hardware{UUID: hostile, Model: hostile},
			Taints:   []driver.Taint{{Key: hostile, Effect: "NoExecute", Rule: hostile}},
		}},
		View: podresources.View{At: start, Allocations: jointest.Held(podresources.Allocation{
			Claim: podresources.Claim{Namespace: "team", Name: hostile}, Device: id,
			Holders: []podresources.Holder{{Pod: podresources.Pod{Namespace: "team", Name: hostile}, Container: hostile}},
		})},
	}
	books := ledger.New(ledger.Config{Retention: time.Minute})
	snapshot := exposition.NewLimiter(0, nil).Apply(books, books.Advance(join.Join(in), start))
	latest := func() *exposition.Snapshot { return snapshot }
	handler := web.NewHandler(web.Config{
		Metrics: exposition.New(prometheus.NewRegistry(), latest, exposition.Config{}), Latest: latest, Node: hostile,
		MetricsPath: "/metrics", Scrapes: &web.Scrapes{}, QuietAfter: time.Minute, Log: slog.New(slog.DiscardHandler),
		Sources: func() []present.Source { return []present.Source{{Name: hostile, Down: driver.ReasonForbidden}} },
	})
	server := httptest.NewServer(web.NewServer(web.ServerConfig{Handler: handler, Log: slog.DiscardHandler}).Handler)
	t.Cleanup(server.Close)

	b := browser.open(t, server.URL, view{width: 1300, height: 900})
	b.await("shown", `document.querySelector('#controls').hidden === false && `+rows("devices")+`.length === 1`)
	value[bool](b, `document.querySelector('#devices tbody a').click() || true`)
	b.await("a dialog", `document.querySelector('dialog').open`)
	b.picture("hostile")
	// The click is before the event that the dialog was closed.
	value[bool](b, `document.querySelector('dialog').close() || document.querySelector('#claims tbody a').click() || true`)
	b.await("details of the claim", `Boolean(document.querySelector('dialog h2')?.textContent.startsWith('Claim team/'))`)
	if shown := value[string](b, `document.querySelector('dialog h2').textContent`); shown != "Claim team/"+hostile {
		t.Errorf("the claim's name is %s", shown)
	}
	testLateAnswer(b)
	if value[bool](b, `document.images.length > 0 || document.scripts.length !== 1 || document.title === 'run'`) {
		t.Error("a name became markup")
	}
}

// testLateAnswer delays the details of the device until those of the claim are shown. The details
// of the claim must stay.
func testLateAnswer(b *tab) {
	b.t.Helper()
	value[bool](b, `(() => {
		const ask = window.fetch;
		window.late = {};
		window.fetch = async (to, options) => {
			const answer = await ask(to, options);
			if (!String(to).startsWith('page/detail?device=')) return answer;
			await new Promise((resolve) => { late.answer = resolve; });
			const text = await answer.text();
			return { text: async () => { setTimeout(() => { late.read = true; }); return text; } };
		};
		document.querySelector('#devices tbody a').click();
		return true;
	})()`)
	b.await("the answer is held back", `Boolean(late.answer)`)
	value[bool](b, `document.querySelector('#claims tbody a').click() || true`)
	b.await("details of the claim", `document.querySelector('dialog').open &&
		document.querySelector('dialog h2').textContent.startsWith('Claim team/')`)
	value[bool](b, `late.answer() || true`)
	b.await("the answer is read", `Boolean(late.read)`)
	shown := value[string](b, `document.querySelector('dialog h2').textContent`)
	if !strings.HasPrefix(shown, "Claim team/") {
		b.t.Errorf("an answer of before shows %s", shown)
	}
}
