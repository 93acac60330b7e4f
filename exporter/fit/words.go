package fit

import (
	"fmt"
	"math"
	"strconv"
	"time"
)

// Text returns the advice as a sentence: gpu-3, 80 GiB: peak 11 GiB and p99.9 activity 18 % of 26
// h, read each second: 1g.20gb fits; 6/7 unused. The activity is that of the device itself.
func (a *Advice) Text() string {
	if !a.Known() {
		return a.Device.Device + ": " + a.Reason.Meaning()
	}
	since := ""
	if a.Partial {
		since = " since " + a.Since.UTC().Format("2006-01-02 15:04 MST") + " (it began before that)"
	}
	text := fmt.Sprintf("%s, %s: peak %s and p99.9 activity %.0f %% of %s%s, read %s: ",
		a.Device.Device, bytes(a.HeldMemory), bytes(a.Memory), math.Ceil(100*a.Activity), span(a.Measured), since,
		each(a.MemoryEvery))
	switch {
	case a.Reason == NothingSmaller && a.Veto != NoVeto:
		return text + "nothing smaller fits: " + a.because()
	case a.Reason == NothingSmaller:
		return text + "nothing smaller is offered into which the claim would have fitted"
	case a.Alternative.Kind == FewerDevices:
		return text + "the claim's other devices suffice"
	case a.Ended != nil:
		return text + fmt.Sprintf("%s would have fitted; %s unused", a.Alternative.Name, part(a.Unused))
	default:
		return text + fmt.Sprintf("%s fits; %s unused", a.Alternative.Name, part(a.Unused))
	}
}

// because says why nothing smaller fits.
func (a *Advice) because() string {
	switch a.Veto {
	case VetoPeers:
		return fmt.Sprintf("up to %.3g GB/s went to other devices, over links that parts of a device do not have",
			a.Peers/1e9)
	case VetoEngine:
		return fmt.Sprintf("the engine %s was busy for up to %.0f %%, which parts of a device have fewer of, or none",
			a.Engine, math.Ceil(100*a.Media))
	case VetoBandwidth:
		return fmt.Sprintf("%.0f %% of the bandwidth of the memory was used", math.Ceil(100*a.Bandwidth))
	case VetoCopies:
		return fmt.Sprintf("the copy engines were busy for up to %.0f %%", math.Ceil(100*a.Copies))
	case VetoSaving:
		return "it would leave less than a tenth"
	default:
		return ""
	}
}

// span formats the time for which a claim was measured.
func span(d time.Duration) string {
	switch {
	case d >= 48*time.Hour:
		return fmt.Sprintf("%.0f d", math.Floor(d.Hours()/24))
	case d >= time.Hour:
		return fmt.Sprintf("%.0f h", math.Floor(d.Hours()))
	case d >= time.Minute:
		return fmt.Sprintf("%.0f min", math.Floor(d.Minutes()))
	default:
		return fmt.Sprintf("%.0f s", math.Floor(d.Seconds()))
	}
}

// each formats the time between two readings of the memory.
func each(d time.Duration) string {
	switch s := math.Round(d.Seconds()); {
	case d <= 0:
		return "at unknown times"
	case s <= 1:
		return "each second"
	default:
		return fmt.Sprintf("each %.0f s", s)
	}
}

// Meaning returns the meaning of the reason.
func (r Reason) Meaning() string {
	switch r {
	case TooShort:
		return "the claim has not been measured for long enough"
	case NotMeasured:
		return "the activity or the memory of the device is not measured"
	case Divided:
		return "several claims held the device, and it is not known what each of them used"
	case SeveralShares:
		return "the claim has several shares of the device, or admin access"
	case UnknownSize:
		return "the size of the device, or of the share, is not known"
	case ReadRarely:
		return "the memory is read too rarely: a peak between two readings is not seen"
	case Growing:
		return "the peak of the memory grew in the second half of the time in which it was measured"
	case RarePeak:
		return "the memory was near its peak only for moments, and the next peak may be higher"
	case Contradicted:
		return "at some time the utilization was 0 although the device worked"
	case NothingSmaller:
		return "nothing smaller is offered into which the claim would have fitted"
	default:
		return ""
	}
}

// part formats a part of a whole: as a fraction if possible, such as 6/7, else in percent.
func part(p float64) string {
	const most = 16 // the largest denominator
	for whole := 2; whole <= most; whole++ {
		parts := p * float64(whole)
		if n := math.Round(parts); n > 0 && n < float64(whole) && math.Abs(parts-n) < 1e-6 {
			return fmt.Sprintf("%.0f/%d", n, whole)
		}
	}
	return fmt.Sprintf("%.0f %%", 100*p)
}

// bytes formats an amount of memory.
func bytes(v float64) string {
	if v < gibibyte {
		return strconv.FormatFloat(v/mebibyte, 'f', 0, 64) + " MiB"
	}
	return strconv.FormatFloat(v/gibibyte, 'g', 3, 64) + " GiB"
}

// quantity writes an amount of a resource as Kubernetes does, such as 12Gi of memory.
func quantity(resource string, amount float64) string {
	unit, name := 1.0, ""
	if resource == memory {
		for _, u := range []struct {
			size float64
			name string
		}{{1 << 10, "Ki"}, {mebibyte, "Mi"}, {gibibyte, "Gi"}} {
			if math.Mod(amount, u.size) == 0 {
				unit, name = u.size, u.name
			}
		}
	}
	return strconv.FormatFloat(amount/unit, 'f', -1, 64) + name
}
