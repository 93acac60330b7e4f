package manifest

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/dra-exporter/dra-exporter/driver"
)

const (
	// maxQuantityLength is the maximum length of a quantity in text form, in bytes.
	maxQuantityLength = 64
	// maxExponent is the maximum exponent in scientific notation. resource.ParseQuantity computes the
	// power of ten, which would take hours for 1e-999999999.
	maxExponent = 30
)

var (
	errQuantity  = errors.New("not a quantity")
	errMagnitude = errors.New("not a finite amount of zero or more")
)

// Amounts decodes quantities, by resource name, to amounts in base units, sorted by name. Names in
// the driver's own domain lose the domain: memory and gpu.example.com/memory are one resource of
// gpu.example.com, and the qualified one has precedence. Values are JSON strings or numbers.
// rejected is the number of values that are not quantities.
func Amounts(driverName string, quantities map[string]json.RawMessage) (amounts []driver.Amount, rejected int) {
	for name, raw := range quantities {
		bare, counts := Resource(driverName, name, quantities)
		if !counts {
			continue
		}
		value, err := Amount(raw)
		if err != nil || !ValidName(bare) {
			rejected++
			continue
		}
		amounts = append(amounts, driver.Amount{Resource: bare, Value: value})
	}
	slices.SortFunc(amounts, func(a, b driver.Amount) int { return strings.Compare(a.Resource, b.Resource) })
	return amounts, rejected
}

// Resource returns the name of a resource without the driver's own domain. counts is false for an
// unqualified name if the map also has the qualified one.
func Resource[T any](driverName, name string, of map[string]T) (bare string, counts bool) {
	bare = strings.TrimPrefix(name, driverName+"/")
	_, shadowed := of[driverName+"/"+bare]
	return bare, !shadowed || name != bare
}

// Amount decodes a quantity, a JSON string or number ("80Gi", 2, "1500m"), to a number of base
// units.
func Amount(raw json.RawMessage) (float64, error) {
	text := string(raw)
	if len(raw) > 0 && raw[0] == '"' {
		if err := json.Unmarshal(raw, &text); err != nil {
			return 0, fmt.Errorf("read quantity: %w", err)
		}
	}
	if len(text) > maxQuantityLength || !smallExponent(text) {
		return 0, errQuantity
	}
	quantity, err := resource.ParseQuantity(text)
	if err != nil {
		return 0, fmt.Errorf("read quantity: %w", err)
	}
	value := quantity.AsApproximateFloat64()
	if value < 0 || math.IsInf(value, 0) || math.IsNaN(value) {
		return 0, errMagnitude
	}
	return value, nil
}

// smallExponent reports whether the text has no exponent above maxExponent. A final E is the suffix
// exa, and Ei is exbi.
func smallExponent(text string) bool {
	i := strings.IndexAny(text, "eE")
	if i < 0 || i == len(text)-1 || text[i+1:] == "i" {
		return true
	}
	exponent, err := strconv.Atoi(text[i+1:])
	return err == nil && exponent >= -maxExponent && exponent <= maxExponent
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
