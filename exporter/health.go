package exporter

import (
	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// sourceOfHealth is the source of what pods' statuses say of the health of their devices.
const sourceOfHealth = "pods"

// tellHealth adds to the readings what pods' statuses say of the health of the device: the last of all sources, since a driver
// knows better. It is as old as the kubelet's answer.
func (d *JoinedDevice) tellHealth(view *podresources.View, precedence int) {
	worst := podresources.HealthNone
	for i := range d.Shares {
		worst = max(worst, d.Shares[i].Health)
	}
	if worst == podresources.HealthNone || view.At.IsZero() {
		return
	}
	d.Readings = append(d.Readings, Reading{
		Reading: driver.Reading{Quantity: driver.Health, Labels: driver.Labels{worst.String()}, Value: 1, At: view.At},
		Source:  sourceOfHealth, origin: origin{precedence: precedence},
	})
}

// measured tells whether the readings say what the device does: its health alone does not.
func measured(readings []Reading) bool {
	for i := range readings {
		if readings[i].Quantity != driver.Health {
			return true
		}
	}
	return false
}

// healthOnly tells whether a sample says how its hardware is, and is not meant to say what it does.
func healthOnly(sample *driver.Sample) bool {
	for i := range sample.Readings {
		if sample.Readings[i].Quantity != driver.Health {
			return false
		}
	}
	return len(sample.Readings) > 0
}
