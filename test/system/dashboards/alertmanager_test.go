package dashboards

import (
	"context"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/alertmanager/alert"
	amconfig "github.com/prometheus/alertmanager/config/common"
	"github.com/prometheus/alertmanager/eventrecorder"
	"github.com/prometheus/alertmanager/featurecontrol"
	"github.com/prometheus/alertmanager/inhibit"
	"github.com/prometheus/alertmanager/provider/mem"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/model"
	"go.yaml.in/yaml/v2"

	"github.com/dra-exporter/dra-exporter/dashboards/query"
	"github.com/dra-exporter/dra-exporter/dashboards/rules"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// TestInhibitions gives the alerts of stories, which promtool has seen firing, to Alertmanager's
// own inhibitor with the shipped rules: one cause notifies once. Each rule is used.
func TestInhibitions(t *testing.T) {
	t.Parallel()
	kinds := alertKinds(t)
	library := firingIn(t, "the library of a node dies", 48)
	many := slices.Concat(firingIn(t, "down, and up again", 36), []string{"DRAExporterDown instance=n2"})
	for name, test := range map[string]struct{ fire, notify []string }{
		"a dead library": {library, []string{"DRANodeDevicesDown"}},
		"a dead library, and a device of another node": {
			append(slices.Clone(library), "DRADeviceDown node=n2 device=gpu-0"),
			[]string{"DRADeviceDown node=n2 device=gpu-0", "DRANodeDevicesDown"},
		},
		"a dead library, and a claim that is idle": {
			append(slices.Clone(library), "DRAClaimIdle namespace=a resourceclaim_name=c"),
			[]string{"DRAClaimIdle namespace=a resourceclaim_name=c", "DRANodeDevicesDown"},
		},
		"one device of two": {
			[]string{"DRADeviceDown device=gpu-0", "DRADeviceUnhealthy device=gpu-0", "DRADeviceUnhealthy device=gpu-1"},
			[]string{"DRADeviceDown device=gpu-0", "DRADeviceUnhealthy device=gpu-1"},
		},
		"a GPU that fell off the bus, and its other errors": {
			[]string{
				"DRADeviceErrors device=gpu-0 action=restart-host", "DRADeviceErrors device=gpu-0 action=investigate",
				"DRADeviceErrors device=gpu-1 action=investigate",
			},
			[]string{
				"DRADeviceErrors device=gpu-0 action=restart-host", "DRADeviceErrors device=gpu-1 action=investigate",
			},
		},
		"many exporters": {many, []string{"DRAExportersDown"}},
		"a stuck exporter": {
			[]string{"DRAExporterStale", "DRADeviceDown device=gpu-0", "DRAClaimDegraded namespace=a resourceclaim_name=c"},
			[]string{"DRAExporterStale"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			fire := make([]*alert.Alert, 0, len(test.fire))
			for _, text := range test.fire {
				fire = append(fire, kinds.alert(t, text))
			}
			inhibitor := startInhibitor(t, fire)
			var notify []string
			for i, a := range fire {
				if !inhibitor.Mutes(t.Context(), a.Labels) {
					notify = append(notify, test.fire[i])
				}
			}
			if slices.Sort(notify); !slices.Equal(notify, test.notify) {
				t.Errorf("it notifies of %q, want %q", notify, test.notify)
			}
		})
	}
}

// startInhibitor returns Alertmanager's inhibitor with these alerts.
func startInhibitor(t *testing.T, fire []*alert.Alert) *inhibit.Inhibitor {
	t.Helper()
	data := must.Get(os.ReadFile("../../../deployments/integrations/alertmanager/inhibitions.yaml"))(t)
	var file struct {
		Rules []amconfig.InhibitRule `yaml:"inhibit_rules"`
	}
	if err := yaml.UnmarshalStrict(data, &file); err != nil || len(file.Rules) == 0 {
		t.Fatalf("%d rules, %v", len(file.Rules), err)
	}
	ctx, end := context.WithCancel(context.Background())
	silent := slog.New(slog.DiscardHandler)
	alerts, err := mem.NewAlerts(ctx, time.Hour, 0, nil, silent, eventrecorder.NopRecorder(), prometheus.NewRegistry(),
		featurecontrol.NoopFlags{})
	if err != nil {
		t.Fatal(err)
	}
	must.Do(t, alerts.Put(ctx, fire...))
	inhibitor := inhibit.NewInhibitor(alerts, file.Rules, silent, eventrecorder.NopRecorder())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		inhibitor.Run()
	}()
	t.Cleanup(func() {
		inhibitor.Stop()
		<-ended
		alerts.Close()
		end()
	})
	inhibitor.WaitForLoading()
	return inhibitor
}

// firingIn returns the alerts that fire in a story of [TestAlerts] at a minute.
func firingIn(t *testing.T, name string, minute int) []string {
	t.Helper()
	for _, s := range slices.Concat(deviceStories(), exporterStories()) {
		for _, c := range s.checks {
			if s.name == name && c.minute == minute && len(c.fire) > 1 {
				return c.fire
			}
		}
	}
	t.Fatalf("no story %q with alerts in minute %d", name, minute)
	return nil
}

// kinds are the labels of the series of each alert, and its own ones, by its name and action.
type kinds map[string]model.LabelSet

func alertKinds(t *testing.T) kinds {
	t.Helper()
	catalog := query.NewCatalog()
	groups := must.Get(rules.Groups(rules.Defaults(), catalog))(t)
	out := kinds{}
	for _, g := range groups {
		for _, r := range g.Rules {
			if r.Alert == "" {
				continue
			}
			answer := must.Get(catalog.Check(r.Expr))(t)
			set := model.LabelSet{"alertname": model.LabelValue(r.Alert)}
			for _, label := range answer.Labels {
				set[model.LabelName(label)] = model.LabelValue(label + "-1")
			}
			if _, ok := set["node"]; ok {
				set["node"] = "n1"
			}
			for name, value := range r.Labels {
				set[model.LabelName(name)] = model.LabelValue(value)
			}
			out[r.Alert+" "+r.Labels["action"]] = set
		}
	}
	return out
}

// alert returns a firing alert, as NAME and the labels that distinguish it.
func (k kinds) alert(t *testing.T, text string) *alert.Alert {
	t.Helper()
	name, rest, _ := strings.Cut(text, " ")
	said := map[string]string{}
	for pair := range strings.FieldsSeq(rest) {
		label, value, _ := strings.Cut(pair, "=")
		said[label] = value
	}
	set := maps.Clone(k[name+" "+said["action"]])
	if set == nil {
		t.Fatalf("no alert is called %s", text)
	}
	for label, value := range said {
		if _, ok := set[model.LabelName(label)]; !ok {
			t.Fatalf("%s has no label %s", text, label)
		}
		set[model.LabelName(label)] = model.LabelValue(value)
	}
	now := time.Now()
	return &alert.Alert{
		Alert:     model.Alert{Labels: set, StartsAt: now.Add(-time.Minute), EndsAt: now.Add(time.Hour)},
		UpdatedAt: now,
	}
}
