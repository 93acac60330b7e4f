package program

const (
	// maxResident is the largest budget: resident bytes of the process, including file pages.
	maxResident = 160 << 20
	// filePages is the resident part of the program file, which Go's memory limit does not include.
	filePages = 36 << 20
	// fixed is the memory that the program needs without any pod, device or client.
	fixed = filePages + 18<<20
	// least is what it takes with the smallest parts.
	least = fixed + 4<<20
	// garbage is reserved in smaller budgets, since the garbage of a tick shrinks less than the parts.
	garbage = 20 << 20
	// minShare is the smallest share with which the program works properly. With less memory, it
	// exceeds its budget.
	minShare = 1. / 16
	// fullSeries is the limit of series at the full budget, unless the flag sets a lower one.
	fullSeries = 6 << 14
	rowBytes   = 6 << 10 // per allocation, or per pod of one, from the join to the page
)

// memory divides a budget among the parts of the program.
type memory struct {
	budget int64
	share  float64 // the factor for all parts; 1 at the full budget
}

// newMemory divides a memory limit ($GOMEMLIMIT), at most maxResident.
func newMemory(limit int64) memory {
	budget := min(limit, maxResident)
	return memory{budget, max(minShare, float64(budget-fixed-garbage)/(maxResident-fixed-garbage))}
}

// heap returns the limit for Go's runtime: a tenth less than the budget without file pages, since
// the runtime collects more often near the limit, and exceeds it for a short time.
func (m memory) heap() int64 { return (max(m.budget, least) - filePages) / 10 * 9 }

// of returns the bytes for a part that has full bytes of the full budget.
func (m memory) of(full int) int { return int(m.share * float64(full)) }

// series returns the limit of series: that of the flag, or a lower one with less than the full
// budget.
func (m memory) series(flag int) int {
	if most := m.of(fullSeries); m.share < 1 && (flag == 0 || flag > most) {
		return most
	}
	return flag
}
