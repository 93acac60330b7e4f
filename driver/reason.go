package driver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// Reason is the reason for which an input failed or a part of it was rejected. It is the value of
// the label reason of dra_exporter_source_errors_total and of dra_exporter_input_rejected_total.
//
// The constants are a closed list: no other package makes a reason.
type Reason string

// Reasons for which a source, or another input, fails.
const (
	ReasonTimeout          Reason = "timeout"           // no answer before a deadline
	ReasonCanceled         Reason = "canceled"          // the caller gave up
	ReasonHung             Reason = "hung"              // a call did not return after its deadline
	ReasonPanic            Reason = "panic"             // the source panicked
	ReasonUnavailable      Reason = "unavailable"       // nothing answers: not started, or the network is down
	ReasonUnimplemented    Reason = "unimplemented"     // the server does not have the API
	ReasonAbsent           Reason = "absent"            // what was asked for does not exist
	ReasonUnauthorized     Reason = "unauthorized"      // the server does not accept the credentials
	ReasonForbidden        Reason = "forbidden"         // this process does not have the permission
	ReasonRateLimited      Reason = "rate_limited"      // too many requests
	ReasonRedirected       Reason = "redirected"        // to another server, which is not followed
	ReasonServerError      Reason = "server_error"      // the server answered with another error
	ReasonTooLarge         Reason = "too_large"         // the response exceeds a bound
	ReasonExpired          Reason = "expired"           // a watch cannot be resumed
	ReasonEmptyDisbelieved Reason = "empty_disbelieved" // an empty list while pods may still run
	ReasonNoData           Reason = "no_data"           // the vendor's software has no values of a device
	ReasonGPULost          Reason = "gpu_lost"          // the driver can't reach the GPU any more
	ReasonDriverNotLoaded  Reason = "driver_not_loaded" // the kernel driver is not loaded
	ReasonDriverMismatch   Reason = "driver_mismatch"   // the library is not that of the kernel driver
	ReasonHostEngine       Reason = "host_engine"       // an error of DCGM's host engine
	ReasonNoLibrary        Reason = "no_library"        // the vendor's library can't be opened
	ReasonUnread           Reason = "unread"            // no source reads this hardware on the PCI bus
	ReasonDiskFull         Reason = "disk_full"         // no space is left
	ReasonReadOnly         Reason = "read_only"         // the file system is read-only
	ReasonLocked           Reason = "locked"            // another process has it
	ReasonOther            Reason = "other"             // none of the above
)

// Reasons for which a part of an input is rejected. The comments describe that part.
const (
	ReasonMalformed           Reason = "malformed"              // not in the expected format, also of a whole response
	ReasonDuplicate           Reason = "duplicate"              // the same identity as another row
	ReasonTooMany             Reason = "too_many"               // beyond a bound on their number
	ReasonTooManyIDs          Reason = "too_many_device_ids"    // of one pod and resource of a device plugin
	ReasonTooLong             Reason = "too_long"               // a name
	ReasonInvalidUTF8         Reason = "invalid_utf8"           // a name
	ReasonLabel               Reason = "label"                  // a value that a label can't have
	ReasonNotFinite           Reason = "not_finite"             // NaN or infinity
	ReasonNegative            Reason = "negative"               // a negative value of a quantity that has none
	ReasonOutOfRange          Reason = "out_of_range"           // outside the bounds of the quantity: often a wrong scale
	ReasonNoValue             Reason = "no_value"               // a number that stands for "no value" (bounds.go)
	ReasonZero                Reason = "zero"                   // 0 of a quantity that a device without its sensor has
	ReasonRate                Reason = "rate"                   // more than the device can do in that time
	ReasonFall                Reason = "fall"                   // a counter fell, and nothing explains it
	ReasonNoTime              Reason = "no_time"                // a reading without its time
	ReasonOverwritten         Reason = "overwritten"            // kernel log records, overwritten before they were read
	ReasonStale               Reason = "stale"                  // a sample with a timestamp that is too old
	ReasonUnknownQuantity     Reason = "unknown_quantity"       // a quantity outside the catalogue
	ReasonNoMatch             Reason = "no_match"               // a series that identifies no hardware
	ReasonPartition           Reason = "partition"              // a series of a partition, without the partition's name
	ReasonMissingPod          Reason = "missing_pod"            // a pod without name or namespace
	ReasonMissingContainer    Reason = "missing_container"      // a container without name
	ReasonMissingClaim        Reason = "missing_claim"          // a claim without name or namespace
	ReasonMissingDriver       Reason = "missing_driver"         // a device without driver
	ReasonMissingPool         Reason = "missing_pool"           // a device without pool
	ReasonMissingDevice       Reason = "missing_device"         // a device without name
	ReasonMissingResource     Reason = "missing_resource"       // a device of a device plugin without resource name
	ReasonMissingCDI          Reason = "missing_cdi"            // an empty CDI name
	ReasonMalformedObject     Reason = "malformed_object"       // an object of the API
	ReasonMalformedSlice      Reason = "malformed_slice"        // a ResourceSlice
	ReasonMalformedDevice     Reason = "malformed_device"       // a device of a slice
	ReasonMalformedCapacity   Reason = "malformed_capacity"     // a capacity; the device is kept
	ReasonTooManySlices       Reason = "too_many_slices"        // slices beyond the bound
	ReasonTooManyDevices      Reason = "too_many_devices"       // devices beyond the bound
	ReasonDuplicateDevice     Reason = "duplicate_device"       // the first one counts
	ReasonNodeSelector        Reason = "node_selector_labels"   // devices selected by node labels that are unknown
	ReasonMalformedPod        Reason = "malformed_pod"          // an object of the API
	ReasonMalformedClaim      Reason = "malformed_claim"        // a ResourceClaim
	ReasonDuplicateClaim      Reason = "duplicate_claim"        // the first one counts
	ReasonMalformedSpec       Reason = "malformed_spec"         // a CDI spec
	ReasonMalformedCDI        Reason = "malformed_cdi_device"   // a device of a CDI spec
	ReasonLargeSpec           Reason = "spec_too_large"         // a CDI spec
	ReasonUnreadableSpec      Reason = "unreadable_spec"        // a CDI spec
	ReasonUnreadableFolder    Reason = "unreadable_folder"      // a folder of CDI specs
	ReasonTooManySpecs        Reason = "too_many_specs"         // CDI specs beyond the bound
	ReasonMalformedTaintRule  Reason = "malformed_taint_rule"   // a DeviceTaintRule
	ReasonUnsupportedSelector Reason = "unsupported_selector"   // a DeviceTaintRule with device class or CEL (v1alpha3)
	ReasonTooManyTaints       Reason = "too_many_taints"        // taints of one device beyond the bound
	ReasonTooManyTaintRules   Reason = "too_many_taint_rules"   // DeviceTaintRules beyond the bound
	ReasonNewerFormat         Reason = "newer_format"           // a file that a newer version of the program wrote
	ReasonOtherNode           Reason = "other_node"             // a file that another node wrote
	ReasonConflictingCDI      Reason = "conflicting_cdi_device" // a CDI device that one folder defines twice
)

// ReasonError is an error with a reason. [ReasonOf] finds it in the tree of an error.
type ReasonError struct {
	Reason Reason
	Err    error
}

// Error returns the text of Err.
func (e *ReasonError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *ReasonError) Unwrap() error { return e.Err }

// WithReason returns err as a [ReasonError]. It returns nil if err is nil.
func WithReason(reason Reason, err error) error {
	if err == nil {
		return nil
	}
	return &ReasonError{reason, err}
}

// ReasonOf returns the reason of an error: that of the first [ReasonError] in its tree, else the
// one that corresponds to an error of the standard library, else ReasonOther. It returns "" for
// nil.
func ReasonOf(err error) Reason {
	var timeout interface{ Timeout() bool }
	if err == nil {
		return ""
	}
	if e, ok := errors.AsType[*ReasonError](err); ok {
		return e.Reason
	}
	switch {
	case errors.Is(err, context.Canceled):
		return ReasonCanceled
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return ReasonTimeout
	case errors.Is(err, syscall.ECONNREFUSED):
		return ReasonUnavailable
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return ReasonDiskFull
	case errors.Is(err, syscall.EROFS):
		return ReasonReadOnly
	case errors.Is(err, fs.ErrPermission):
		return ReasonForbidden
	case errors.Is(err, strconv.ErrSyntax), errors.Is(err, strconv.ErrRange):
		return ReasonMalformed
	default:
		return ReasonOther
	}
}

// Rejection is the number of rejected parts of one input: rows, readings or facts.
type Rejection struct {
	Input  string // the name of a source or of another input
	Reason Reason
	Count  int
	// Example is a line for a log about one of the values; it may be empty.
	Example string
}

// InputOf returns the input of rejections of a source's readings of a quantity.
func InputOf(source string, of *Spec) string { return source + "/" + of.Name }

// Example returns the reading as an example of a [Rejection].
func (r *Reading) Example(of Catalogue) string {
	labels := strings.TrimSpace(strings.Join(r.Labels[:], " "))
	return fmt.Sprintf("%s %q = %v", of.Spec(r.Quantity).Name, labels, r.Value)
}

// Compare orders rejections by input and reason.
func (r Rejection) Compare(other Rejection) int {
	return cmp.Or(strings.Compare(r.Input, other.Input), cmp.Compare(r.Reason, other.Reason))
}

// Rejections has the number of rejected parts of one input by reason.
type Rejections map[Reason]int

// Add adds to the count of a reason, unless n is below 1.
func (r Rejections) Add(reason Reason, n int) {
	if n > 0 {
		r[reason] += n
	}
}

// AddAll adds the counts of others.
func (r Rejections) AddAll(others Rejections) {
	for reason, n := range others {
		r.Add(reason, n)
	}
}

// Of returns the counts as rejections of an input, sorted.
func (r Rejections) Of(input string) []Rejection {
	out := make([]Rejection, 0, len(r))
	for reason, n := range r {
		out = append(out, Rejection{Input: input, Reason: reason, Count: n})
	}
	slices.SortFunc(out, Rejection.Compare)
	return out
}

// RejectionCounter is implemented by a [Source] that rejects parts of what it reads.
type RejectionCounter interface {
	// Rejected returns the number of parts that were rejected since the start. It is safe for
	// concurrent use with Sample. The caller owns the map.
	Rejected() Rejections
}
