package chart

import (
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Go's memory limit is 80 % of the container's limit, for every notation of that limit.
func TestGoMemoryLimit(t *testing.T) {
	goLimit := func(limits any) (string, bool) {
		c := renderObjects(t, values{"resources": values{"limits": limits}}).daemonSet.Spec.Template.Spec.Containers[0]
		for _, e := range c.Env {
			if e.Name == "GOMEMLIMIT" {
				return e.Value, true
			}
		}
		return "", false
	}
	for _, limit := range []any{
		"256Mi", "1Gi", "0.5Gi", "200M", "1G", "1T", "2Ti", "300000k", "262144Ki", "268435456", 268435456, 268435456.0,
	} {
		text := ""
		switch v := limit.(type) {
		case string:
			text = v
		case int:
			text = strconv.Itoa(v)
		case float64:
			text = strconv.FormatFloat(v, 'f', -1, 64)
		}
		quantity := resource.MustParse(text)
		want := strconv.FormatInt(quantity.Value()*8/10, 10)
		if got, _ := goLimit(values{"memory": limit}); got != want {
			t.Errorf("limit %v: GOMEMLIMIT %s, want %s", limit, got, want)
		}
	}
	if got, set := goLimit(values{"memory": nil}); set {
		t.Errorf("without a limit GOMEMLIMIT is %q", got)
	}
	_, err := renderShipped(Release{Name: "test", Values: values{
		"resources": values{"limits": values{string(corev1.ResourceMemory): "lots"}},
	}}, false)
	if err == nil || !strings.Contains(err.Error(), "resources.limits.memory") {
		t.Errorf("a limit that is no quantity: error %v", err)
	}
}
