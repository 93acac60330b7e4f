package inventory

import (
	"strings"

	"github.com/dra-exporter/dra-exporter/driver"
)

// dropFalseUUIDs clears UUIDs that do not identify a device: one that several devices of a pool
// have, and one that is the pool's name and an index. They would match samples with the wrong
// device. Devices that cannot be measured do not count as another device: a GPU may also be listed
// for passthrough to guests.
func dropFalseUUIDs(inventory driver.Inventory) {
	type named struct{ driver, pool, uuid string }
	count := map[named]int{}
	key := func(id driver.ID, e *driver.Entry) named {
		return named{id.Driver, id.Pool, strings.ToLower(e.UUID)}
	}
	for id, e := range inventory {
		if e.UUID != "" && e.Kind.Measurable() {
			count[key(id, &e)]++
		}
	}
	for id, e := range inventory {
		if count[key(id, &e)] > 1 || isIndex(e.UUID, id.Pool) {
			e.UUID = ""
			inventory[id] = e
		}
	}
}

// isIndex reports whether the UUID is the pool's name, a dash and a number.
func isIndex(uuid, pool string) bool {
	n, ok := strings.CutPrefix(uuid, pool+"-")
	return ok && decimal(n) != ""
}
