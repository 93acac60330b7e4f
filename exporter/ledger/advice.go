package ledger

import (
	"time"

	"github.com/dra-exporter/dra-exporter/exporter/fit"
	"github.com/dra-exporter/dra-exporter/exporter/join"
)

// adviseEvery is how often advice is renewed.
const adviseEvery = time.Minute

// advisor finds the smallest fit of each claim.
type advisor struct {
	config  fit.Config
	advised time.Time // when advice was renewed last
}

// advise renews the advice for the claims if it is old.
func (v *advisor) advise(claims *accountBook, devices []join.Device, now time.Time) {
	if !claims.fits || now.Sub(v.advised) < min(adviseEvery, v.config.After) {
		return
	}
	v.advised = now
	var uses []fit.Use
	var of []*fitting
	for a := range claims.all() {
		f := a.fit
		if f == nil || f.final {
			continue
		}
		u := f.useOf(a.key)
		u.Number = len(of)
		if !a.ended.IsZero() {
			if f.ended == nil || f.several || !a.settled(now) && now.Sub(a.ended) < rememberFor {
				continue
			}
			u.Ended = f.ended
		}
		uses, of = append(uses, u), append(of, f)
	}
	advice := fit.Advise(uses, devices, v.config)
	for i := range advice {
		f := of[advice[i].Number]
		f.advice = &advice[i]
		if f.final = advice[i].Ended != nil; f.final { // what it is made of is not needed any more
			*f = fitting{final: true, due: true, advice: f.advice}
		}
	}
}
