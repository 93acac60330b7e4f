package inventory

import (
	"strings"

	"github.com/dra-exporter/dra-exporter/driver"
)

// dropFalseUUIDs takes away what drivers call uuid and is none: what several devices of a pool have
// (one for all of a node's), and the pool's name with a number (which is the device's index). Such
// texts would join hardware that is not the same. Devices that can't be measured do not count: a
// GPU that is also listed for guests is one GPU.
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

// isIndex reports whether the text is the pool's name and a number.
func isIndex(uuid, pool string) bool {
	n, ok := strings.CutPrefix(uuid, pool+"-")
	return ok && decimal(n) != ""
}
