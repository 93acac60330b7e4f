package manifest

import (
	"math"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/dra-exporter/dra-exporter/driver"
)

// Amounts returns quantities, by resource name, as amounts in base units, sorted by name. value
// returns the quantity of an element. Names in the driver's own domain lose the domain: memory and
// gpu.example.com/memory are one resource of gpu.example.com, and the qualified one has precedence.
// rejected is the number of those that are no amounts.
func Amounts[K ~string, V any](
	driverName string, of map[K]V, value func(V) resource.Quantity,
) (amounts []driver.Amount, rejected int) {
	for name, element := range of {
		bare, counts := Resource(driverName, string(name), of)
		if !counts {
			continue
		}
		amount, ok := Amount(value(element))
		if !ok || !ValidName(bare) {
			rejected++
			continue
		}
		amounts = append(amounts, driver.Amount{Resource: bare, Value: amount})
	}
	slices.SortFunc(amounts, func(a, b driver.Amount) int { return strings.Compare(a.Resource, b.Resource) })
	return amounts, rejected
}

// Resource returns the name of a resource without the driver's own domain. counts is false for an
// unqualified name if the map also has the qualified one.
func Resource[K ~string, V any](driverName, name string, of map[K]V) (bare string, counts bool) {
	bare = strings.TrimPrefix(name, driverName+"/")
	_, shadowed := of[K(driverName+"/"+bare)]
	return bare, !shadowed || name != bare
}

// Amount returns a quantity in base units, false if it is negative or not finite.
func Amount(quantity resource.Quantity) (float64, bool) {
	value := quantity.AsApproximateFloat64()
	return value, value >= 0 && !math.IsInf(value, 0)
}

// MaxName is the maximum length of a name, in bytes: that of a DNS subdomain.
const MaxName = 253

// ValidName reports whether the API server can accept the name of a driver, pool, device, resource
// or object: letters, digits, dots, dashes, underscores and slashes, at most [MaxName] bytes.
func ValidName(name string) bool {
	if name == "" || len(name) > MaxName {
		return false
	}
	for i := range len(name) {
		c := name[i]
		if (c|0x20 < 'a' || c|0x20 > 'z') && (c < '0' || c > '9') && strings.IndexByte("._-/", c) < 0 {
			return false
		}
	}
	return true
}
