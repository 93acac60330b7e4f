package fit

import (
	"fmt"
	"math"
	"strconv"
)

// Text returns the advice as a sentence: gpu-3, 80 GiB: peak 11 GiB and p99.9 activity 18 %:
// 1g.20gb would do; 6/7 unused. The activity is that of the device itself.
func (a *Advice) Text() string {
	if !a.Known() {
		return a.Device.Device + ": " + a.Reason.Meaning()
	}
	text := fmt.Sprintf("%s, %s: peak %s and p99.9 activity %.0f %%: ",
		a.Device.Device, bytes(a.HeldMemory), bytes(a.Memory), math.Ceil(100*a.Activity))
	switch {
	case a.Reason == NothingSmaller:
		return text + "nothing smaller is offered into which the claim would have fitted"
	case a.Alternative.Kind == FewerDevices:
		return text + "the claim's other devices would do"
	default:
		return text + fmt.Sprintf("%s would do; %s unused", a.Alternative.Name, part(a.Unused))
	}
}

// Meaning says what the reason means.
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
	case NothingSmaller:
		return "nothing smaller is offered into which the claim would have fitted"
	default:
		return ""
	}
}

// part formats a part of a whole: as a fraction if it is a simple one, such as 6/7.
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
