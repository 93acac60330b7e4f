package join

import (
	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// sourceOfHealth is the source of the device health that pods' statuses report.
const sourceOfHealth = "pods"

// addHealth adds the health that pods' statuses report to the readings, as the source of lowest
// precedence: a driver knows better. Its time is that of the kubelet's answer.
func (d *Device) addHealth(view *podresources.View, precedence int) {
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

// measured reports whether a reading is of what the device does. Health alone is not, nor are
// errors that were reported of a device that can't be read.
func measured(readings []Reading) bool {
	for i := range readings {
		if readings[i].Quantity != driver.Health && !readings[i].event {
			return true
		}
	}
	return false
}

// healthOnly reports whether a sample has readings of health alone.
func healthOnly(sample *driver.Sample) bool {
	for i := range sample.Readings {
		if sample.Readings[i].Quantity != driver.Health {
			return false
		}
	}
	return len(sample.Readings) > 0
}
