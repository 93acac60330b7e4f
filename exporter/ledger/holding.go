package ledger

import (
	"cmp"
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// holding is the time in which a pod holds a share of the device, [from, to).
type holding struct {
	holdingKey
	uid   string // of the pod; empty: unknown
	share *join.Share
	to    time.Time // zero: it holds the device now
	owner *owner    // nil: not resolved yet

	fromDoubt, toDoubt podresources.Doubt
}

type holdingKey struct {
	claim podresources.Claim
	share string
	pod   podresources.Pod
	from  time.Time // zero: before the first answer of the kubelet
}

// owner has the accounts that are charged for a holding: those of its claim and of its pod, which
// are nil for admin access. All fields are nil for a holding that ended before the decided time.
type owner struct {
	claim, pod *account
	period     *Period
}

// owners are the accounts that are charged for a share: that of its claim, and those of its pods.
type owners struct {
	claim *account
	pods  []*account
}

// ownership has the owner of each holding of a device.
type ownership map[holdingKey]*owner

// holdingsOf returns the holdings of present and of ended shares, sorted by share.
func holdingsOf(shares, ended []join.Share) []holding {
	out := make([]holding, 0, len(shares)+len(ended))
	for _, of := range [2][]join.Share{shares, ended} {
		for i := range of {
			s := &of[i]
			for j := range s.Holders {
				hold := holdOf(&s.Holders[j])
				of := &s.Holders[j]
				h := holding{
					holdingKey: holdingKey{s.Claim, s.ShareID, of.Pod, hold.From}, uid: of.UID, share: s, to: hold.To,
					fromDoubt: hold.FromDoubt, toDoubt: hold.ToDoubt,
				}
				if n := len(out); n == 0 || out[n-1] != h { // a pod's containers have the same hold
					out = append(out, h)
				}
			}
		}
	}
	slices.SortStableFunc(out, func(a, b holding) int { return a.share.Compare(b.share.Allocation) })
	return out
}

// holdOf returns the hold of a holder. Without times, it holds since the zero time.
func holdOf(h *podresources.Holder) podresources.Hold {
	if h.Hold == nil {
		return podresources.Hold{}
	}
	return *h.Hold
}

// sameShares reports whether shares have the same claims and pods since the same times, and the
// same weights; and whether they also have the same times of the claims' lives.
func sameShares(these, others []join.Share) (holdings, lives bool) {
	if len(these) != len(others) {
		return false, false
	}
	lives = true
	for i := range these {
		x, y := &these[i], &others[i]
		if x.Weight != y.Weight || x.Admin != y.Admin || x.Claim != y.Claim || x.ClaimUID != y.ClaimUID ||
			x.ShareID != y.ShareID || len(x.Holders) != len(y.Holders) {
			return false, false
		}
		lives = lives && x.AllocatedAt.Equal(y.AllocatedAt)
		for j := range x.Holders {
			a, b := &x.Holders[j], &y.Holders[j]
			if a.Pod != b.Pod || a.UID != b.UID {
				return false, false
			}
			if a.Hold == b.Hold {
				continue
			}
			hold, other := holdOf(a), holdOf(b)
			if !hold.From.Equal(other.From) {
				return false, false
			}
			lives = lives && hold.Wanted.Equal(other.Wanted) && hold.Prepared.Equal(other.Prepared) &&
				hold.Unprepared.Equal(other.Unprepared)
		}
	}
	return true, lives
}

func sameSlice(a, b []join.Share) bool { return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0]) }

// leftTimes returns the times at which the last processes of present holders ended, in order.
func leftTimes(shares []join.Share) []time.Time {
	var out []time.Time
	for i := range shares {
		for j := range shares[i].Holders {
			if left := holdOf(&shares[i].Holders[j]).Left; !shares[i].Admin && !left.IsZero() {
				out = append(out, left)
			}
		}
	}
	slices.SortFunc(out, time.Time.Compare)
	return out
}

// byDevice returns the shares of each device. They are sorted.
func byDevice(shares []join.Share) map[driver.ID][]join.Share {
	if len(shares) == 0 {
		return nil
	}
	out := map[driver.ID][]join.Share{}
	for len(shares) > 0 {
		n := slices.IndexFunc(shares, func(s join.Share) bool { return s.Device != shares[0].Device })
		if n < 0 {
			n = len(shares)
		}
		out[shares[0].Device], shares = shares[:n:n], shares[n:]
	}
	return out
}

// doubtAt returns the possible error of a time if holdings begin or end then.
func doubtAt(holdings []holding, moment time.Time) (doubt podresources.Doubt, edge bool) {
	add := func(at time.Time, of podresources.Doubt) {
		if at.Equal(moment) {
			edge = true
			doubt = podresources.Doubt{Early: max(doubt.Early, of.Early), Late: max(doubt.Late, of.Late)}
		}
	}
	for i := range holdings {
		add(holdings[i].from, holdings[i].fromDoubt)
		add(holdings[i].to, holdings[i].toDoubt)
	}
	return doubt, edge
}

// widened returns the doubt for a time that takes effect later than it was.
func widened(d podresources.Doubt, later time.Duration) podresources.Doubt {
	return podresources.Doubt{Early: d.Early + later, Late: max(0, d.Late-later)}
}

// of returns the owners of the present shares.
func (o ownership) of(shares []join.Share) []owners {
	out := make([]owners, len(shares))
	for i := range shares {
		s := &shares[i]
		for j := range s.Holders {
			h := &s.Holders[j]
			by := o[holdingKey{s.Claim, s.ShareID, h.Pod, holdOf(h).From}]
			out[i].claim = by.claim
			if j == 0 || s.Holders[j-1].Pod != h.Pod {
				out[i].pods = append(out[i].pods, by.pod)
			}
		}
	}
	return out
}

// isOther reports whether the claim or pod of a holding is a different one than its owner's, with
// the same name: the owner may have been determined with an outdated UID.
func (o ownership) isOther(h *holding) bool {
	known := o[h.holdingKey]
	other := func(a *account, uid string) bool { return a != nil && uid != "" && a.uid != "" && a.uid != uid }
	return known != nil && (other(known.claim, h.share.ClaimUID) || other(known.pod, h.uid))
}

// period returns the period of a holding. A new period begins at begun. Times before decided do not
// change.
func (h *holding) period(d *deviceBook, begun, decided time.Time) Period {
	p := Period{
		Device: d.id, Pod: h.pod, Attribution: d.joined.Attribution, From: begun, Older: h.from.IsZero(),
	}
	o := h.owner
	if o.period != nil {
		p = *o.period
	}
	p.Claim, p.ShareID, p.Admin = h.share.Claim, h.share.ShareID, h.share.Admin
	p.ClaimUID, p.PodUID = cmp.Or(h.share.ClaimUID, p.ClaimUID), cmp.Or(h.uid, p.PodUID)
	if o.claim != nil {
		p.ClaimUID, p.PodUID = o.claim.uid, o.pod.uid
	}
	if o.period == nil && !h.from.IsZero() {
		p.FromDoubt = widened(h.fromDoubt, begun.Sub(h.from))
	}
	if !h.to.IsZero() && p.To.IsZero() {
		p.To = driver.Later(p.From, driver.Later(h.to, decided))
		p.ToDoubt = widened(h.toDoubt, p.To.Sub(h.to))
	}
	return p
}

// isOf reports whether the period is that of a holding. UIDs may be unknown.
func (p *Period) isOf(h *holding) bool {
	same := func(x, y string) bool { return x == y || x == "" || y == "" }
	return p.Claim == h.share.Claim && p.ShareID == h.share.ShareID && p.Pod == h.pod &&
		same(p.ClaimUID, h.share.ClaimUID) && same(p.PodUID, h.uid)
}
