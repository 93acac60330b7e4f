package ledger

import (
	"time"

	"github.com/dra-exporter/dra-exporter/exporter/distribution"
	"github.com/dra-exporter/dra-exporter/exporter/fit"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/saved"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// fitting is what package fit needs to know about a claim's use of a device.
type fitting struct {
	activity  distribution.Histogram // of its part of the device's utilization
	bandwidth distribution.Histogram // of the device's memory; its part is unknown
	saved.Use
	saved.FitFacts

	ended  *join.Share // its share when it ended; nil: it holds the device
	final  bool        // the advice is for the ended claim
	due    bool        // to be persisted at the next tick
	advice *fit.Advice // immutable; nil: not yet
}

// observeMemory adds memory that was in use for some seconds.
func (f *fitting) observeMemory(part, seconds float64) {
	f.Memory = max(f.Memory, part)
	f.Measured += seconds
	if part > f.Level*(1+fit.Growth) {
		f.Level, f.Grown, f.Near = part, f.Measured, 0
	}
	if part >= f.Level*(1-fit.NearPeak) {
		f.Near += seconds
	}
}

// use adds a use of an engine, or a rate of a link, for some seconds.
func (f *fitting) use(name string, value, rate, seconds float64) {
	switch name {
	case "dram":
		f.bandwidth.Observe(value, seconds)
	case "copy":
		f.Copies = max(f.Copies, value)
	case "encoder", "decoder", "jpeg", "ofa", "video", "video_enhance":
		if value > f.Media {
			f.Media, f.Engine = value, name
		}
	case "nvlink", "xgmi":
		f.Peers = max(f.Peers, rate)
	}
}

func (f *fitting) useOf(key book.HolderKey, born time.Time) fit.Use {
	u := fit.Use{
		Claim:  podresources.Claim{Namespace: key.Namespace, Name: key.Name},
		Device: key.Device, Memory: f.Memory, Divided: f.Divided, Partial: f.Partial, Since: born, Contradicted: f.Conflict,
		Copies: f.Copies, Media: f.Media, Engine: f.Engine, Peers: f.Peers,
	}
	if f.bandwidth.Seconds() > 0 {
		u.Bandwidth = f.bandwidth.Quantile(fit.Quantile)
	}
	u.Settled = time.Duration((f.Measured - f.Grown) * float64(time.Second))
	u.AtPeak = f.Near / max(f.Measured, 1)
	if f.Readings > 0 {
		u.MemoryEvery = time.Duration(f.Measured / f.Readings * float64(time.Second))
	}
	if seconds := min(f.activity.Seconds(), f.Measured); seconds > 0 {
		u.Measured = time.Duration(seconds * float64(time.Second))
		u.Activity, u.MaxActivity = f.activity.Quantile(fit.Quantile), f.activity.Max()
	}
	return u
}
