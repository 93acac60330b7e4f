package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/chromedp/chromedp"
)

// limit is the longest time for a step in the browser.
const limit = time.Minute

// startBrowser starts Chromium. Tabs are children of its context, and end with it.
func startBrowser(ctx context.Context) (browser context.Context, closeBrowser func(), err error) {
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.NoSandbox, chromedp.ExecPath("chromium"))
	ctx, stop := chromedp.NewExecAllocator(ctx, options...)
	browser, closeTab := chromedp.NewContext(ctx)
	closeBrowser = func() { closeTab(); stop() }
	if err := chromedp.Do(browser); err != nil {
		closeBrowser()
		return nil, nil, fmt.Errorf("start chromium: %w", err)
	}
	return browser, closeBrowser, nil
}

// open opens an address on a screen of that size, in a new tab.
func open(browser context.Context, address string, width, height int64) (tab context.Context, err error) {
	tab, closeTab := chromedp.NewContext(browser)
	// A tab ends with its first context.
	if err := chromedp.Do(tab); err != nil {
		closeTab()
		return nil, fmt.Errorf("open a tab: %w", err)
	}
	ctx, cancel := context.WithTimeout(tab, limit)
	defer cancel()
	if err := chromedp.Do(ctx, chromedp.EmulateViewport(width, height), chromedp.Navigate(address)); err != nil {
		closeTab()
		return nil, fmt.Errorf("open %s: %w", address, err)
	}
	return tab, nil
}

// picture writes a picture of a tab.
func picture(tab context.Context, path string) error {
	ctx, cancel := context.WithTimeout(tab, limit)
	defer cancel()
	shot, err := chromedp.Run(ctx, chromedp.CaptureScreenshot())
	if err != nil {
		return fmt.Errorf("draw %s: %w", path, err)
	}
	return write(path, shot)
}

// write writes a picture with at most 256 colors, in a third of the bytes. Colors that are alike,
// as at the edges of letters, become the most frequent of them.
func write(path string, shot []byte) error {
	from, err := png.Decode(bytes.NewReader(shot))
	if err != nil {
		return fmt.Errorf("draw %s: %w", path, err)
	}
	often := map[color.RGBA]int{}
	bounds := from.Bounds()
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			often[color.RGBAModel.Convert(from.At(x, y)).(color.RGBA)]++
		}
	}
	colors := slices.SortedFunc(maps.Keys(often), func(a, b color.RGBA) int {
		return cmp.Or(often[b]-often[a], cmp.Compare(a.R, b.R), cmp.Compare(a.G, b.G), cmp.Compare(a.B, b.B))
	})
	var palette color.Palette
	for alike := uint8(4); palette == nil || len(palette) > 256; alike *= 2 {
		palette = nil
		known := map[color.RGBA]bool{}
		for _, c := range colors {
			if cell := (color.RGBA{R: c.R / alike, G: c.G / alike, B: c.B / alike}); !known[cell] {
				known[cell] = true
				palette = append(palette, c)
			}
		}
	}
	to := image.NewPaletted(bounds, palette)
	draw.Draw(to, bounds, from, bounds.Min, draw.Src)
	var out bytes.Buffer
	encoder := png.Encoder{CompressionLevel: png.BestCompression}
	if err := encoder.Encode(&out, to); err != nil {
		return fmt.Errorf("draw %s: %w", path, err)
	}
	return os.WriteFile(path, out.Bytes(), 0o644)
}

// drawBoard draws a whole dashboard as it looks on a screen, in a tab that shows the site.
func drawBoard(tab context.Context, uid string, on screen, path string) error {
	ctx, cancel := context.WithTimeout(tab, limit)
	defer cancel()
	var height int64
	err := chromedp.Do(ctx, chromedp.EmulateViewport(on.width, 1000))
	if err == nil {
		began, call := time.Now(), fmt.Sprintf("draw(%q, %q)", uid, on.mode)
		height, err = chromedp.Run(ctx, chromedp.Evaluate[int64](call, chromedp.EvalAwaitPromise))
		fmt.Printf("%s: drawn in %v\n", filepath.Base(path), time.Since(began).Round(time.Millisecond))
	}
	if err == nil { // what is outside of the window is not painted whole
		err = chromedp.Do(ctx, chromedp.EmulateViewport(on.width, height))
	}
	if err == nil {
		_, err = chromedp.Run(ctx, chromedp.Evaluate[int64]("settled()", chromedp.EvalAwaitPromise))
	}
	if err != nil {
		return fmt.Errorf("draw %s: %w", uid, err)
	}
	return picture(tab, path)
}
