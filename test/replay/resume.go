package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/dra-exporter/dra-exporter/exporter/ledger"
	"github.com/dra-exporter/dra-exporter/podresources/holders"
)

// resumed returns the holds that continue over a restart, as the program does.
func resumed(books *ledger.Ledger) (holds []holders.Resumed, continues bool) {
	periods, continues := books.Resumed()
	for _, p := range periods {
		holds = append(holds, holders.Resumed{
			ID: p.Hold, Device: p.Device, Claim: p.Claim, Share: p.ShareID, Pod: p.Pod, UID: p.PodUID, From: p.From,
			Admin: p.Admin, ClaimUID: p.ClaimUID,
		})
	}
	slices.SortFunc(holds, func(a, b holders.Resumed) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	return holds, continues
}
