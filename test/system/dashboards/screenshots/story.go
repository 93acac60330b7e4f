package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strconv"
	"time"

	"github.com/chromedp/chromedp"
)

// stalledAlert is the alert with which the on-call story of exporter/ONCALL.md begins.
const stalledAlert = "DRAClaimStalled"

// storyTimeout is the longest time until the alert, and then until the minute after its incident.
const storyTimeout = 5 * time.Minute

// alerted waits until the alert fires, and returns its link to the exporter's page.
func (a *asker) alerted(ctx context.Context) (link string, err error) {
	ctx, cancel := context.WithTimeout(ctx, storyTimeout)
	defer cancel()
	for {
		var all struct {
			Alerts []struct {
				Labels, Annotations map[string]string
				State               string
			}
		}
		err := a.prometheus.Get(ctx, "/api/v1/alerts", url.Values{}, &all)
		for _, alert := range all.Alerts {
			if alert.Labels["alertname"] == stalledAlert && alert.State == "firing" {
				return alert.Annotations["page_url"], nil
			}
		}
		select {
		case <-ctx.Done():
			return "", fmt.Errorf("wait for %s: %w", stalledAlert, errors.Join(ctx.Err(), err))
		case <-time.After(time.Second):
		}
	}
}

// story draws the steps from the alert to the pod: the claim that the alert links to, the incident
// that hit it, and the pod that the incident names.
func story(browser context.Context, link, out string) error {
	tab, err := open(browser, link, 1000, 1000)
	if err != nil {
		return err
	}
	const recorded = `document.querySelector('dialog[open] h2')?.textContent.startsWith('Claim ') &&
		document.querySelector('dialog svg') !== null`
	const kept = `document.querySelector('dialog h3')?.textContent.startsWith('Incident ') &&
		document.querySelector('dialog svg line.found') !== null`
	const known = `document.querySelector('dialog h2')?.textContent.startsWith('Pod ')`
	for _, step := range []struct{ name, click, shown string }{
		{"on-call-claim", "", recorded},
		{"on-call-incident", "incident", kept},
		{"on-call-pod", "pod", known},
	} {
		if step.click != "" {
			script := `document.querySelector('dialog a[href^="#` + step.click + `="]').click()`
			if err := evaluate(tab, script); err != nil {
				return fmt.Errorf("%s: %w", step.name, err)
			}
		}
		if err := await(tab, step.shown); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
		if err := pictureOf(tab, "dialog", filepath.Join(out, step.name+".png")); err != nil {
			return err
		}
	}
	return nil
}

// evaluate runs a script.
func evaluate(tab context.Context, script string) error {
	ctx, cancel := context.WithTimeout(tab, limit)
	defer cancel()
	_, err := chromedp.Run(ctx, chromedp.Evaluate[any](script))
	return err
}

// await waits until an expression is true.
func await(tab context.Context, expression string) error {
	ctx, cancel := context.WithTimeout(tab, storyTimeout)
	defer cancel()
	for {
		if is, err := chromedp.Run(ctx, chromedp.Evaluate[bool]("Boolean("+expression+")")); err != nil || is {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait until %s: %w", expression, ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// pictureOf writes a picture of an element, in a window that is high enough for it.
func pictureOf(tab context.Context, selector, path string) error {
	ctx, cancel := context.WithTimeout(tab, limit)
	defer cancel()
	height, err := chromedp.Run(ctx, chromedp.Evaluate[int64](
		"document.querySelector("+strconv.Quote(selector)+").scrollHeight",
	))
	if err == nil {
		err = chromedp.Do(ctx, chromedp.EmulateViewport(1000, height*5/4))
	}
	var shot []byte
	if err == nil {
		shot, err = chromedp.Run(ctx, chromedp.Screenshot(selector))
	}
	if err != nil {
		return fmt.Errorf("draw %s: %w", path, err)
	}
	return write(path, shot)
}
